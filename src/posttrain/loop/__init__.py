"""The loop: evaluate, diagnose, warm up, train, gate, deliver. The only package that knows the whole picture."""
