"""compressed-tensors: the formats of llm-compressor."""
