"""Comparisons with other people's implementations: the optional group `oracles`."""
