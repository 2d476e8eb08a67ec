"""Data sets: files as numbered examples. NumPy only."""
