"""How codes are made: the options of the `quantize` op, and which of them mean something for which scheme."""

import math
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Literal, get_args, get_type_hints

from pipeline.errors import ConfigError, did_you_mean
from pipeline.tensors.scheme import Scheme
from plugins.kernels.codecs.elements import element

ScaleRule = Literal["floor", "ceil", "even", "rceil", "amax", "half_range", "signed", "minmax"]
Ties = Literal["even", "zero", "away", "down", "up"]
Zero = Literal["signed", "positive", "minus"]
Nonfinite = Literal["error", "poison"]
Overflow = Literal["error", "inf"]
Tiny = Literal["spec", "torchao"]
Quotient = Literal["divide", "reciprocal"]
CodesFrom = Literal["stored", "unrounded"]
Search = Literal["none", "mse"]
ZeroBlock = Literal["least", "middle"]

POWER_RULES = ("floor", "ceil", "even", "rceil")
SEARCH_ELEMS = 1 << 16  # the largest block whose scale is searched for, but for rows
MOST_STEPS = 254  # E8M0 has 255 scales


@dataclass(frozen=True, slots=True)
class Recipe:
    """The options; their meaning is in the op's docstring."""

    scale_rule: ScaleRule = "floor"
    ties: Ties = "even"
    zero: Zero = "signed"
    nonfinite: Nonfinite = "error"
    overflow: Overflow = "error"
    tiny: Tiny = "spec"
    quotient: Quotient = "divide"
    codes_from: CodesFrom = "stored"
    least_scale: float = 0.0
    zero_scale: float = 0.0
    zero_block: ZeroBlock = "least"
    search: Search = "none"
    search_steps: int = 1
    search_grid: tuple[float, ...] = ()
    stochastic: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name, choices in _choices().items():
            if (given := getattr(self, name)) not in choices:
                raise ConfigError(f"quantize {name} {given!r} is unknown{did_you_mean(str(given), choices)}")

        for name, given in [(n, getattr(self, n)) for n in ("least_scale", "zero_scale")]:
            if not 0 <= given < math.inf:
                raise ConfigError(f"quantize {name} {given}: a scale is 0 (no such floor) or a positive number")
        if not 1 <= self.search_steps <= MOST_STEPS:
            raise ConfigError(f"quantize search_steps {self.search_steps}: 1 to {MOST_STEPS} to each side are tried")
        object.__setattr__(self, "search_grid", tuple(self.search_grid))  # a list will do, and has no hash
        for factor in self.search_grid:
            if not 0 < factor < math.inf:
                raise ConfigError(f"quantize search_grid {factor}: factors of a scale are positive numbers")

    @property
    def is_narrow(self) -> bool:
        """Whether codes of integers are symmetric about 0, so that the most negative one is never written."""
        return self.scale_rule not in ("half_range", "signed")

    def cuts_rows(self, scheme: Scheme) -> bool:
        """Whether the extremes of a row that shares a scale say all that the scale must know of it.

        They do not where the first of several equal values counts (`signed`, a minimum that is ±0) or a sum (`search`).
        """
        shares = scheme.block_elems == 0 and scheme.block_rows > 0
        return shares and scheme.zero != "min_f16" and self.scale_rule != "signed" and self.search == "none"

    def problem(self, scheme: Scheme) -> str | None:
        """Why this recipe and `scheme` make no codec, or None."""
        e, rule = element(scheme.element), self.scale_rule
        if scheme.scale == "e8m0":
            if scheme.zero is not None or scheme.second is not None:
                return "power-of-two scales have neither zero points nor a second-level scale"
            if rule not in POWER_RULES:
                return f"scale_rule {rule} makes a real number, e8m0 scales need one of {', '.join(POWER_RULES)}"
            if rule == "even" and e.mantissa_bits is None:
                return f"scale_rule even rounds to mantissa bits, and {scheme.element} has none"
            if self.least_scale or self.zero_scale:
                return "least_scale and zero_scale are of real scales; of e8m0 the least, and a zero block's, is 2^-127"
        elif rule in POWER_RULES:
            return f"scale_rule {rule} makes a power of two for e8m0 scales; {scheme.scale} scales need {_real(scheme)}"
        if (rule == "minmax") != (scheme.zero is not None):
            return f"scale_rule {rule} with zero={scheme.zero}: minmax, and only it, gives a zero point or a minimum"
        if (
            rule in ("signed", "half_range")
            and e.family != "fixed"
            and not (rule == "half_range" and e.family == "float")
        ):
            return f"scale_rule {rule} is for integers, not for {scheme.element}"
        if rule == "signed" and (scheme.second is not None or scheme.block_rows == 0):
            return "scale_rule signed wants the first value of largest magnitude, which a whole matrix does not keep"
        if scheme.second in ("f32", "inverse_f32") and scheme.scale not in ("e4m3", "f16"):
            return f"second={scheme.second} maps the largest scale onto a narrow encoding, which {scheme.scale} is not"
        if scheme.second is not None and scheme.zero is not None:
            return "zero points and second-level scales do not go together"
        if scheme.block_rows == 0 and scheme.block_elems != 0:
            return "scales that all rows but not all columns share would need a scan of their own"
        return self._more(scheme, e)

    def _more(self, scheme: Scheme, e: Any) -> str | None:
        if self.tiny != "spec" and scheme.scale != "e8m0":
            return f"tiny={self.tiny} is about the least scale of e8m0; {scheme.scale} scales have no such case"
        if self.zero_block != "least" and scheme.zero != "int":
            return f"zero_block={self.zero_block} is where the zero point of a zero block lies; this scheme has none"
        if self.ties == "up" and e.family not in ("fixed", "unsigned"):
            return f"ties up is ggml's rounding of integers, not of {scheme.element}"
        if self.zero == "minus" and e.family != "float":
            return f"{scheme.element} has no negative zero"
        if scheme.second == "dynamic8" and (self.codes_from == "stored" or self.search != "none"):
            return "scales quantized across the tensor are known too late; codes_from must be unrounded, search none"
        if scheme.second is not None and self.nonfinite == "poison":
            return "one NaN would spoil a whole matrix through its second-level scale; nonfinite must be error"
        if self.codes_from == "unrounded" and (scheme.scale == "e8m0" or scheme.second in ("f32", "inverse_f32")):
            return "codes_from unrounded is for one level of real scales"
        if self.search == "none":
            return None
        if scheme.scale != "e8m0" and not self.search_grid:
            return "search=mse over real scales needs search_grid, factors to try"
        if scheme.block_rows == 0 or (scheme.block_elems == 0 and scheme.block_rows > 1):
            band = "a whole matrix" if scheme.block_rows == 0 else "a band of whole rows"
            return f"search=mse looks at one block after the other, and {band} is too large to be one"
        if scheme.block_rows * max(1, scheme.block_elems) > SEARCH_ELEMS:
            return f"search=mse wants blocks of at most {SEARCH_ELEMS} elements"
        if self.stochastic:
            return "search=mse looks at nearest codes, stochastic rounding takes others"
        return None


@cache
def _choices() -> dict[str, tuple[str, ...]]:
    """The options that are words, and the words; looked up once, as every chunk makes recipes."""
    found = {name: get_args(hint) for name, hint in get_type_hints(Recipe).items()}
    return {name: words for name, words in found.items() if words and isinstance(words[0], str)}


def _real(scheme: Scheme) -> str:
    return "minmax" if scheme.zero is not None else "amax, half_range or signed"


def checked(shape: tuple[int, ...], scheme: Scheme, options: dict[str, Any]) -> Recipe:
    """The recipe of these options.

    Raises:
        ConfigError: an option that does not exist, or that means nothing for the scheme; a shape it cannot store.
    """
    recipe = Recipe(**options)
    if problem := _of_struct(scheme, recipe) if scheme.is_struct else recipe.problem(scheme):
        raise ConfigError(f"quantize: {problem}")
    if problem := scheme.problem(shape):
        raise ConfigError(f"quantize: {problem}")
    return recipe


def _of_struct(scheme: Scheme, recipe: Recipe) -> str | None:
    for f in fields(recipe):
        if (given := getattr(recipe, f.name)) != f.default:
            return f"{f.name}={given}: a struct of ggml as {scheme.element} is made in one way, without such options"
    return None


def weighed(shape: tuple[int, ...], importance: Any, recipe: Recipe) -> None:
    """Raise ConfigError where `importance` is given and is not of the columns of a searched-for `shape`."""
    if importance is None:
        return
    if recipe.search != "mse":
        raise ConfigError("quantize importance: weighs the errors of a search, and search=none makes none")
    if (wanted := (*shape[:-2], shape[-1])) != tuple(importance.shape):
        raise ConfigError(f"quantize importance: of shape {[*importance.shape]}, where columns have {[*wanted]}")


def is_fast(scheme: Scheme, recipe: Recipe) -> bool:
    """Whether the tile codec of MXFP4 knows this: e2m1 in one row, e8m0, the rules it has thresholds for."""
    return (
        (scheme.element, scheme.scale, scheme.block_rows) == ("e2m1", "e8m0", 1)
        and scheme.block_elems > 0
        and scheme.block_elems % 2 == 0
        and recipe.ties in ("even", "zero", "away")
        and recipe.zero in ("signed", "positive")
        and recipe.search == "none"
        and not recipe.stochastic
    )
