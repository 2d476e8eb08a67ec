"""Orbax checkpoints: the JSON of tree, checkpoint and arrays, of zarr versions 2 and 3, and what lies beside it."""

import json
import random
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.tensors.scheme import MXFP4
from pipeline.tensors.spec import TensorSpec
from plugins.formats.orbax.container import Orbax
from plugins.formats.orbax.pytree import Pytree
from tests.fuzz.driver import Files, put
from tests.fuzz.loading import opened
from tests.fuzz.mutate import changed_bytes, changed_json, one

SPECS = {"w": TensorSpec((4, 32), "BF16", MXFP4), "b.bias": TensorSpec((4, 6), "F32")}


@cache
def ours() -> Files:
    """As `export=orbax` writes it, of zeros."""
    binding = Pytree().encode(SPECS, {})
    layout = Orbax(chunk_nbytes=48).layout(binding.leaves, binding.metadata, None)
    files = {plan.name: plan.prefix + bytes(plan.nbytes - len(plan.prefix)) for plan in layout.files}
    return {**files, **layout.extra, "config.json": b'{"model_type": "llama"}'}


@cache
def zarr2() -> Files:
    """As Orbax without a database and without zarr 3 writes it, not compressed."""
    array = {
        "zarr_format": 2, "shape": [4, 6], "chunks": [4, 6], "dtype": "<f4", "compressor": None, "fill_value": None,
        "order": "C", "filters": None, "dimension_separator": ".",
    }  # fmt: skip
    tree = json.loads(ours()["_METADATA"])
    tree["tree_metadata"] = {k: v for k, v in tree["tree_metadata"].items() if "bias" in k}
    tree["use_zarr3"] = False
    return {
        "_METADATA": json.dumps(tree).encode(),
        "b.bias/.zarray": json.dumps(array).encode(),
        "b.bias/0.0": np.arange(24, dtype="<f4").tobytes(),
    }


@cache
def _parsed(which: int, name: str) -> Any:
    return json.loads((ours, zarr2)[which]()[name])


def make(rng: random.Random) -> Files:
    which = rng.randrange(2)
    files = dict((ours, zarr2)[which]())
    for _ in range(one(rng, (1, 1, 1, 2))):
        name = one(rng, tuple(files))
        kind = rng.random()
        if files[name][:1] == b"{" and kind < 0.9:
            files[name] = changed_json(rng, _parsed(which, name))
        elif kind < 0.95:
            files[name] = changed_bytes(rng, files[name])
        else:
            del files[name]
    return files


def run(files: Mapping[str, bytes], folder: Path) -> None:
    put(files, folder)
    store = opened(folder).store
    for name, spec in store.specs.items():
        if spec.nbytes < 1 << 20:
            store.read(name)
