"""NumPy files: one for each tensor."""
