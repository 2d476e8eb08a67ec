"""What the `mosaic_gpu` backends of the ops share: kernels for NVIDIA's Hopper, written in Pallas for Mosaic GPU.

The kernels of `plugins/kernels/pallas/` say what a block of a result is, and a compiler (Triton, Mosaic TPU) finds how.
These say how: which warpgroup copies (`plgpu.copy_gmem_to_smem`, by the device's copy engine, TMA), which multiplies
(`plgpu.wgmma`), and who waits for whom (barriers). Every op has its kernels in its own room
(`plugins/kernels/<op>/mosaic_gpu.py`); `launch.py` is how they are started, `products.py` what they multiply with.
"""
