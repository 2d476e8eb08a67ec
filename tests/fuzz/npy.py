"""Folders of .npy files with and without a metadata.json; whatever opens is read."""

import json
import random
from collections.abc import Mapping
from pathlib import Path

from plugins.formats.npy.container import Npy
from tests.cases.hostile.npy_files import ALLOWED, FILES, GOOD
from tests.fuzz.driver import Files, put
from tests.fuzz.mutate import changed_bytes, changed_json, one, text

SEEDS = [GOOD, *ALLOWED.values(), *(d for d, _ in FILES.values())]
INDEX = {
    "format": "weightmill-npy",
    "version": 1,
    "tensors": {"w": {"file": "w.npy", "dtype": "F32", "shape": [2, 3]}},
    "metadata": {"a": {"b": 1}},
}


def make(rng: random.Random) -> Files:
    data = GOOD if rng.random() < 0.5 else one(rng, SEEDS)
    if rng.random() < 0.5:
        head = text(rng, data[10:].decode("latin-1")).encode("latin-1")
        data = data[:10] + head
        if rng.random() < 0.7:
            end = data.find(b"\n") + 1 or len(data)
            data = data[:8] + max(0, min(end - 10, 65535)).to_bytes(2, "little") + data[10:]
    else:
        data = changed_bytes(rng, data, GOOD)
    files = {"w.npy": data if rng.random() < 0.8 else GOOD}
    if rng.random() < 0.5:
        files["metadata.json"] = changed_json(rng, INDEX) if rng.random() < 0.8 else json.dumps(INDEX).encode()
    return files


def run(files: Mapping[str, bytes], folder: Path) -> None:
    put(files, folder)
    leaves = Npy().open(folder)
    for name in leaves.specs:
        leaves.read(name)
