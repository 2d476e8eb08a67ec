"""Magnitude pruning: weights near zero become zero."""
