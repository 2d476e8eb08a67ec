"""Transcode: change how packed tensors are packed, never what they hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from pipeline import meter
from pipeline.errors import NotLossless, PlanError, Problem
from pipeline.measured import encoded
from pipeline.method import Method, fitted
from pipeline.ops import Kernel
from pipeline.stage import Checkpoint, Context
from pipeline.tensors.blocks import Box, part_of
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.store import Index, TensorStore, checked, normalize
from pipeline.tensors.store_view import StoreView


@dataclass(frozen=True)
class Transcode:
    """Recode every packed tensor to the method's scheme where that is exact; plain tensors pass as they are stored.

    With a method that has no scheme (quant=none) nothing is recoded: only naming and packing change, by the export.

    Attributes:
        method: its scheme is the target; its way of making codes is used only where requantizing is allowed.
        allow_requantize: where a tensor does not fit exactly, quantize its values again and report the error.
        unpack: decodes what was quantized again, to measure the error of methods that are not ours.
    """

    method: Method
    allow_requantize: bool = False
    unpack: Kernel = field(default_factory=partial(Kernel, "dequantize", ("numpy",)))

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        """
        Raises:
            PlanError: a packed tensor whose shape the scheme cannot hold; or no tensor is packed.
        """
        scheme = self.method.scheme
        if scheme is None:
            return checkpoint
        if not any(s.scheme for s in checkpoint.store.specs.values()):
            wanted, count = TensorSpec((), "BF16", scheme).encoding, len(checkpoint.store.specs)
            text = (
                f"asks for {wanted}, and none of the {count} tensors is packed: transcoding changes "
                "how values are packed and makes no codes; flow=convert quantizes, and quant=none changes naming only"
            )
            raise PlanError([Problem("quant", text)])
        packed = {n: s for n, s in checkpoint.store.specs.items() if s.scheme is not None}
        found = {n: fitted(self.method, s.shape) for n, s in packed.items()}
        todo = {n: m for n, m in found.items() if m.scheme != packed[n].scheme}
        problems = [
            Problem(n, why)
            for n, m in todo.items()
            if m.scheme is not None and (why := m.scheme.problem(packed[n].shape))
        ]
        if problems:
            raise PlanError(problems)
        if not todo:
            return checkpoint
        return replace(checkpoint, store=Recoded(checkpoint.store, todo, self.allow_requantize, self.unpack))


@dataclass(frozen=True)
class Recoded(StoreView):
    """The lazy view behind `Transcode`: tensors of `methods` in the scheme of theirs."""

    store: TensorStore
    methods: Mapping[str, Method] = field(repr=False)
    allow_requantize: bool
    unpack: Kernel

    @cached_property
    def specs(self) -> Mapping[str, TensorSpec]:
        specs, methods = self.store.specs, self.methods
        return {n: replace(s, scheme=methods[n].scheme) if n in methods else s for n, s in specs.items()}

    def grain(self, name: str) -> tuple[int, ...]:
        """A scale may depend on the whole matrix, so whole matrices are recoded (packed, they are small)."""
        found = super().grain(name)
        if name not in self.methods:
            return found
        return (*found[:-2], *(max(1, n) for n in self.specs[name].shape[-2:]))

    def read_nbytes(self, name: str, boxes: Sequence[Index]) -> int:
        if name not in self.methods:
            return super().read_nbytes(name, boxes)
        return super().read_nbytes(name, [_wide(normalize(b, self.specs[name].shape), self.specs[name]) for b in boxes])

    def read(self, name: str, index: Index = ()) -> Any:
        """
        Raises:
            NotLossless: the scheme cannot hold these values exactly, and requantizing is not allowed.
        """
        if name not in self.methods:
            return self.store.read(name, index)
        spec = self.specs[name]
        box = normalize(index, spec.shape)
        packed = self.store.read(name, _wide(box, spec))
        method = self.methods[name]
        try:
            recoded = method.recode(packed)
        except NotLossless as why:
            if not self.allow_requantize:
                raise NotLossless(
                    f"{name}: {why}; allow_requantize=true quantizes it again and reports the error"
                ) from None
            recoded, stats = encoded(method, method.decode(packed, "F32"), self.unpack)
            meter.error(name, stats)
        within = (*(slice(0, s.stop - s.start) for s in box[:-2]), *box[-2:])
        return checked(part_of(recoded, within), spec, box, name)


def _wide(box: Box, spec: TensorSpec) -> Box:
    """Whole matrices."""
    return (*box[:-2], *(slice(0, n) for n in spec.shape[-2:]))
