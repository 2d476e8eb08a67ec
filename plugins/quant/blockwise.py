"""Any block scheme by any recipe that means something: integers, FP8, NVFP4, NF4, ggml's blocks, and yours.

What the usual names stand for is in conf/quant: constants over these fields.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from pipeline.errors import ConfigError, PlanError, Problem, did_you_mean
from pipeline.ops import Call, Kernel
from pipeline.rules import Rule
from pipeline.settings import LARGEST
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import ELEMENT_BITS, SCALE_DTYPES, SECONDS, STRUCTS, ZEROS, Scheme
from pipeline.tensors.spec import TensorSpec
from plugins.kernels.codecs import scales
from plugins.kernels.codecs.blocks import matrix_extremes
from plugins.kernels.codecs.elements import element
from plugins.kernels.quantize import Nonfinite, ScaleRule, Ties, Tiny, Zero
from plugins.kernels.quantize.recipe import CodesFrom, Overflow, Quotient, Recipe, Search, ZeroBlock
from plugins.kernels.quantize.scratch import scratch_nbytes
from plugins.quant import nvfp4
from plugins.quant.exact import recode_exactly
from plugins.quant.like import Like, filled

MOST_FACTOR = 100  # on a scale: codes have 8 bits at most, and the best factors lie about 1


@dataclass(frozen=True)
class Blockwise:
    """A method that needs nothing but the weights.

    Attributes:
        element, block_elems, block_rows, scale, zero_point, second: the scheme: what the bytes mean; see
            pipeline.tensors.scheme. `zero_point` is the scheme's `zero`.
        narrower: for rows that blocks of `block_elems` do not divide: the first of these that does, and divides those.
        rules: see `pipeline.method.MethodHooks`.
        scale_rule … seed: how they are made; see plugins/kernels/quantize. None: what `like` does, else the default.
        like: do it as this library does.
        quantize, dequantize: the kernels that do the work.
    """

    element: str
    block_elems: int
    scale: str
    block_rows: int = 1
    zero_point: str | None = None
    second: str | None = None
    scale_rule: ScaleRule | None = None
    ties: Ties | None = None
    zero: Zero | None = None
    nonfinite: Nonfinite = "error"
    overflow: Overflow = "error"
    tiny: Tiny | None = None
    quotient: Quotient | None = None
    codes_from: CodesFrom | None = None
    least_scale: float | None = None
    zero_scale: float | None = None
    zero_block: ZeroBlock | None = None
    search: Search = "none"
    search_steps: int = 1
    search_grid: tuple[float, ...] = ()
    stochastic: bool = False
    seed: int = 0
    like: Like | None = None
    narrower: tuple[int, ...] = ()
    rules: tuple[Rule, ...] = ()
    quantize: Kernel = field(default_factory=partial(Kernel, "quantize", ("numpy", "reference")))
    dequantize: Kernel = field(default_factory=partial(Kernel, "dequantize", ("numpy",)))

    def __post_init__(self) -> None:
        if self.element in STRUCTS:
            raise ConfigError(f"element {self.element} is a struct of ggml, which plugins.quant.structs.Structs makes")
        if problems := list(self._problems()):
            raise PlanError(problems, exit_code=ConfigError.exit_code)
        if problem := self.recipe.problem(self.scheme):
            raise ConfigError(problem)

    def _problems(self) -> Iterator[Problem]:
        """What is wrong with fields by themselves, under the names that they have here."""
        known: dict[str, Iterable[str]] = {
            "element": ELEMENT_BITS, "scale": SCALE_DTYPES, "zero_point": ZEROS, "second": SECONDS,
        }  # fmt: skip
        for name, choices in known.items():
            given = getattr(self, name)
            if given is not None and given not in choices:
                yield Problem(name, f"{given!r} is not a choice{did_you_mean(given, choices, 30)}")
        for name in ("block_elems", "block_rows"):
            if not 0 <= (elems := getattr(self, name)) <= LARGEST:
                yield Problem(name, f"{elems}: 0, which means all, to {LARGEST:,} is allowed")
        if any(not 1 <= elems <= LARGEST for elems in self.narrower):
            yield Problem("narrower", f"{[*self.narrower]}: blocks of 1 column or more are allowed")
        if any(not 0 < factor < MOST_FACTOR for factor in self.search_grid):
            yield Problem("search_grid", f"{[*self.search_grid]}: factors above 0 and below {MOST_FACTOR} are allowed")
        for name in ("least_scale", "zero_scale"):
            if (scale := getattr(self, name)) is not None and scale < 0:
                yield Problem(name, f"{scale}: 0 or more is allowed")
        if not 0 <= self.seed < 2**63:
            yield Problem("seed", f"{self.seed}: a whole number from 0 to 2^63-1 is allowed")

    def fitted(self, shape: tuple[int, ...]) -> "Blockwise":
        """See `pipeline.method.MethodHooks`: with the first of `narrower` that fits, where `block_elems` does not."""
        parts = [n for n in self.narrower if n < self.block_elems and self.block_elems % n == 0]
        tried = [replace(self, block_elems=elems) for elems in parts] if self.scheme.problem(shape) else []
        return next((m for m in tried if m.scheme.problem(shape) is None), self)

    @cached_property
    def scheme(self) -> Scheme:
        return Scheme(self.element, self.block_elems, self.scale, self.block_rows, self.zero_point, self.second)

    @cached_property
    def recipe(self) -> Recipe:
        """All options of the op, those left open filled in."""
        given = {f.name: getattr(self, f.name) for f in fields(Recipe)}
        return Recipe(**filled(self.like, given, self.scheme))

    @cached_property
    def _options(self) -> dict[str, Any]:
        """The recipe as the op takes it."""
        return {f.name: getattr(self.recipe, f.name) for f in fields(Recipe)}

    @property
    def needs_extremes(self) -> bool:
        """A second-level scale, and a scale that all rows share, depend on all rows."""
        return self.second in ("f32", "inverse_f32") or self.block_rows == 0

    @property
    def cuts_rows(self) -> bool:
        """Whether a row that shares a scale may come in parts."""
        return self.recipe.cuts_rows(self.scheme)

    @property
    def needs_place(self) -> bool:
        """Random numbers belong to places in the tensor."""
        return self.stochastic

    @cached_property
    def steps(self) -> Mapping[str, "Blockwise"]:
        """See `pipeline.method.MethodHooks`."""
        given = {f.name: getattr(self, f.name) for f in fields(Blockwise)}
        nearest = Blockwise(**{**given, "search": "none"})
        return {"nearest": nearest} if self.search == "none" else {"nearest": nearest, "search": Blockwise(**given)}

    def scratch(self, shape: tuple[int, ...]) -> int:
        """Bytes that `encode` takes for what it must see at once, of a tensor of `shape`."""
        searches = self.recipe.search != "none"
        return scratch_nbytes(self.scheme, shape, self.quantize.backends, cuts_rows=self.cuts_rows, searches=searches)

    def encode(
        self, x: Any, *, measure: bool = False, observed: Any = None, rows: Any = None, place: Any = None,
        importance: Any = None,
    ) -> Any:  # fmt: skip
        """`x` `[..., n]` as a QTensor; with `measure`, which `pipeline.measured` asks of this class alone,
        (QTensor, ErrorStats): the kernels measure in the same pass.

        Args:
            observed: Extremes of the matrices that `x` is a part of; None when it holds them whole.
            rows: Extremes of the bands of `block_rows` rows that `x` is a part of; None when it holds them whole.
            place: (name, shape of the tensor, where `x` starts in it), for stochastic rounding; None: `x` is all of it.
            importance: fp32 `[..., n]`, what squared errors of columns count in a search; None: all the same.

        Raises:
            ValueRangeError: a NaN or an infinity, unless `nonfinite` is "poison"; a scale past its encoding.
        """
        options = dict(self._options)
        if self.stochastic:
            options["place"] = place or ("", x.shape, (0,) * x.ndim)
        if importance is not None:
            options["importance"] = importance
        return self.quantize(x, self.scheme, measure=measure, observed=observed, rows=rows, **options)

    def calls(self, name: str, spec: TensorSpec) -> Iterator[Call]:
        """The kernel calls that encoding the tensor `name` makes, which is stored as `spec`."""
        if spec.scheme is not None:
            yield Call(self.dequantize, name, {"q": spec, "dtype": "F32"})
            spec = TensorSpec(spec.shape, "F32")
        yield Call(self.quantize, name, {"x": spec, "scheme": self.scheme, **self._options})

    def recode(self, q: QTensor) -> QTensor:
        """`q` in this scheme with exactly its values; NotLossless when that cannot be."""
        return nvfp4.recode(q, self.scheme) if nvfp4.applies(q.scheme, self.scheme) else recode_exactly(self, q)

    def decode(self, q: QTensor, dtype: str = "BF16", *, overflow: str = "error") -> Any:
        """The values of `q` as an array of `dtype` (BF16, F32 or F16)."""
        return self.dequantize(q, dtype, overflow=overflow)


def searching(method: Blockwise, grid: tuple[float, ...], steps: int) -> Blockwise:
    """`method` with a search for scales, of these factors or so many powers of two to each side; one that has a search
    of its own as it is.

    Symmetric integers then use all their codes (`half_range`), where nothing says how scales are made.
    """
    if method.search != "none":
        return method
    s, rule = method.scheme, method.scale_rule
    usual = rule is None and method.like is None
    if usual and element(s.element).family == "fixed" and s.zero is None and s.scale != "e8m0":
        rule = "half_range"
    return replace(method, search="mse", search_grid=grid, search_steps=steps, scale_rule=rule)


def matrix_scale(x: Any, lead: tuple[int, ...], scheme: Scheme, observed: Any) -> Any:
    """The second-level scale of one matrix of `x` as it is stored; None where the scheme has none.

    Args:
        lead: which matrix.
        observed: the extremes of all matrices, where they are known.
    """
    if scheme.second is None:
        return None
    ends = matrix_extremes(x[lead]) if observed is None else (observed.low[lead], observed.high[lead])
    return scales.matrix_scale(np.maximum(*map(np.abs, ends)).astype(np.float32), scheme)
