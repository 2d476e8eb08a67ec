"""Properties of every codec that hold for all weights, schemes and recipes, valid ones and others."""

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipeline.errors import ConfigError, StageError, ValueRangeError
from pipeline.ops import Kernel
from pipeline.tensors.matrices import Extremes
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import ELEMENT_BITS, SCALE_DTYPES, SECONDS, ZEROS, Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.testing.memory import cut, same
from plugins.kernels.quantize import check
from plugins.kernels.quantize.recipe import POWER_RULES
from plugins.quant.blockwise import Blockwise
from tests.oracles import elements
from tests.oracles.blocks_by_hand import codes
from tests.unit.kernels.test_number_formats import on

BF16 = ml_dtypes.bfloat16
DTYPES = (BF16, np.float32, np.float16)


@st.composite
def methods(draw: st.DrawFn) -> Blockwise:
    """A method that means something: any element, block and scale with the rules that go with them."""
    kind = draw(st.sampled_from(sorted(ELEMENT_BITS)))
    is_float, unsigned, fixed = kind[0] == "e", kind[0] == "u", kind.startswith(("int", "mxint"))
    rows, elems = draw(
        st.sampled_from([(1, 8), (1, 16), (1, 32), (1, 40), (1, 0), (0, 0), (2, 16), (3, 8), (5, 0), (4, 1), (3, 2)])
    )
    scale = draw(
        st.sampled_from(["f32", "bf16", "f16"] if unsigned else ["e8m0", "e8m0", "f32", "bf16", "f16", "e4m3"])
    )
    fields: dict[str, Any] = {"element": kind, "block_elems": elems, "block_rows": rows, "scale": scale}
    ties = ["even", "zero", "away", "down", *(["up"] if unsigned or fixed else [])]
    fields["ties"] = draw(st.sampled_from(ties))
    if is_float:
        fields["zero"] = draw(st.sampled_from(["signed", "positive", "minus"]))
    if scale == "e8m0":
        rules = [r for r in POWER_RULES if r != "even" or kind != "nf4"]
        return Blockwise(**fields, scale_rule=draw(st.sampled_from(rules)))
    fields["quotient"] = draw(st.sampled_from(["divide", "reciprocal"]))
    if unsigned:
        fields["zero_point"] = draw(st.sampled_from(["int", "min_f16"]))
    elif scale in ("e4m3", "f16"):
        fields["second"] = draw(st.sampled_from([None, "f32", "inverse_f32"]))
    if not unsigned:
        rules = ["amax", *(["half_range"] if fixed or is_float else [])]
        rules += ["signed"] if fixed and rows and fields.get("second") is None else []
        fields["scale_rule"] = draw(st.sampled_from(rules))
    if fields.get("second") is None:
        fields["codes_from"] = draw(st.sampled_from(["stored", "unrounded"]))
        if scale == "f32" and kind == "nf4" and draw(st.booleans()):
            fields.update(scale="dynamic8", second="dynamic8", codes_from="unrounded")
    return Blockwise(**fields)


@st.composite
def weights(draw: st.DrawFn, method: Blockwise, lead: int = 2) -> Any:
    """Values of a shape that fits, of no rows, one row, whole bands or parts of bands."""
    unit = method.scheme.column_grain if method.block_elems else 8
    shape = (draw(st.integers(0, 7)), unit * draw(st.integers(0, 3)))
    if draw(st.booleans()):
        shape = (*draw(st.lists(st.integers(0, 2), max_size=lead)), *shape)
    elif method.block_rows == 1 and draw(st.booleans()):
        shape = shape[1:]
    dtype = draw(st.sampled_from(DTYPES))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    how = draw(st.sampled_from(["normal", "wide", "grid", "patterns", "sparse", "constant"]))
    x = rng.standard_normal(shape)
    if how == "wide":
        x = x * np.exp2(rng.integers(-20, 4, shape))
    elif how == "grid":
        x = rng.integers(-40, 41, shape) / 4
    elif how == "sparse":
        x = x * (rng.random(shape) < 0.1)
    elif how == "constant":
        x = np.full(shape, rng.choice([0.0, -0.0, 1.0, -1.0, 0.1, 6.0]))
    elif how == "patterns":
        bits = rng.integers(0, 1 << 32, shape, np.uint32)
        bits[(bits & 0x7F800000) == 0x7F800000] = 0
        x = bits.view(np.float32)
        x = np.clip(x, -6e4, 6e4) if dtype is np.float16 or method.scale in ("f16", "e4m3") or method.zero_point else x
    with np.errstate(over="ignore"):
        x = x.astype(dtype)
    assume(np.isfinite(x.astype(np.float32)).all())
    return x


POWERS_OF_TWO = st.builds(
    Blockwise,
    st.sampled_from(["e2m1", "e2m3", "e3m2", "e4m3", "e5m2", "mxint8", "int4"]),
    st.sampled_from([16, 32]),
    st.just("e8m0"),
    scale_rule=st.sampled_from(POWER_RULES),
    ties=st.sampled_from(["even", "zero", "away", "down"]),
).flatmap(lambda m: st.tuples(st.just(m), weights(m, 1)))
MADE = methods().flatmap(lambda m: st.tuples(st.just(m), weights(m)))


def outcome(method: Blockwise, backend: str, x: Any) -> Any:
    try:
        return on(method, backend).encode(x)
    except ValueRangeError as e:
        return str(e).partition(":")[0]


@settings(max_examples=250)
@given(MADE)
def test_backends_agree(made: Any) -> None:
    method, x = made
    a = outcome(method, "reference", x)
    if x.size:
        b = outcome(method, "numpy", x)
    else:
        with pytest.raises(StageError, match="numpy goes over the elements of an array, and this one has none"):
            outcome(method, "numpy", x)
        b = a
    if not isinstance(a, QTensor) or not isinstance(b, QTensor):
        assert a == b
        return
    assert same(a, b)
    assert {c: v.shape for c, v in a.components.items()} == a.scheme.components(x.shape)
    for dtype in ("F32", "BF16"):
        y, z = (on(method, k).decode(a, dtype) for k in ("reference", "numpy"))
        assert y.shape == x.shape
        assert y.tobytes() == z.tobytes()


@settings(max_examples=8)
@given(st.one_of(POWERS_OF_TWO, MADE))
def test_xla_agrees_where_it_says_it_can(made: Any) -> None:
    """What is empty it may leave to others, and what is not blocks of a row under powers of two."""
    method, x = made
    if not x.size:
        return
    in_rows = method.scale == "e8m0" and method.block_rows == 1 and method.block_elems > 0
    try:
        b = outcome(method, "xla", x)
    except StageError:
        if in_rows and method.element != "nf4" and method.ties != "up":
            raise
        return
    a = outcome(method, "reference", x)
    if not isinstance(a, QTensor) or not isinstance(b, QTensor):
        assert a == b
        return
    assert same(a, b)
    for dtype in ("F32", "BF16"):
        assert on(method, "xla").decode(b, dtype).tobytes() == on(method, "numpy").decode(b, dtype).tobytes()


@settings(max_examples=120)
@given(MADE)
def test_codes_are_the_nearest_under_the_stored_scale(made: Any) -> None:
    """So that an error is at most half a step wherever nothing saturates."""
    method, x = made
    assume(method.recipe.codes_from == "stored" and x.ndim > 1 and x.size)
    q = outcome(method, "numpy", x)
    assume(isinstance(q, QTensor))
    values = elements.values(method.element)
    usable = np.isfinite(values)
    if method.recipe.is_narrow and method.element.startswith(("int", "mxint")):
        usable &= values != values.min()
    one = np.zeros(256, np.uint8)
    one[: len(values)] = np.arange(len(values))
    candidates = []
    found = codes(q)
    for code in np.flatnonzero(usable):  # what every value would have decoded to with another code
        stream = np.full(found.shape, code, np.uint8)
        bits = (stream[..., None] >> np.arange(q.scheme.element_bits)) & 1
        packed = np.packbits(bits.reshape(*found.shape[:-1], -1), axis=-1, bitorder="little").astype(np.uint8)
        other = QTensor(packed, q.scales, q.scheme, q.zeros, q.second)
        with np.errstate(invalid="ignore"):
            candidates.append(method.decode(other, "F32").astype(np.float64))
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        least = np.min(np.abs(np.array(candidates) - wide), axis=0)
        error = np.abs(method.decode(q, "F32").astype(np.float64) - wide)
        largest = np.max(np.abs(candidates), axis=0)
    sure = np.isfinite(largest)
    assert (error[sure] <= least[sure] + 1e-6 * (largest[sure] + np.abs(wide[sure]))).all()


@settings(max_examples=100)
@given(st.data())
def test_decoding_and_coding_again_changes_nothing(data: st.DataObject) -> None:
    """Under `floor` the largest value of a block stays in its binade, so that its scale is found again."""
    kind = data.draw(st.sampled_from(["e2m1", "e2m3", "e3m2", "e4m3", "e5m2", "mxint8", "int8", "int4", "int3"]))
    rows, elems = data.draw(st.sampled_from([(1, 8), (1, 32), (3, 16), (0, 0), (1, 0)]))
    method = Blockwise(kind, elems, "e8m0", rows, ties=data.draw(st.sampled_from(["even", "zero", "away", "down"])))
    q = method.encode(data.draw(weights(method)))
    assert same(method.encode(method.decode(q, "F32")), q)


@settings(max_examples=150)
@given(MADE, st.data())
def test_packing_a_slice_is_slicing_the_packed(made: Any, data: st.DataObject) -> None:
    method, x = made
    assume(not method.scheme.whole_only and x.ndim > 1 and x.size)
    q = outcome(method, "numpy", x)
    assume(isinstance(q, QTensor))
    steps = (*(1 for _ in x.shape[:-2]), method.block_rows or 1)
    steps += (method.scheme.column_grain if method.block_elems else x.shape[-1],)
    box = []
    for n, step in zip(x.shape, steps, strict=True):
        start = data.draw(st.integers(0, -(-n // step) - 1))
        stop = data.draw(st.integers(start + 1, -(-n // step)))
        box.append(slice(start * step, min(n, stop * step)))
    part = x[tuple(box)]
    observed = Extremes.of(x[tuple(box[:-2])].astype(np.float32)) if method.needs_extremes else None
    assert same(method.encode(part, observed=observed), cut(q, tuple(box)))


@settings(max_examples=150)
@given(MADE)
def test_the_size_of_a_spec_is_what_is_stored(made: Any) -> None:
    method, x = made
    assume(x.size)
    q = outcome(method, "numpy", x)
    assume(isinstance(q, QTensor))
    nbytes = sum(np.asarray(a).nbytes for a in q.components.values())
    assert TensorSpec(x.shape, "BF16", method.scheme).nbytes == nbytes


@settings(max_examples=300)
@given(
    st.builds(
        dict,
        element=st.sampled_from(sorted(ELEMENT_BITS)),
        block_elems=st.sampled_from([0, 1, 3, 8, 16, 32]),
        scale=st.sampled_from(sorted(SCALE_DTYPES)),
        block_rows=st.sampled_from([0, 1, 2]),
        zero=st.sampled_from([None, *ZEROS]),
        second=st.sampled_from([None, None, *SECONDS]),
    ),
    st.lists(st.integers(0, 40), max_size=3).map(tuple),
    st.fixed_dictionaries(
        {},
        optional={
            "scale_rule": st.sampled_from([*POWER_RULES, "amax", "half_range", "signed", "minmax"]),
            "ties": st.sampled_from(["even", "away", "up"]),
            "zero": st.sampled_from(["signed", "minus"]),
            "codes_from": st.sampled_from(["stored", "unrounded"]),
            "search": st.sampled_from(["none", "mse"]),
            "search_grid": st.just((0.9,)),
            "nonfinite": st.sampled_from(["error", "poison"]),
        },
    ),
)
def test_what_is_not_refused_works(fields: dict[str, Any], shape: tuple[int, ...], options: dict[str, Any]) -> None:
    """A scheme, a recipe and a shape are refused before any value is looked at, with the reason, or make a codec."""
    try:
        scheme = Scheme(**fields)
        check(shape, scheme, **options)
    except ConfigError:
        return
    assert scheme.problem(shape) is None
    x = (np.arange(int(np.prod(shape))).reshape(shape) % 13 - 6).astype(BF16)
    a, b = (Kernel("quantize", (k,))(x, scheme, **options) for k in ("reference", "numpy"))
    assert same(a, b)
    y, z = (Kernel("dequantize", (k,))(a, "F32") for k in ("reference", "numpy"))
    assert y.shape == shape
    assert y.tobytes() == z.tobytes()


@settings(max_examples=100)
@given(methods(), st.lists(st.integers(0, 70), max_size=3).map(tuple), st.sampled_from(["reference", "numpy"]))
def test_encode_refuses_just_the_shapes_that_problem_names(method: Any, shape: Any, backend: str) -> None:
    x, problem = np.zeros(shape, np.float32), method.scheme.problem(shape)
    if problem is None:
        assert on(method, backend).encode(x).shape == shape
    else:
        with pytest.raises(ConfigError, match=re.escape(problem)):
            on(method, backend).encode(x)
