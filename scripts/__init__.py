"""What the Makefile calls: installation and the checks that no linter ships."""
