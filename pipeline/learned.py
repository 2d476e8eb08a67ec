"""Codes and scales that were learned: of tensors that a stage has trained together, as files hold them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.tensors.blocks import component_box
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import TensorSpec, numpy_dtype
from pipeline.tensors.stats import Gain
from pipeline.tensors.store import Index

REPORT, GAIN = "report", "gain"  # arrays beside those of components: JSON


@dataclass(frozen=True)
class Learned:
    """`blocks.N.npz`, with an array NAME/component of each tensor, as unsigned integers of the same width.

    Attributes:
        place: the folder; None: a plan's, in which nothing can be read.
        files: tensor → file.
    """

    place: Path | None
    files: Mapping[str, str]

    @classmethod
    def of(cls, folder: Path) -> "Learned":
        """What lies in a folder."""
        files: dict[str, str] = {}
        for path in sorted(folder.glob("blocks.*.npz")):
            with np.load(path) as kept:
                files |= {name: path.name for key in kept.files if (name := key.removesuffix("/codes")) != key}
        return cls(folder, files)

    def __contains__(self, name: object) -> bool:
        return name in self.files

    @cached_property
    def _open(self) -> dict[str, Any]:
        """The tensor that was asked for last: chunks of one come one after another."""
        return {}

    def read(self, name: str, spec: TensorSpec, box: Index) -> QTensor:
        """A box of whole blocks of a tensor that is packed as `spec` says."""
        scheme = spec.scheme
        assert scheme is not None
        if name not in self._open:
            self._open.clear()
            self._open[name] = {
                c: self._array(name, c).view(numpy_dtype(dtype))
                for c, dtype in scheme.dtypes.items()
                if c in scheme.components(spec.shape)
            }
        arrays = {c: np.array(a[component_box(spec, c, box)], order="C") for c, a in self._open[name].items()}
        return QTensor(scheme=scheme, **arrays)

    def gain(self, name: str) -> Gain | None:
        """What was lost of outputs step by step, of the whole tensor; None: nobody looked."""
        found = json.loads(str(self._array(name, GAIN)))
        return None if found is None else Gain(*found)

    def _array(self, name: str, what: str) -> Any:
        assert self.place is not None
        with np.load(self.place / self.files[name]) as kept:
            return kept[f"{name}/{what}"]

    def __getstate__(self) -> dict[str, Any]:
        return {"place": self.place, "files": self.files}


def arrays_of(name: str, coded: QTensor, gain: Gain | None) -> dict[str, Any]:
    """What a file holds of a tensor."""
    found: dict[str, Any] = {
        f"{name}/{c}": np.asarray(a).view(f"u{np.asarray(a).dtype.itemsize}") for c, a in coded.components.items()
    }
    return found | {f"{name}/{GAIN}": json.dumps(None if gain is None else gain.to_json())}
