"""Makes the digests of tests/oracle/test_like.py again, from a checkout of the library that they are of.

PYTHONPATH=path/to/microxcaling python -m tests.oracle.like_records microxcaling
PYTHONPATH=path/to/qwix python -m tests.oracle.like_records qwix
"""

import sys
from collections.abc import Iterator

import numpy as np

from tests.oracle.test_like import RECORDED, blocks_of, digest

FORMATS = {
    "e2m1": "fp4_e2m1", "e2m3": "fp6_e2m3", "e3m2": "fp6_e3m2", "e4m3": "fp8_e4m3", "e5m2": "fp8_e5m2",
    "mxint8": "int8",
}  # fmt: skip


def microxcaling() -> Iterator[tuple[str, str]]:
    """Of float32 values; -0 + 0 is +0."""
    import torch
    from mx import mx_ops

    for name, theirs in FORMATS.items():
        x = torch.from_numpy(blocks_of("microxcaling", name))
        y = mx_ops._quantize_mx(x, 8, theirs, axes=[-1], block_size=32, round="nearest").numpy()
        yield name, digest(y + np.float32(0))


def qwix() -> Iterator[tuple[str, str]]:
    """Of scale bytes and codes."""
    import jax.numpy as jnp
    import qwix

    x = jnp.asarray(blocks_of("qwix", "e2m1"))
    q = qwix.quantize(x, "mxfp4", channelwise_axes=(0,), tiled_axes={1: 32})
    scales = (np.log2(np.asarray(q.scale)).astype(int) + 127).astype(np.uint8)
    yield "e2m1", digest(scales, np.asarray(q.qvalue).view(np.uint8))


def main(library: str) -> int:
    """Print every digest beside the recorded one; 1 if any differs."""
    made = {(library, name): found for name, found in {"microxcaling": microxcaling, "qwix": qwix}[library]()}
    for key, found in made.items():
        print(*key, found, "as recorded" if found == RECORDED[key] else f"but {RECORDED[key]} is recorded")
    return int(any(RECORDED[key] != found for key, found in made.items()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
