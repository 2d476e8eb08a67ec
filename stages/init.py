"""Init: a checkpoint by its config.json, with fresh weights; for training from the beginning.

Every tensor is a function of the run's seed and its own name: whoever reads a part of it makes that part, and the rest
need not exist. Other tensors, another order, or more layers change nothing in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from math import prod
from typing import Any, Literal

import numpy as np

from pipeline.digest import identity, small_input
from pipeline.errors import PlanError, Problem, SourceError, did_you_mean
from pipeline.files import of_source
from pipeline.hooks import optional
from pipeline.stage import Checkpoint, Context
from pipeline.tensors.spec import TensorSpec, numpy_dtype
from pipeline.tensors.store import Index, normalize
from stages.load import CONFIG, QUANTIZATION, Beside, Load
from stages.outline import Family, FamilyHooks

BLOCK = 1 << 16  # values that are made at once, each block from a counter of its own
RANGE = 0.02  # where config.json says no initializer_range: what transformers takes
DTYPES = {"fp32": "F32", "bf16": "BF16"}


@dataclass(frozen=True)
class Init(Load):
    """The checkpoint that a config.json describes, with fresh weights: normal ones of its initializer_range, but for
    what begins as a constant. Of the source only config.json and what lies beside it is read; where the source has
    weights, they stay where they are.

    Attributes:
        config: keys of config.json that are to be otherwise; null leaves one out.
        dtype: of the weights: `fp32`, or `bf16`.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    dtype: Literal["fp32", "bf16"] = "fp32"

    def run(self, ctx: Context) -> Checkpoint:
        """
        Raises:
            SourceError: no such source, or no config.json there.
            PlanError: config.json misses or contradicts something, or is of a model that nobody knows.
        """
        with of_source(f"model.source={self.source!r:.300}"):
            return self._fresh(ctx, ctx.seed)

    def _fresh(self, ctx: Context, seed: int) -> Checkpoint:
        found = self._found(replace(ctx, fetch=False))
        path = found.path if found.path.suffix == ".json" else found.path / CONFIG
        if not path.is_file():
            raise SourceError(f"{path}: there is no such file, and fresh weights need it")
        beside = Beside(path.parent)
        config = {**beside.config(path.name), **self.config}
        config = {k: v for k, v in config.items() if v is not None and k != QUANTIZATION}
        self._of_the_chosen_model(config.get("model_type"))
        family = self._family(config)
        shapes = {n: p.shape[1:] if p.stack else p.shape for p in family.parameters(config) for n in p.names}
        specs = {name: TensorSpec(shape, DTYPES[self.dtype]) for name, shape in shapes.items()}
        spread = config.get("initializer_range", RANGE)
        if not isinstance(spread, int | float) or not 0 <= spread < float("inf"):
            raise PlanError([Problem("config.json initializer_range", f"{spread!r:.80}: a number from 0 is needed")])
        carried = self._carried(path.parent, set()) if path.name == CONFIG else {}
        return Checkpoint(
            store=FreshStore(specs, seed, float(spread), dict(optional(family, FamilyHooks, "constants"))),
            config=config,
            files=carried,
            inputs=(*(small_input(p) for p in dict.fromkeys(carried.values())), *beside.inputs.values()),
            stored=dict.fromkeys(specs, 0),
            origin=f"fresh weights, seed {seed}",
            source=path.parent.absolute(),
            opener=self._open,
        )

    def _family(self, config: Mapping[str, Any]) -> Family:
        kind = config.get("model_type")
        for family in self.families:
            if kind in family.model_types:
                return family
        known = did_you_mean(str(kind), [t for f in self.families for t in f.model_types])
        raise PlanError([Problem("config.json model_type", f"no family knows {kind!r:.80}{known}")])


@dataclass(frozen=True)
class FreshStore:
    """A `TensorStore` of values that are made when they are read.

    Attributes:
        seed: of all of them.
        spread: standard deviation of those that are random.
        constants: pattern of names → what tensors of such a name begin as; the first that matches counts.
    """

    specs: Mapping[str, TensorSpec]
    seed: int
    spread: float
    constants: Mapping[str, float]

    @property
    def metadata(self) -> Mapping[str, Any]:
        return {}

    def seeded(self, seed: int) -> "FreshStore":
        """See `StoreHooks.seeded`."""
        return replace(self, seed=seed)

    def read(self, name: str, index: Index = ()) -> Any:
        """See `TensorStore.read`."""
        spec = self.specs[name]
        box = normalize(index, spec.shape)
        dtype = numpy_dtype(spec.dtype)
        constant = next((value for pattern, value in self.constants.items() if fnmatchcase(name, pattern)), None)
        if constant is not None:
            return np.full([s.stop - s.start for s in box], constant, dtype)
        # What lies between the first and the last value of the box is made, as it lies in one piece.
        outer = next((d for d, s in enumerate(box) if s.stop - s.start != 1), len(box))
        inner = prod(spec.shape[outer + 1 :])
        begin = sum(s.start * prod(spec.shape[d + 1 :]) for d, s in enumerate(box[: outer + 1]))
        sides = [s.stop - s.start for s in box[: outer + 1]]
        values = self._values(name, begin, prod(sides) * inner).reshape((*sides, *spec.shape[outer + 1 :]))
        rest: Any = (*(slice(None) for _ in sides), *box[outer + 1 :])
        part = values[rest]
        return np.ascontiguousarray((part * np.float32(self.spread)).astype(dtype)).reshape(
            [s.stop - s.start for s in box]
        )

    def _values(self, name: str, begin: int, count: int) -> np.ndarray:
        """Normal values, float32, from `begin` of the tensor's."""
        key = int(identity(["fresh", self.seed, name]), 16)
        first, last = begin // BLOCK, -(-(begin + count) // BLOCK)
        made = [
            np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, block])).standard_normal(BLOCK, np.float32)
            for block in range(first, last)
        ]
        return np.concatenate(made)[begin - first * BLOCK :][:count] if made else np.empty(0, np.float32)
