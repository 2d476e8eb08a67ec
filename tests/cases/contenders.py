"""The main job as somebody would write it who needs the result once: what the benchmark compares with.

`python -m tests.cases.contenders NAME SOURCE OUT` converts and prints, as JSON, the seconds from opening the source to
a durable result, and those spent in the codec alone. Whole tensors are held, and the result until it is saved.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

EXPERTS = (".mlp.experts.gate_up_proj", ".mlp.experts.down_proj")


def plain(source: Path, out: Path) -> None:
    """NumPy and ml_dtypes, expert by expert."""
    import ml_dtypes
    import numpy as np
    from safetensors import safe_open
    from safetensors.numpy import save_file

    def encode(x: Any) -> tuple[Any, Any]:
        blocks = x.reshape(*x.shape[:-1], -1, 32).astype(np.float32)
        amax = np.abs(blocks).max(axis=-1)
        exponent = np.frexp(np.maximum(amax, 2.0**-126))[1] - 1 - 2
        codes = np.ldexp(blocks, -exponent[..., None]).clip(-6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
        return codes[..., ::2] | codes[..., 1::2] << 4, (exponent + 127).astype(np.uint8)

    def experts(x: Any) -> tuple[Any, Any]:
        pairs = [encode(np.ascontiguousarray(x[e].view(ml_dtypes.bfloat16).T)) for e in range(len(x))]
        return np.stack([c for c, _ in pairs]), np.stack([s for _, s in pairs])

    _contend(source, out, experts, lambda path: safe_open(path, "np"), save_file)


def torchao(source: Path, out: Path) -> None:
    """torchao's reference conversion, on every core."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file
    from torchao.prototype.mx_formats.mx_tensor import to_mx

    torch.set_num_threads(len(os.sched_getaffinity(0)))

    def experts(x: Any) -> tuple[Any, Any]:
        pairs = [to_mx(x[e].T.contiguous(), torch.float4_e2m1fn_x2, 32) for e in range(len(x))]
        codes = torch.stack([c.view(torch.uint8).reshape(*c.shape[:-1], -1, 16) for _, c in pairs])
        return codes, torch.stack([s.view(torch.uint8) for s, _ in pairs])

    _contend(source, out, experts, lambda path: safe_open(path, "pt"), save_file)


def _contend(source: Path, out: Path, experts: Callable[[Any], Any], opened: Callable[..., Any], save: Any) -> None:
    out.mkdir()
    start, codec_s = time.perf_counter(), 0.0
    tensors = {}
    with opened(str(source / "model.safetensors")) as file:
        for name in file.keys():  # noqa: SIM118 (not a mapping)
            value = file.get_tensor(name)
            if not name.endswith(EXPERTS):
                tensors[name] = value
                continue
            before = time.perf_counter()
            tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = experts(value)
            codec_s += time.perf_counter() - before
            del value
    save(tensors, str(out / "model.safetensors"))
    _sync(out / "model.safetensors")
    print(json.dumps({"seconds": time.perf_counter() - start, "codec_s": codec_s}))


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


CONTENDERS = {"ml_dtypes loop": plain, "torchao to_mx": torchao}

if __name__ == "__main__":
    name, source, out = sys.argv[1:]
    CONTENDERS[name](Path(source), Path(out))
