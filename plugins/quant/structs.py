"""ggml's blocks that are structs, as llama.cpp has them: the k-quants Q2_K to Q6_K, and IQ4_NL, Q5_0 and Q5_1."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from typing import Any, ClassVar

from pipeline.errors import ConfigError, did_you_mean
from pipeline.ops import Call, Kernel
from pipeline.rules import Rule
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import INSIDE, STRUCTS, Scheme
from pipeline.tensors.spec import TensorSpec
from plugins.facts.ggml_mixes import FALLBACK, MIXES, mixed
from plugins.quant.blockwise import Blockwise
from plugins.quant.exact import recode_exactly

SIMPLE = {"q4_0": "int4", "q8_0": "int8"}  # of `FALLBACK` those that are no structs: blocks of 32 under an fp16 scale


@dataclass(frozen=True)
class Structs:
    """A method whose scales, and the codes under them, minimize squared errors that weigh as ggml's quantizer has it.

    Attributes:
        kind: a key of `pipeline.tensors.scheme.STRUCTS`.
        mix: some matrices get other kinds: a key of `plugins.facts.ggml_mixes.MIXES`; None: none do.
        rules: see `pipeline.method.MethodHooks`.
        quantize, dequantize: the kernels that do the work.
    """

    kind: str
    mix: str | None = None
    rules: tuple[Rule, ...] = ()
    quantize: Kernel = field(default_factory=partial(Kernel, "quantize", ("numpy", "reference")))
    dequantize: Kernel = field(default_factory=partial(Kernel, "dequantize", ("numpy",)))

    def __post_init__(self) -> None:
        if self.kind not in STRUCTS:
            raise ConfigError(f"kind {self.kind!r} is unknown{did_you_mean(self.kind, STRUCTS)}")
        if self.mix is not None and self.mix not in MIXES:
            raise ConfigError(f"mix {self.mix!r} is unknown{did_you_mean(self.mix, MIXES)}")

    @cached_property
    def scheme(self) -> Scheme:
        return Scheme(self.kind, STRUCTS[self.kind][0], INSIDE)

    @property
    def needs_extremes(self) -> bool:
        return False

    def fitted(self, shape: tuple[int, ...]) -> Any:
        """See `pipeline.method.MethodHooks`: what llama-quantize takes where rows are no whole super-blocks."""
        other = FALLBACK.get(self.kind)
        if other is None or not self.scheme.problem(shape):
            return self
        found: Structs | Blockwise = self._other(other)
        return self if found.scheme.problem(shape) else found

    def mixed(self, names: Iterable[str], specs: Mapping[str, TensorSpec]) -> Mapping[str, Any]:
        """See `pipeline.method.MethodHooks`."""
        found = {} if self.mix is None else mixed(self.mix, self.kind, names, specs)
        methods = {kind: self._other(kind) for kind in set(found.values())}
        return {name: methods[kind] for name, kind in found.items()}

    def _other(self, kind: str) -> "Structs | Blockwise":
        if kind in STRUCTS:
            return Structs(kind, rules=self.rules, quantize=self.quantize, dequantize=self.dequantize)
        return Blockwise(
            SIMPLE[kind], 32, "f16", like="ggml", rules=self.rules, quantize=self.quantize, dequantize=self.dequantize
        )

    def encode(self, x: Any, *, importance: Any = None) -> QTensor:
        """`x` `[..., n]` as a QTensor.

        Args:
            importance: fp32 `[..., n]` without the dimension of rows, mean squares of what columns are multiplied by;
                None: not known.

        Raises:
            ValueRangeError: a NaN or an infinity, or a factor past fp16.
        """
        found: QTensor = self.quantize(x, self.scheme, importance=importance)
        return found

    def calls(self, name: str, spec: TensorSpec) -> Iterator[Call]:
        """The kernel calls that encoding the tensor `name` makes, which is stored as `spec`."""
        if spec.scheme is not None:
            yield Call(self.dequantize, name, {"q": spec, "dtype": "F32"})
            spec = TensorSpec(spec.shape, "F32")
        yield Call(self.quantize, name, {"x": spec, "scheme": self.scheme})

    def recode(self, q: QTensor) -> QTensor:
        """`q` in this scheme with exactly its values; NotLossless when that cannot be."""
        return recode_exactly(self, q)

    def decode(self, q: QTensor, dtype: str = "BF16", *, overflow: str = "error") -> Any:
        """The values of `q` as an array of `dtype` (BF16, F32 or F16)."""
        return self.dequantize(q, dtype, overflow=overflow)


@dataclass(frozen=True)
class WeightedStructs(Structs):
    """The same with errors that weigh by what the model multiplies columns by."""

    needs_statistics: ClassVar[str] = "mean_square"

    @cached_property
    def steps(self) -> Mapping[str, Structs]:
        """See `pipeline.method.MethodHooks`: ggml's search that weighs by values alone stands for rounding."""
        return {"nearest": Structs(**{f.name: getattr(self, f.name) for f in fields(Structs)}), "imatrix": self}

    def encode(self, x: Any, *, statistics: Any = None, **more: Any) -> QTensor:
        """See `Structs.encode`.

        Args:
            statistics: the `pipeline.calibration.LinearStatistics` of `x`; None: as if nothing were known.
        """
        return super().encode(x, importance=None if statistics is None else statistics.mean_square, **more)

    @classmethod
    def of(cls, method: Structs) -> "WeightedStructs":
        return cls(**{f.name: getattr(method, f.name) for f in fields(Structs)})
