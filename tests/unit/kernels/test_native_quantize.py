"""quantize in C++: the bytes of the other backends with every instruction set, for every format, layout and recipe."""

import itertools
import random
from dataclasses import fields, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pipeline.backends import declines
from pipeline.errors import ConfigError, ValueRangeError
from pipeline.ops import Kernel, Request
from pipeline.tensors.matrices import Extremes
from pipeline.tensors.scheme import ELEMENT_BITS, SCALE_DTYPES, Scheme
from pipeline.tensors.spec import TensorSpec
from plugins.kernels.quantize.recipe import Recipe
from tests.cases.native import needs_compiler
from tests.unit.kernels.test_number_formats import NAMES, VARIANTS, built, same, spread

BF16 = ml_dtypes.bfloat16
DONE = [*NAMES, *VARIANTS]

pytestmark = [
    needs_compiler,
    pytest.mark.usefixtures("isa"),
]


def outcome(method: Any, backend: str, x: Any, **given: Any) -> Any:
    """(QTensor, ErrorStats), or what was said instead, less which of several blocks it was said of."""
    try:
        return replace(method, quantize=Kernel("quantize", (backend,))).encode(x, measure=True, **given)
    except ValueRangeError as why:
        return "a block" if str(why).startswith("a block") else str(why)


def agree(found: Any, want: Any, rtol: float = 3e-6) -> None:
    if isinstance(found, str) or isinstance(want, str):
        assert found == want
        return
    same(found[0], want[0])
    assert found[1].count == want[1].count
    np.testing.assert_allclose(found[1].to_json()[1:], want[1].to_json()[1:], rtol=rtol)


def every_bfloat16() -> Any:
    """Every finite pattern among its neighbours, then among any others: rows of 128."""
    patterns = np.arange(1 << 16, dtype=np.uint16)
    finite = patterns[(patterns & 0x7FFF) < 0x7F80]
    mixed = np.random.default_rng(1).permutation(finite)
    return np.resize(np.concatenate([finite, mixed]), (1021, 128)).view(BF16)


@pytest.mark.parametrize("name", DONE)
def test_every_bfloat16_in_every_format(name: str) -> None:
    x = every_bfloat16()
    method = replace(built(name), overflow="inf")
    if method.scheme.scale != "e8m0":  # other scales cannot follow that far
        low, high = (-14, 9) if method.scheme.scale in ("f16", "e4m3") else (-110, 110)
        exponent = (x.view(np.uint16) >> 7 & 0xFF).astype(int) - 127
        x = np.where((exponent > low) & (exponent < high), x, BF16(0))
    found, want = (outcome(method, backend, x) for backend in ("native", "numpy"))
    assert not isinstance(want, str), want
    agree(found, want)
    same(replace(method, quantize=Kernel("quantize", ("native",))).encode(x), want[0])  # codes alone


@pytest.mark.parametrize("name", DONE)
@pytest.mark.brief(each=("name",))
def test_layouts_and_dtypes(name: str) -> None:
    method = built(name)
    for dtype in (BF16, np.float16, np.float32):
        x = spread((2, 43, 640), -6, 3, 3, dtype)
        x[0, 3], x[1, 4, ::2] = 0, -0.0
        x[1, 5, 1::2] = np.round(x[1, 5, 1::2] * 4) / 4
        want = outcome(method, "numpy", x)
        turned = np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)
        shifted = np.frombuffer(b"x" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape)
        for y in (x, turned, np.repeat(x, 2, axis=2)[..., ::2], x[:, ::-1][:, ::-1], shifted):
            agree(outcome(method, "native", y), want)
        if method.block_rows == 1:
            agree(outcome(method, "native", x[0, 0]), outcome(method, "numpy", x[0, 0]))


@pytest.mark.parametrize("name", DONE)
def test_parts_of_what_shares_a_scale(name: str) -> None:
    method, x = built(name), spread((2, 24, 256), seed=3)
    if method.needs_extremes:
        box, given = np.s_[:, 8:16], {"observed": Extremes.of(x)}
    elif method.cuts_rows:
        box, given = np.s_[:, :, 128:], {"rows": Extremes(x.min(-1, keepdims=True), x.max(-1, keepdims=True))}
    else:
        pytest.skip("every box holds what it needs")
    agree(*(outcome(method, backend, x[box], **given) for backend in ("native", "numpy")))


@pytest.mark.parametrize("order", ["C", "F"])
def test_patterns_of_bfloat16_keep_to_what_rows_share(order: Any) -> None:
    """Parts of rows of one scale; a band of blocks of no power of two, whose rows float32 cannot add up; long sums."""
    x = np.array(spread((128, 256), -3, 3, 7), BF16)
    ends = Extremes(*(8 * end(x.astype(np.float32), -1, keepdims=True) for end in (np.min, np.max)))
    part, rows = np.array(x[:, :64], order=order), Scheme("e2m1", 0, "e8m0")
    band = np.ones((4, 192), BF16)
    band[0], band[1], band[3] = 1e-3, 2e14, 0
    for values, scheme, given in (
        (part, rows, {"rows": ends}),
        (np.array(band, order=order), replace(rows, block_elems=96, block_rows=2), {}),
        (np.array(spread((64, 32768), -1, 1, 7), BF16, order=order), rows, {}),
    ):
        found, want = (
            Kernel("quantize", (backend,))(values, scheme, measure=True, **given) for backend in ("native", "numpy")
        )
        agree(found, want)
        same(Kernel("quantize", ("native",))(values, scheme, **given), want[0])


@pytest.mark.parametrize("name", DONE)
@pytest.mark.brief(each=("name",))
def test_values_that_are_not_finite(name: str) -> None:
    method = built(name)
    poisons = method.second is None
    for dtype, bad in itertools.product((BF16, np.float16, np.float32), (np.nan, -np.nan, np.inf, -np.inf)):
        x = spread((2, 36, 128), -4, 2, 5, dtype)
        x[1, 20, 70], x[1, 33, 3] = bad, np.nan
        for y in (x, np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)):
            said = outcome(method, "native", y)
            assert said == f"flat index {36 * 128 + 20 * 128 + 70}: {np.float32(y[1, 20, 70])} has no " + (
                f"{method.element.upper()} value"
            )
            if poisons:
                poisoned = replace(method, nonfinite="poison")
                agree(*(outcome(poisoned, backend, y) for backend in ("native", "numpy")))


def any_method(rng: random.Random) -> tuple[Scheme, dict[str, Any]]:
    """A scheme and a recipe that mean something together."""
    choices = {
        "scale_rule": ("floor", "ceil", "even", "rceil", "amax", "half_range", "signed", "minmax"),
        "ties": ("even", "even", "zero", "away", "down", "up"), "zero": ("signed", "positive", "minus"),
        "nonfinite": ("error", "poison"), "overflow": ("error", "inf"), "tiny": ("spec", "torchao"),
        "quotient": ("divide", "reciprocal"), "codes_from": ("stored", "unrounded"), "least_scale": (0.0, 2.0**-6),
        "zero_scale": (0.0, 0.125), "zero_block": ("least", "middle"), "search": ("none", "none", "mse"),
        "search_steps": (1, 1, 3), "search_grid": ((0.7, 0.9, 0.95, 1.1), (1.05,)),
    }  # fmt: skip
    blocks = ((1, 32), (1, 16), (1, 0), (0, 0), (32, 1), (3, 16), (4, 64), (2, 0), (1, 8), (1, 24), (5, 1), (7, 40))
    while True:
        rows, elems = rng.choice(blocks)
        zero, second = rng.choice((None, None, "int", "min_f16")), rng.choice((None, None, "f32", "inverse_f32"))
        try:
            scheme = Scheme(rng.choice(tuple(ELEMENT_BITS)), elems, rng.choice(tuple(SCALE_DTYPES)), rows, zero, second)
        except ConfigError:
            continue
        if (rows, zero) == (0, "min_f16"):
            continue  # of zeros of both signs the definition takes what NumPy's min takes
        options = {name: rng.choice(of) for name, of in choices.items()}
        if Recipe(**options).problem(scheme) is None:
            return scheme, options


def any_array(rng: random.Random, scheme: Scheme) -> Any:
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    n = (scheme.block_elems if scheme.block_elems > 1 else 8) * rng.choice((1, 2, 3, 5, 9, 17, 40))
    n = n if n * scheme.element_bits % 8 == 0 else n * 8
    rows = max(1, min(rng.choice((1, 2, 8, 9, 31, 33, 40)), 4000 // n))
    shape = (*rng.choice(((), (2,), (2, 1))), rows, n)
    kinds = {
        "near": lambda: numbers.standard_normal(shape) * 0.02,
        "bits": lambda: numbers.integers(0, 1 << 32, shape, dtype=np.uint32).view(np.float32),
        "halves": lambda: numbers.integers(-300, 300, shape) / 2 * 2.0 ** numbers.integers(-3, 3),
        "wide": lambda: numbers.standard_normal(shape) * np.exp2(numbers.integers(-40, 30, shape)),
        "tiny": lambda: numbers.standard_normal(shape) * 2.0 ** numbers.integers(-149, -110, shape),
        "huge": lambda: numbers.standard_normal(shape) * 2.0**125,
        "zeros": lambda: numbers.choice([0.0, -0.0, 1.0], shape, p=[0.49, 0.49, 0.02]),
        "positive": lambda: np.maximum(numbers.standard_normal(shape), numbers.choice([0.0, -0.0], shape)),
        "equals": lambda: numbers.choice([-3.0, 3.0, 1.0, 0.5, -0.0], shape),
    }
    with np.errstate(over="ignore", invalid="ignore"):
        x: Any = kinds[rng.choice(tuple(kinds))]().astype(np.float32)
        if rng.random() < 0.8:
            x = np.where(np.isfinite(x), x, np.float32(1))
        x = x.astype(rng.choice((BF16, np.float16, np.float32)))
    turned = np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    return rng.choice((x, turned, np.repeat(x, 2, axis=-1)[..., ::2], np.repeat(x, 2, axis=-2)[..., ::-2, :]))


@pytest.mark.parametrize("start", range(0, 400, 50))
@pytest.mark.brief(each=("start",))
def test_any_recipe_of_any_scheme(start: int, thorough: bool) -> None:
    """Whatever means something, on values of every kind, in every layout: the definition's bytes or its words."""
    for seed in range(start, start + (50 if thorough else 25)):
        rng = random.Random(seed)
        scheme, options = any_method(rng)
        x = any_array(rng, scheme)
        if options["search"] == "mse" and rng.random() < 0.5:
            weights = np.random.default_rng(seed).choice([0.0, 0.25, 1.0, 3.7], (*x.shape[:-2], x.shape[-1]))
            options["importance"] = weights.astype(np.float32)
        results: list[Any] = []
        for backend in ("native", "reference"):
            try:
                with np.errstate(all="ignore"):
                    results.append(Kernel("quantize", (backend,))(x, scheme, measure=True, **options))
            except ValueRangeError as why:
                results.append("a block" if str(why).startswith("a block") else str(why))
        if "a block" in results:  # and it may be any of those for which there is a reason
            assert isinstance(results[0], str), (seed, scheme, options)
            assert isinstance(results[1], str), (seed, scheme, options)
            continue
        try:
            agree(*results)
        except AssertionError as why:
            raise AssertionError(f"seed {seed}: {scheme} {options} {x.shape} {x.dtype}") from why


def test_errors_of_several_rows_are_added_row_by_row() -> None:
    """In whatever order the array lies: the second scale is the better one by what the last row adds to the first ones,
    which is lost when it is added before them."""
    scheme, x, importance = Scheme("int8", 250, "f32", 4), np.zeros((32, 1000), np.float32), np.zeros(1000, np.float32)
    x[3, 499], x[0, 300], x[1:4, 250:256] = 254, 0.5, 1
    importance[300], importance[250:256] = 2.0**60, 16
    options = {"scale_rule": "amax", "search": "mse", "search_grid": [0.5], "importance": importance}
    want = Kernel("quantize", ("numpy",))(x, scheme, **options)
    for y in (x, np.asfortranarray(x)):
        same(Kernel("quantize", ("native",))(y, scheme, **options), want)


def test_a_column_whose_scale_is_past_is_refused() -> None:
    with pytest.raises(ValueRangeError, match="out of range of F16"):
        Kernel("quantize", ("native",))(
            np.full((1, 8), 1e30, np.float32).T, Scheme("int8", 0, "f16"), scale_rule="amax"
        )


def reason(name: str, **changes: Any) -> str | None:
    method = built(name, **changes)
    given = {f.name: getattr(method.recipe, f.name) for f in fields(Recipe)}
    given |= {"x": TensorSpec((64, 128), "BF16"), "scheme": method.scheme}
    found: str | None = declines("quantize", "native")(Request("quantize", "cpu", given))
    return found


def test_the_table_of_formats_has_no_blank() -> None:
    """Native makes every format that there is an option for, and says of what it leaves to others why."""
    assert {name: why for name in DONE if (why := reason(name))} == {}
    for name in DONE:
        assert reason(name, stochastic=True) == "native does not round at random"
