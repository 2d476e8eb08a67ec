"""What the `pallas` backends of the ops share: kernels for GPUs and TPUs, written once, in the language of JAX.

Every op has its kernels in its own room (`plugins/kernels/<op>/pallas.py`); what a device wants otherwise than another
is in `launch.py`, and Triton is named in `triton.py` alone.
"""
