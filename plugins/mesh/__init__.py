"""Models over several devices: which these are, how weights lie on them, and where they speak to each other."""
