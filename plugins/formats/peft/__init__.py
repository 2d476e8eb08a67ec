"""Adapters as PEFT has them in files: `adapter_config.json` and `adapter_model.safetensors`."""
