"""Orbax checkpoints."""
