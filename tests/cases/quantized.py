"""Quantized tensors of any scheme with random components, and folders of leaves as a dialect sees them."""

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import api
from pipeline.formats import PEEKED, Dialect
from pipeline.tensors.binding import Binding
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import TensorSpec, dtype_name, numpy_dtype
from pipeline.tensors.views import JoinedStore, split
from pipeline.testing.memory import MemoryStore
from pipeline.testing.memory import quantized as quantized
from plugins.formats.safetensors.container import SafeTensors


@cache
def quant_method(name: str, *overrides: str) -> Any:
    """As `pipeline.quant_method`, which composes a config: once for all tests."""
    return api.quant_method(name, overrides)


def leaves_of(binding: Binding, tensors: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The leaves of a binding for writing, filled from whole tensors and constants; every element exactly once."""
    leaves = {n: np.zeros(s.shape, numpy_dtype(s.dtype)) for n, s in binding.leaves.items()}
    filled = {n: np.zeros(s.shape, np.int8) for n, s in binding.leaves.items()}
    for name, bound in binding.tensors.items():
        for leaf, box, array in split(bound, (), tensors[name]):
            assert array.dtype == leaves[leaf].dtype, leaf
            leaves[leaf][box] = array
            filled[leaf][box] += 1
    for leaf, content in binding.constants.items():
        leaves[leaf] = np.frombuffer(content, leaves[leaf].dtype).reshape(leaves[leaf].shape)
        filled[leaf] += 1
    assert all((f == 1).all() for f in filled.values())
    return leaves


def seen_by(dialect: Dialect, leaves: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The config that a loader hands to `decode`: with the leaves that the dialect peeks at."""
    patterns = getattr(dialect, "peeks", ())
    peeked = {n: a for n, a in leaves.items() if any(fnmatchcase(n, p) for p in patterns)}
    return {**config, PEEKED: peeked} if patterns else dict(config)


def read(dialect: Dialect, leaves: Mapping[str, Any], config: Mapping[str, Any]) -> JoinedStore:
    """The logical tensors of `leaves`."""
    specs = {n: TensorSpec(a.shape, dtype_name(a.dtype)) for n, a in leaves.items()}
    return JoinedStore(MemoryStore(leaves), dialect.decode(specs, seen_by(dialect, leaves, config)))


def write_folder(folder: Path, dialect: Dialect, tensors: Mapping[str, Any], config: Mapping[str, Any]) -> Binding:
    """A checkpoint folder written with the SafeTensors container; quantized tensors decode to `config`'s dtype."""
    dtype = {"float32": "F32", "float16": "F16"}.get(config.get("dtype", ""), "BF16")
    specs = {n: TensorSpec(tuple(v.shape), dtype, v.scheme) for n, v in tensors.items() if isinstance(v, QTensor)}
    specs = {n: specs.get(n) or TensorSpec(v.shape, dtype_name(v.dtype)) for n, v in tensors.items()}
    binding = dialect.encode(specs, config)
    container = SafeTensors()
    layout = container.layout(binding.leaves, {"format": "pt"}, None)
    folder.mkdir(parents=True, exist_ok=True)
    container.begin(folder, layout)
    for leaf, array in leaves_of(binding, tensors).items():
        container.write(folder, layout, leaf, (), array)
    (folder / "config.json").write_text(json.dumps(binding.config))
    for name, content in {**layout.extra, **binding.files}.items():
        (folder / name).write_bytes(content)
    return binding
