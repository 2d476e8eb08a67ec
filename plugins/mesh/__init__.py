"""Models over several devices: where their weights lie, and what devices tell each other."""
