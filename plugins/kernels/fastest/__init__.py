"""Which backends are fastest on a kind of device: what was measured there, a file each, and what is known of calls."""
