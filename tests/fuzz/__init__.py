"""Fuzzers of everything that comes from outside: whatever is in a file, it is read or it is a WeightmillError.

Nothing else: no other exception (a panic in Rust included), no hang, no more memory than bounded. Inputs are made by
mutators that know the structure of each format; each follows from its target and its number alone.

    python -m tests.fuzz --minutes 10 [TARGET…]
"""
