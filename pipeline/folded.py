"""A checkpoint some of whose channels are scaled: less in one tensor, more in those that multiply it, the same model.

Factors lie in a file, one array a source; the tensors that they change are changed where they are read. A norm keeps
its dtype: its new weights are rounded first, and the factors are what that makes of them, so nothing is lost. All other
tensors become fp32, so that what is quantized is rounded once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.calibration import LinearStatistics, Statistics
from pipeline.ops import Kernel
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import TensorSpec, numpy_dtype
from pipeline.tensors.store import Index
from pipeline.topology import Channels


def settled(factors: Any, norm: Any, *, plus_one: bool) -> tuple[Any, Any]:
    """A norm's weights divided by `factors`, rounded to their dtype, and the factors that they are divided by exactly.

    Args:
        factors: fp32 [n], positive.
        norm: the weights, [n].
        plus_one: the norm multiplies by 1 + weight.

    Returns:
        (weights in their dtype, factors fp32). A channel that is always 0, or would become so, keeps its weight.
    """
    one = np.float64(plus_one)
    was = norm.astype(np.float64) + one
    new = (was / factors - one).astype(np.float32).astype(norm.dtype)
    is_ = new.astype(np.float64) + one
    with np.errstate(divide="ignore", invalid="ignore"):
        exact = was / is_
    stays = ~np.isfinite(exact) | (exact <= 0)
    new[stays], exact[stays] = norm[stays], 1
    return new, exact.astype(np.float32)


@dataclass(frozen=True)
class Scaled:
    """The lazy transform; see `pipeline.tensors.views.Transform`.

    Attributes:
        found: the channels that have factors.
        place: the file that has them, `np.savez` with SOURCE/factors, and SOURCE/norm where the source is one; None: a
            plan's, which reads nothing.
        unpack: decodes what is packed.
    """

    found: tuple[Channels, ...]
    place: Path | None
    unpack: Kernel

    @cached_property
    def columns(self) -> Mapping[str, Channels]:
        """Consumer → the channels it multiplies."""
        return {name: c for c in self.found for name in c.consumers}

    @cached_property
    def rows(self) -> Mapping[str, Channels]:
        """Source, or its bias, → its channels."""
        return {name: c for c in self.found for name in (c.source, c.bias) if name is not None}

    @cached_property
    def _arrays(self) -> dict[str, Any]:
        """Those that were asked for."""
        return {}

    def array(self, key: str) -> Any:
        if key not in self._arrays:
            assert self.place is not None
            with np.load(self.place) as kept:
                self._arrays[key] = kept[key]
        return self._arrays[key]

    def spec(self, name: str, spec: TensorSpec) -> TensorSpec:
        if name not in self.columns and name not in self.rows:
            return spec
        is_norm = name in self.rows and name == self.rows[name].source and len(spec.shape) == 1
        return spec if is_norm else replace(spec, dtype="F32", scheme=None)

    def apply(self, name: str, value: Any, index: Index) -> Any:
        if name not in self.columns and name not in self.rows:
            return value
        if isinstance(value, QTensor):
            value = self.unpack(value, "F32")
        own = self.rows.get(name)
        if own is not None and name == own.source and value.ndim == 1:
            return self.array(f"{name}/norm")[index].astype(value.dtype)
        value = value.astype(np.float32)
        if own is not None:
            factors = self.array(f"{own.source}/factors")[index[0]]
            value = value / (factors if value.ndim == 1 else factors[:, None])
        if (into := self.columns.get(name)) is not None:
            value = value * into.spread(self.array(f"{into.source}/factors"))[index[-1]]
        return value


@dataclass(frozen=True)
class Narrowed:
    """The lazy transform of fp32 tensors into bf16, rounded to nearest even: of what was folded and stays plain.

    Attributes:
        names: which.
    """

    names: frozenset[str]

    def spec(self, name: str, spec: TensorSpec) -> TensorSpec:
        return replace(spec, dtype="BF16") if name in self.names else spec

    def apply(self, name: str, value: Any, index: Index) -> Any:
        return value.astype(numpy_dtype("BF16")) if name in self.names else value


@dataclass(frozen=True)
class ScaledStatistics:
    """What consumers are multiplied by when their channels are divided by the factors: `Statistics` of a `Scaled`."""

    statistics: Statistics
    scaled: Scaled

    def __contains__(self, name: object) -> bool:
        return name in self.statistics

    def of(self, name: str) -> LinearStatistics | None:
        """See `pipeline.calibration.Statistics`."""
        found, into = self.statistics.of(name), self.scaled.columns.get(name)
        if found is None or into is None:
            return found
        by = into.spread(self.scaled.array(f"{into.source}/factors"))
        whole, rows = found.hessian, found.sample

        def hessian(*expert: int) -> Any:
            assert whole is not None
            return whole(*expert) / np.outer(by, by)

        def sample(*expert: int) -> Any:
            assert rows is not None
            return rows(*expert) / by

        return replace(
            found,
            mean_square=found.mean_square / (by * by),
            absmax=found.absmax / by,
            hessian=None if whole is None else hessian,
            sample=None if rows is None else sample,
        )
