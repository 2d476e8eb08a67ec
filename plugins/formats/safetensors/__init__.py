"""safetensors: the container, and the plain names of Hugging Face."""
