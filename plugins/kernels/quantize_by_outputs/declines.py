"""What backends of quantize_by_outputs leave to others, and why: what those of gptq do, with the same codec."""

from plugins.kernels.gptq.declines import native

__all__ = ["native"]
