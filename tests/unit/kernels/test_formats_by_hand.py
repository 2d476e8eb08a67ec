"""Every scheme of conf/quant and its variants, encoded and decoded, bit for bit as oracles written from specifications.

Both backends that know all schemes see random values over the whole range of exponents, ties, saturation, zero blocks,
-0 and the trained weights of the embedded model. What other people's libraries say is in *_oracles.py.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

from pipeline.tensors.qtensor import QTensor
from plugins.models import gpt_oss
from plugins.quant.blockwise import Blockwise
from tests.oracles import elements, formats, scales
from tests.oracles.blocks_by_hand import codes, dequantize_float32
from tests.unit.kernels.test_number_formats import NAMES, on

BF16 = ml_dtypes.bfloat16
TINY = Path(gpt_oss.__file__).parent / "tiny"
GROUP, CHANNEL, TENSOR, BANDS = (1, 32), (1, 0), (0, 0), (4, 32)
WHERE = {GROUP: "group", CHANNEL: "channel", TENSOR: "tensor", BANDS: "bands", (128, 128): "128×128"}
RECIPROCAL = {"quotient": "reciprocal", "codes_from": "unrounded"}


@dataclass(frozen=True)
class Case:
    """A method and the function of the oracle that says what it must give; exponents that its scales can hold."""

    fields: dict[str, Any]
    encode: Any
    low: int = -149
    high: int = 127

    @property
    def method(self) -> Blockwise:
        return Blockwise(**self.fields)


def cases() -> dict[str, Case]:
    found = {}
    for kind in ("e2m1", "e2m3", "e3m2", "e4m3", "e5m2", "mxint8"):
        for rule in ("floor", "ceil", "even", "rceil"):
            for ties in ("even", "zero", "away", "down"):
                fields = {"element": kind, "block_elems": 32, "scale": "e8m0", "scale_rule": rule, "ties": ties}
                found[f"mx {kind} {rule} {ties}"] = Case(fields, formats.mx(kind, rule, ties))
    for kind in ("int8", "int4", "int3", "int2", "e4m3", "e5m2"):
        for rows, elems in (GROUP, CHANNEL, TENSOR, BANDS) if "int" in kind else (CHANNEL, TENSOR, (128, 128)):
            for scale in ("f32", "bf16"):
                shape = {"element": kind, "block_elems": elems, "block_rows": rows, "scale": scale}
                name = f"{kind} {WHERE[rows, elems]} {scale}"
                found[name] = Case(shape, formats.symmetric(kind, scale))
                if (rows, elems) == GROUP:
                    fields = {**shape, "scale_rule": "half_range"}
                    found[f"{name} half_range"] = Case(fields, formats.symmetric(kind, scale, "half_range"))
                    unsigned = {**shape, "element": f"u{kind}", "zero_point": "int"}
                    found[f"u{name}"] = Case(unsigned, formats.affine(f"u{kind}", scale), high=125)
    nvfp4 = {"element": "e2m1", "block_elems": 16, "scale": "e4m3"}
    for second in ("f32", "inverse_f32"):
        found[f"nvfp4 {second}"] = Case({**nvfp4, "second": second}, None, -120, 120)
    nf4 = {"element": "nf4", "block_elems": 64, "ties": "down", **RECIPROCAL}
    found["nf4"] = Case({**nf4, "scale": "f32"}, formats.nf4)
    found["nf4 twice"] = Case({**nf4, "scale": "dynamic8", "second": "dynamic8"}, formats.nf4, high=100)
    ggml = {"block_elems": 32, "scale": "f16", "like": "ggml"}
    found["q8_0"] = Case({**ggml, "element": "int8"}, formats.q8_0, high=14)
    found["q4_0"] = Case({**ggml, "element": "int4"}, formats.q4_0, high=14)
    found["q4_1"] = Case({**ggml, "element": "uint4", "zero_point": "min_f16"}, formats.q4_1, high=14)
    return found


CASES = cases()


def kind_of(name: str) -> str:
    """Cases of one kind differ in how ties go, or in the dtype of scales that are floats."""
    return name.rpartition(" ")[0] if name.startswith("mx ") else name.replace(" bf16", "").replace(" f32", "")


def wanted(case: Case, x: Any) -> dict[str, Any]:
    """Components as the oracle has them, codes a byte each, of `[rows, n]`."""
    m, encode, second = case.method, case.encode, None
    if m.scale == "e4m3":
        encode, second = formats.nvfp4(np.abs(x.astype(np.float64)).max(), inverse=m.second == "inverse_f32")
    found, shared, zeros = formats.by_block(encode, x.astype(np.float64), m.block_rows, m.block_elems)
    if m.second == "dynamic8":
        flat, second = formats.double(shared.ravel())
        shared = flat.reshape(shared.shape)
    return {"codes": found, "scales": shared, "zeros": zeros, "second": second}


def check(q: QTensor, want: dict[str, Any], what: str) -> None:
    for name in ("scales", "zeros", "second", "codes"):
        if want[name] is None:
            assert q.components.get(name) is None
            continue
        got = codes(q) if name == "codes" else np.asarray(q.component(name)).astype(np.float64)
        bad = np.ravel(got) != np.ravel(want[name])
        assert not bad.any(), (what, name, np.flatnonzero(bad)[:5], got.ravel()[bad][:5], np.ravel(want[name])[bad][:5])


def every_range(case: Case, rows: int, columns: int, dtype: Any, seed: int) -> Any:
    """Rows whose exponents lie anywhere in the case's range; signs, mantissas and distances at random."""
    rng = np.random.default_rng(seed)
    top = rng.integers(case.low, case.high + 1, (rows, 1))
    top[: rows // 4] = rng.integers(-8, 4, (rows // 4, 1))
    down = rng.integers(0, rng.integers(1, 12, (rows, 1)), (rows, columns))
    with np.errstate(over="ignore"):
        x = np.ldexp(rng.uniform(1, 2 - 2**-8, (rows, columns)), top - down) * rng.choice([-1, 1], (rows, columns))
        x = x.astype(dtype)
    x[rng.random(x.shape) < 0.02] = 0
    x[rng.random(x.shape) < 0.02] = -0.0
    return x


def edges(case: Case, columns: int) -> Any:
    """Ties on every grid a format can have, the values just beside them, saturation, zero rows, lone values."""
    half = (np.arange(columns) - columns // 2) / 2
    rows = [half / 2**k for k in (0, 1, 2, 4, 6, 8)]
    rows += [np.nextafter((half / 4).astype(np.float32), np.float32(s)) for s in (-1e9, 1e9)]
    rows += [np.full(columns, 6.5), np.full(columns, -7.0), np.resize([7.0, 3.5, -1.75, 0.25, 5, -5], columns)]
    rows += [np.zeros(columns), np.full(columns, -0.0), np.resize([0.0, -0.0], columns)]
    rows += [np.eye(1, columns, 5)[0] * v for v in (1, -1, 2.0**case.low, -(2.0**case.high), 127.5, -127.5, 3)]
    return np.array(rows, np.float32)


def midpoints(case: Case, columns: int, seed: int = 0) -> Any:
    """All values and midpoints of the element under a scale that the format finds again, and what lies just beside.

    Every 16 of them have the largest as well. A matrix that has one scale has the same everywhere; NVFP4's rows have
    E4M3 scales from 448 down, under a second-level scale of 1.
    """
    rng, kind = np.random.default_rng(seed), case.fields["element"]
    grid = np.unique(elements.values(kind)[np.isfinite(elements.values(kind))])
    grid = np.concatenate([grid, (grid[1:] + grid[:-1]) / 2])
    grid = grid[grid >= -grid.max()]
    some = np.resize(grid, (max(24, -(-grid.size // (columns // 16 * 15))), columns // 16, 15))
    some = np.concatenate([np.full((*some.shape[:2], 1), grid.max()), some], axis=2).reshape(-1, columns)
    unit = scales.stored(
        rng.uniform(1, 2, (len(some), 1)), case.fields["scale"] if case.fields["scale"] == "bf16" else "f32"
    )
    if case.fields["scale"] == "e8m0":
        unit[:] = 1
    elif case.fields["scale"] == "e4m3":
        unit[:, 0] = np.resize(elements.values("e4m3")[126:70:-1], len(some))
    elif case.fields.get("block_rows", 1) != 1:
        unit[:] = unit[0] if seed else 1
    exact = (some * unit).astype(np.float32)
    return np.concatenate(
        [
            exact,
            np.nextafter(exact, np.float32(0)),
            np.where(exact == exact.max(axis=1, keepdims=True), exact, np.nextafter(exact, np.float32(1e30))),
        ]
    )


@pytest.mark.parametrize("name", CASES)
@pytest.mark.brief(each=lambda call: kind_of(call["name"]))
def test_codes_and_values(name: str, thorough: bool) -> None:
    case = CASES[name]
    tensor = 0 in (case.method.block_rows, case.method.block_elems) or case.method.second is not None
    inputs = {"edges": edges(case, 128)}
    many = (8 if name.startswith("mx") else 24) // (1 if thorough else 2)
    inputs["bf16"] = every_range(case, 3 * many, 128, BF16, 1)
    inputs["f16"] = np.random.default_rng(4).normal(0, 0.02, (many, 128)).astype(np.float16)
    inputs["f32"] = every_range(case, 3 * many + 1, 256, np.float32, 2)
    seeds = ((0, 7, 8, 9) if tensor else (0, 7)) if thorough else ((0, 7) if tensor else (7,))
    inputs.update({f"midpoints {seed}": midpoints(case, 128, seed) for seed in seeds})
    if tensor:  # one scale for the whole matrix: near it, too
        rows = 130 if thorough else 34
        inputs["normal"] = np.random.default_rng(3).normal(0, 0.02, (rows, 256)).astype(np.float32)
    for what, x in inputs.items():
        want = wanted(case, x)
        q = on(case.method, "numpy").encode(x)
        check(q, want, what)
        small = x[:6] if not tensor else None
        if small is not None:
            check(on(case.method, "reference").encode(small), wanted(case, small), f"{what}, reference")
        y = on(case.method, "numpy").decode(q, "F32")
        values = dequantize_float32(q, elements.values(q.scheme.element), scales.dynamic_map())
        assert np.array_equal(y.view(np.uint32), values.view(np.uint32)), what
        with np.errstate(over="ignore"):
            rounded = scales.stored(values, "bf16")
        assert np.array_equal(on(case.method, "numpy").decode(q, "BF16").astype(np.float64), rounded), what


@pytest.mark.parametrize("name", [n for n in CASES if " tensor" in n or "nvfp4" in n or "twice" in n or "128" in n])
def test_the_reference_on_whole_matrices(name: str) -> None:
    case = CASES[name]
    for x in (edges(case, 128)[8:19], every_range(case, 5, 128, BF16, 4)):
        check(on(case.method, "reference").encode(x), wanted(case, x), "reference")


@pytest.fixture(scope="module")
def weights(thorough: bool) -> dict[str, Any]:
    """Trained weights of the embedded model, some of their rows: attention, and one expert transposed."""
    found = {}
    for path in sorted(TINY.glob("*.safetensors")):
        with safe_open(path, "np") as file:
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                if name.endswith("layers.1.mlp.experts.gate_up_proj"):
                    found["expert"] = file.get_tensor(name)[2]
                elif name.endswith("layers.0.self_attn.o_proj.weight"):
                    found["attention"] = file.get_tensor(name)
    assert {n: a.shape for n, a in found.items()} == {"expert": (160, 448), "attention": (160, 192)}
    some = 1 if thorough else 2
    return {"attention": found["attention"][:: 2 * some], "expert, transposed": found["expert"].T[: 128 // some, :128]}


@pytest.mark.parametrize("name", [n for n in CASES if not n.startswith("mx") or "even even" in n or "floor zero" in n])
@pytest.mark.brief(each=lambda call: kind_of(call["name"]))
def test_trained_weights(name: str, weights: dict[str, Any]) -> None:
    case = CASES[name]
    for what, x in weights.items():
        if case.method.scheme.problem(x.shape) is None:
            check(on(case.method, "numpy").encode(x), wanted(case, x), what)


def test_every_named_scheme_has_an_oracle() -> None:
    from tests.unit.kernels.test_number_formats import built

    known = {(m.element, m.scale, m.second, m.zero_point) for m in (c.method for c in CASES.values())}
    for name in NAMES:
        m = built(name)
        assert (m.element, m.scale, m.second, m.zero_point) in known, name


@pytest.mark.parametrize("name", [n for n in CASES if not n.startswith("mx") or "floor even" in n])
def test_any_bytes_decode_as_they_say(name: str) -> None:
    """Random bytes everywhere: scales that are NaN (0xFF, 0x7F), infinite, subnormal, negative; NaN codes."""
    scheme = CASES[name].method.scheme
    rng = np.random.default_rng(5)
    parts = {}
    for part, shape in scheme.components((13, 128)).items():
        dtype = {
            "U8": np.uint8,
            "F8_E4M3": ml_dtypes.float8_e4m3fn,
            "F16": np.float16,
            "BF16": BF16,
            "F32": np.float32,
        }[scheme.dtypes[part]]
        raw = rng.integers(0, 256, (*shape[:-1], shape[-1] * np.dtype(dtype).itemsize), np.uint8)
        parts[part] = raw.view(dtype)
    if scheme.scale == "e8m0":
        parts["scales"].flat[:3] = [255, 0, 254]
    q = QTensor(scheme=scheme, **parts)
    with np.errstate(all="ignore"):
        want = dequantize_float32(q, elements.values(scheme.element), scales.dynamic_map())
    for backend in ("reference", "numpy"):
        got = on(CASES[name].method, backend).decode(q, "F32")
        assert np.array_equal(np.isnan(got), np.isnan(want)), backend
        assert np.array_equal(got.view(np.uint32)[~np.isnan(want)], want.view(np.uint32)[~np.isnan(want)]), backend
