"""bitsandbytes: NF4 as its files have it."""
