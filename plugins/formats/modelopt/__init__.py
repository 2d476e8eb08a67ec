"""ModelOpt: NVFP4 as its files have it."""
