"""Strictness for all tests: property tests draw the same examples every time, and JAX sees the CPU only."""

import os

import hypothesis

os.environ.setdefault("JAX_PLATFORMS", "cpu")

# Derandomized: a failure on one machine is a failure on all. No deadline: a loaded machine is not a failure.
hypothesis.settings.register_profile("strict", derandomize=True, deadline=None, database=None, print_blob=False)
hypothesis.settings.load_profile("strict")
