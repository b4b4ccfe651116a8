"""Where tokens come from: model sources, tokenisation, the shared model code, the embedded engine."""
