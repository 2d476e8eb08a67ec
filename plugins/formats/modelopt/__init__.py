"""ModelOpt: NVFP4 and FP8 as its files have them."""
