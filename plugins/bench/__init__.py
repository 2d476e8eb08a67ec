"""Benchmarks: one file for what people compare, each beside its peers in the same run; `make bench`."""
