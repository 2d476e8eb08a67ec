"""GGUF: container, types, and the settings and tokenizer inside."""
