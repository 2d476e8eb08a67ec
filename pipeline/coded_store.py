"""Tensors that are quantized, or unpacked, where they are read: what `quantize` gives, before anybody reads."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import Any, Literal

import numpy as np

from pipeline import gained, meter
from pipeline.calibration import Statistics
from pipeline.errors import StageError, ValueRangeError
from pipeline.gained import NEAREST, Past
from pipeline.hooks import optional
from pipeline.learned import Learned
from pipeline.measured import encoded, lost
from pipeline.method import Method, MethodHooks
from pipeline.ops import Kernel
from pipeline.tensors.blocks import block_grain, common, outward, scratch_of, whole_blocks
from pipeline.tensors.matrices import ExtremesOf, scanned
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.stats import Gain
from pipeline.tensors.store import Index, TensorStore, checked, normalize
from pipeline.tensors.store_view import StoreView


@lru_cache(maxsize=4096)
def _coded(shape: tuple[int, ...], dtype: str, scheme: Scheme | None) -> TensorSpec:
    """Layers are alike."""
    return TensorSpec(shape, dtype, scheme)


@dataclass(frozen=True)
class CodedStore(StoreView):
    """The lazy view: encode (or, for a method without a scheme, decode) the named tensors box by box.

    Attributes:
        store: what is read.
        methods: tensor → its method.
        measure: add up what encoding loses, and what each step gained where a method looks at activations.
        unpack: decodes what was encoded, where that is measured.
        plain: what tensors become that are unpacked: `bf16`, or `keep`, the fp32 values that they decode to.
        statistics: of what the tensors are multiplied by, for methods that look at that; None: there are none.
        pasts: of tensors that were changed before, what they would be had they been rounded before that, in order.
        learned: codes and scales that take the place of those that methods make.
        extremes: of whole matrices and rows, for methods that need them.
    """

    store: TensorStore
    methods: Mapping[str, Method]
    measure: bool
    plain: Literal["bf16", "keep"] = "bf16"
    unpack: Kernel = field(default_factory=partial(Kernel, "dequantize", ("numpy",)))
    statistics: Statistics | None = None
    pasts: tuple[Past, ...] = ()
    learned: Learned | None = None
    extremes: ExtremesOf = field(default_factory=ExtremesOf, compare=False, repr=False)

    @cached_property
    def specs(self) -> Mapping[str, TensorSpec]:
        plain, specs = "F32" if self.plain == "keep" else "BF16", self.store.specs
        coded = {
            n: _coded(specs[n].shape, "BF16" if m.scheme is not None else plain, m.scheme)
            for n, m in self.methods.items()
        }
        return {n: coded.get(n, spec) for n, spec in specs.items()}

    def grain(self, name: str) -> tuple[int, ...]:
        """As of the source and of the scheme; whole rows, where a scale that they share wants to see them."""
        found, method = super().grain(name), self.methods.get(name)
        if method is None or method.scheme is None:
            return found
        shape = self.specs[name].shape
        found = common(found, block_grain(method.scheme, shape))
        if (
            method.scheme.block_elems == 0
            and method.scheme.block_rows
            and not optional(method, MethodHooks, "cuts_rows")
        ):
            found = (*found[:-1], max(1, shape[-1]))
        if name in self.methods and optional(method, MethodHooks, "needs_statistics") == "hessian":
            # A column makes good what others lost; and what is made of a Hessian first, is made once a matrix.
            found = (*found[:-2], *(max(1, n) for n in shape[-2:]))
        elif self._of(name):  # outputs are of whole rows
            found = (*found[:-1], max(1, shape[-1]))
        return found

    def _of(self, name: str) -> list[Past]:
        """Where a tensor was changed before, and that is measured."""
        return [past for past in self.pasts if self.measure and name in past.names]

    def _looks_back(self, name: str, method: Method) -> bool:
        """Whether what steps gained is measured."""
        looks = bool(optional(method, MethodHooks, "needs_statistics"))
        return self.measure and (bool(self._of(name)) or (looks and len(optional(method, MethodHooks, "steps")) > 1))

    def scratch(self, name: str) -> int:
        """What the method takes to make codes, beside what the source does; and after that what steps gained."""
        method, below = self.methods.get(name), super().scratch(name)
        if method is None or method.scheme is None:
            return below
        asked, shape, past = optional(method, MethodHooks, "scratch"), self.specs[name].shape, self._of(name)
        own = asked(shape) if asked is not None else 0
        if not self._looks_back(name, method):
            return below + own
        products = bool(past) or optional(method, MethodHooks, "needs_statistics") == "hessian"
        before = max((scratch_of(p.store, name) for p in past), default=0)
        return max(below + own, before, gained.scratch_nbytes(shape, products=products))

    def read(self, name: str, index: Index = ()) -> Any:
        """
        Raises:
            IndexError: a box that cuts a block.
            ValueRangeError: a value that the scheme cannot hold; says the tensor and the place.
        """
        method = self.methods.get(name)
        if method is None:
            return self.store.read(name, index)
        spec = self.specs[name]
        box = normalize(index, spec.shape)
        if spec.scheme is not None:
            whole_blocks(spec.scheme, spec.shape, box)
        outer = outward(box, spec.shape, block_grain(self.store.specs[name].scheme, spec.shape))
        value = self.store.read(name, outer)
        if isinstance(value, QTensor):
            # What is encoded again is encoded, and its error measured, from what was held exactly.
            value = method.decode(value, "F32" if spec.scheme is not None else spec.dtype)
        if outer != box:  # the source has larger blocks
            value = value[tuple(slice(b.start - o.start, b.stop - o.start) for b, o in zip(box, outer, strict=True))]
        if spec.scheme is None:
            return checked(value, spec, box, name)
        if self.learned is not None and name in self.learned:
            return self._learned(self.learned, name, box, value)
        try:
            wider = self._wider(method, name, box)
            if self.measure:
                coded, stats = encoded(method, value, self.unpack, **wider)
                meter.error(name, stats)
                if self._looks_back(name, method):
                    meter.gained(name, self._gain(method, name, box, value, coded))
            else:
                coded = method.encode(value, **wider)
        except ValueRangeError as why:
            at = ",".join(f"{s.start}:{s.stop}" for s in box)
            raise ValueRangeError(f"{name}[{at}]: {why}") from None
        return checked(coded, spec, box, name)

    def _learned(self, learned: Learned, name: str, box: tuple[slice, ...], value: Any) -> Any:
        """What was learned of a box, with what is lost by it; what the steps gained comes with its beginning."""
        coded = learned.read(name, self.specs[name], box)
        if self.measure:
            meter.error(name, lost(value, coded, self.unpack))
            if all(s.start == 0 for s in box) and (gain := learned.gain(name)) is not None:
                meter.gained(name, gain)
        return checked(coded, self.specs[name], box, name)

    def _gain(self, method: Method, name: str, box: tuple[slice, ...], value: Any, coded: QTensor) -> Gain:
        """What is lost of outputs after each step, of a box that was just encoded."""
        known = None if self.statistics is None else self.statistics.of(name)
        if known is not None:
            known = known.of(box[:-2], box[-1])
            if not self._of(name) and optional(method, MethodHooks, "needs_statistics") != "hessian":
                known = replace(known, hessian=None)  # it looks at no products, and the box may cut columns
        after = self._steps(method, name, box, value, coded)
        return gained.gain(after, np.asarray(value).astype(np.float32), known)

    def _steps(
        self, method: Method, name: str, box: tuple[slice, ...], value: Any, coded: QTensor
    ) -> Iterator[tuple[str, Any]]:
        """Each step, and the values after it."""
        called = NEAREST
        for past in self._of(name):
            yield called, np.asarray(past.store.read(name, box)).astype(np.float32)
            called = past.called
        steps = {**optional(method, MethodHooks, "steps")} or {NEAREST: method}
        for i, (step, by) in enumerate(steps.items()):
            last = i == len(steps) - 1
            rounded = coded if last else by.encode(value, **self._wider(by, name, box))
            yield step if i else called, np.asarray(self.unpack(rounded, "F32"))

    def read_nbytes(self, name: str, boxes: Sequence[Index]) -> int:
        """With what is read to see what these boxes are a part of, once a process."""
        spec, method = self.specs[name], self.methods.get(name)
        wanted = [normalize(box, spec.shape) for box in boxes]
        if method is None:
            return super().read_nbytes(name, wanted)
        grain = block_grain(self.store.specs[name].scheme, spec.shape)
        read = [outward(box, spec.shape, grain) for box in wanted]
        if method.scheme is not None and method.needs_extremes:
            read += scanned(spec.shape, wanted)
        if (rows := _rows(method)) is not None:
            read += scanned(spec.shape, wanted, rows)
        return super().read_nbytes(name, read)

    def _wider(self, method: Method, name: str, box: tuple[slice, ...]) -> dict[str, Any]:
        """What a method must know of the whole tensor, when the box is only part of it."""
        more: dict[str, Any] = {}
        if method.needs_extremes:
            more["observed"] = self.extremes.box(self.store, name, box, method.decode)
        if (rows := _rows(method)) is not None:
            more["rows"] = self.extremes.bands(self.store, name, box, rows, method.decode)
        if optional(method, MethodHooks, "needs_place"):
            more["place"] = (name, self.store.specs[name].shape, tuple(s.start for s in box))
        if optional(method, MethodHooks, "needs_statistics"):
            found = None if self.statistics is None else self.statistics.of(name)
            if found is None:
                raise StageError(f"{name}: was to be quantized by what it is multiplied by, of which nothing is known")
            more["statistics"] = found.of(box[:-2], box[-1])
        return more


@dataclass(frozen=True)
class Unpacked:
    """The lazy transform of packed tensors into the values that they stand for.

    Attributes:
        names: which.
        unpack: decodes them.
        dtype: of the values: F32, or BF16.
    """

    names: frozenset[str]
    unpack: Kernel
    dtype: str = "F32"

    def spec(self, name: str, spec: TensorSpec) -> TensorSpec:
        return replace(spec, dtype=self.dtype, scheme=None) if name in self.names else spec

    def apply(self, name: str, value: Any, index: Index) -> Any:
        return self.unpack(value, self.dtype) if name in self.names else value


def _rows(method: Method) -> int | None:
    """How many rows share a scale with all of what they are cut from; None: that is not so, or it sees them whole."""
    scheme = method.scheme
    if scheme is None or scheme.block_elems or not optional(method, MethodHooks, "cuts_rows"):
        return None
    return scheme.block_rows
