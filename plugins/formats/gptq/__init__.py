"""GPTQ's checkpoints, as AutoGPTQ and GPTQModel save them."""
