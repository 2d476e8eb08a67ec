"""What threads do with codes (`plugins/kernels/mosaic_gpu/bits.py`), of all codes and scales, by bits: no
interpreter runs MLIR, so that each operation stands here for itself, on the registers of 128 threads."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4, Scheme
from plugins.kernels.dequantize.numpy import dequantize
from plugins.kernels.mosaic_gpu import bits, elements, factors, words
from plugins.kernels.mosaic_gpu.by_bits import arranged
from plugins.kernels.mosaic_gpu.coding import Coding, coding_of

THREADS, HIGH = 128, 64
BF16 = np.dtype(ml_dtypes.bfloat16)
LANE, WARP = np.arange(THREADS) % 32, np.arange(THREADS) // 32


def plain(value: Any) -> Any:
    return np.broadcast_to(np.asarray(value).astype(np.uint32), THREADS)


def halves(word: Any) -> Any:
    """bfloat16 `[128, 2]`, the lower half first."""
    return np.ascontiguousarray(word).view(np.uint16).view(BF16).reshape(-1, 2)


ON_PAIRS = {
    "mul.rn.bf16x2": lambda a, b: a * b, "sub.rn.bf16x2": lambda a, b: a - b,
    "fma.rn.bf16x2": lambda a, b, c: a * b + c,
}  # fmt: skip
FLOAT8 = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


def rounded_once(exact: Any) -> Any:
    """bfloat16 of float64, by way of float32 that is odd where it is not exact."""
    near = exact.astype(np.float32)
    inside = np.where(np.abs(near) > np.abs(exact), np.nextafter(near, np.float32(0)), near)
    odd = (inside.view(np.uint32) | (inside != exact)).view(np.float32)
    return np.where(np.isfinite(exact), odd, near).astype(BF16)


def asm(kind: Any, args: list[Any], text: str, constraints: str, **_: Any) -> Any:
    if text.startswith(tuple(ON_PAIRS)):
        with np.errstate(all="ignore"):
            found = ON_PAIRS[text.split()[0]](*(halves(plain(arg)).astype(np.float64) for arg in args))
            return np.ascontiguousarray(rounded_once(found)).view(np.uint32).reshape(-1)
    if text.startswith("cvt.rn.bf16x2.f32"):
        with np.errstate(all="ignore"):
            one = plain(args[0]).view(np.float32).astype(BF16)
        return np.stack([one, one], axis=1).view(np.uint32).reshape(-1)
    if text.startswith("sub.rn.f32"):
        a, b = (plain(arg).copy().view(np.float32) for arg in args)
        with np.errstate(all="ignore"):
            return (a - b).view(np.uint32)
    if text.startswith("prmt.b32 $0, $1, $2, 0x7632"):
        return plain(args[0]) >> 16 | plain(args[1]) & 0xFFFF0000
    if "mov.b32" in text:
        half = (plain(args[0]) >> (16 if "{other, h}" in text else 0)).astype(np.uint16)
        if "cvt.f32.f16" in text:
            return half.view(np.float16).astype(np.float32).view(np.uint32)
        float8 = FLOAT8[text.split("cvt.rn.f16x2.")[1].split("x2")[0]]
        return np.ascontiguousarray(half.view(float8).astype(np.float16)).view(np.uint32)
    if "vote.sync.any" in text:
        return np.repeat((plain(args[0]) != 0).reshape(4, 32).any(axis=1), 32).astype(np.uint32)
    assert text.startswith("stmatrix.sync.aligned.m8n8.x4.trans")
    (memory, at), *registers = args
    for warp in range(4):
        for n, register in enumerate(registers):
            matrix = np.ascontiguousarray(plain(register)[32 * warp :][:32]).view(np.uint16).reshape(8, 8)
            for row in range(8):  # whose address the thread of that number has
                place = int(at[32 * warp + 8 * n + row])
                memory[place : place + 16] = np.ascontiguousarray(matrix[:, row]).view(np.uint8)
    return None


@dataclass
class If:
    """Both branches are made, and each thread has what its own gives."""

    condition: Any
    kinds: Any
    has_else: bool
    then_block: dict[str, Any] = field(default_factory=dict)
    else_block: dict[str, Any] = field(default_factory=dict)

    @property
    def results(self) -> list[Any]:
        both = zip(self.then_block["gives"], self.else_block["gives"], strict=True)
        return [np.where(self.condition, a, b) for a, b in both]


_INSIDE: list[dict[str, Any]] = []


@contextmanager
def inside(block: dict[str, Any]) -> Iterator[None]:
    _INSIDE.append(block)
    yield
    _INSIDE.pop()


class Word(np.ndarray[Any, Any]):
    type = "i32"


def word(value: Any) -> Any:
    return plain(value).view(Word)


def load(kind: Any, place: Any, alignment: int) -> Any:
    memory, at = place
    assert not (at % alignment).any()
    if kind == "words":
        return [load(32, (memory, at + 4 * n), 4) for n in range(4)]
    apart = [memory[at + n].astype(np.uint32) << 8 * n for n in range(kind // 8)]
    return word(sum(apart[1:], apart[0]))


def signed(value: Any) -> Any:
    return plain(value).astype(np.int32)


ARITH = SimpleNamespace(
    constant=lambda _, n: word(n & 0xFFFFFFFF), addi=lambda a, b: word(plain(a) + plain(b)),
    subi=lambda a, b: word(plain(a) - plain(b)), muli=lambda a, b: word(plain(a) * plain(b)),
    andi=lambda a, b: word(plain(a) & plain(b)), ori=lambda a, b: word(plain(a) | plain(b)),
    xori=lambda a, b: word(plain(a) ^ plain(b)), shli=lambda a, b: word(plain(a) << plain(b)),
    shrui=lambda a, b: word(plain(a) >> plain(b)), minsi=lambda a, b: word(np.minimum(signed(a), signed(b))),
    extui=lambda _, a: word(a), select=lambda c, a, b: word(np.where(c, plain(a), plain(b))),
    cmpi=lambda how, a, b: how(signed(a), signed(b)),
    CmpIPredicate=SimpleNamespace(eq=np.equal, ne=np.not_equal, sgt=np.greater),
)  # fmt: skip
LLVM = SimpleNamespace(
    inline_asm=lambda *args, **more: None if (found := asm(*args, **more)) is None else word(found), load=load,
    getelementptr=lambda _, base, at, *__: (base.memory, at[0].astype(np.int64)), bitcast=lambda _, value: value,
    extractelement=lambda four, n: word(four[int(n[0])]), GEPNoWrapFlags=SimpleNamespace(none=None),
)  # fmt: skip
IR = SimpleNamespace(
    IntegerType=SimpleNamespace(get_signless=lambda bits: bits), IntegerAttr=SimpleNamespace(get=lambda _, n: n),
    VectorType=SimpleNamespace(get=lambda *_: "words"), BF16Type=SimpleNamespace(get=lambda: "bf16"),
    Type=SimpleNamespace(parse=lambda text: text), InsertionPoint=inside,
)  # fmt: skip
MGPU = SimpleNamespace(
    WGMMA_LAYOUT=SimpleNamespace(registers_shape=lambda shape: (1, shape[1] // 8, 1, 1, 2, 1, 1, 1, 1)),
    FragmentedArray=lambda _registers, **_: _registers,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _operations(monkeypatch: pytest.MonkeyPatch) -> None:
    utils = SimpleNamespace(
        thread_idx=lambda: word(np.arange(THREADS) + 128), memref_ptr=lambda a: SimpleNamespace(memory=a, type="ptr")
    )
    scf = SimpleNamespace(IfOp=If, yield_=lambda values: _INSIDE[-1].update(gives=values))
    fakes = {"arith": ARITH, "llvm": LLVM, "scf": scf, "ir": IR, "mgpu": MGPU, "utils": utils}
    for module in (bits, factors, elements, words):
        for name in fakes.keys() & vars(module):
            monkeypatch.setattr(module, name, fakes[name])


def of_registers(registers: Any) -> Any:
    """The array `[64, N]` that threads have in WGMMA's layout: PTX ISA, "Register fragments and shared memory"."""
    found = np.zeros((HIGH, 8 * registers.shape[1]), BF16)
    for half in range(2):
        for j in range(registers.shape[1]):
            rows, column = 16 * WARP + LANE // 4 + 8 * half, 8 * j + 2 * (LANE % 4)
            pair = halves(plain(registers[0, j, 0, 0, half, 0, 0, 0, 0]))
            found[rows, column], found[rows, column + 1] = pair[:, 0], pair[:, 1]
    return found


def decoded(coding: Coding, codes: Any, shared: dict[str, Any], k: int) -> Any:
    """float32 `[64, columns]` of step `k`."""
    step = SimpleNamespace(registers=np.array(word(k)[:1]))
    if coding.by_step:
        across = {name: coding.across(name) for name in shared}
        part = {name: k * coding.columns // coding.held // n * n for name, n in across.items()}
        shared = {name: a[:, part[name] : part[name] + across[name]] for name, a in shared.items()}
    memory = {name: np.ascontiguousarray(a).reshape(-1).view(np.uint8) for name, a in shared.items()}
    found = of_registers(bits.decoded(coding, codes.reshape(-1), memory, step)).astype(np.float32)
    return found * factors.later(coding.of, coding.scale)


def beside_the_definition(
    scheme: Scheme, columns: int, by_step: bool = False, **shared: Any
) -> Iterator[tuple[Any, Any]]:
    """float32 `[64, columns of a step]`, ours and the definition's, of all steps: of 64 rows under what is `shared`,
    `[64, blocks]`, with every byte of codes at every place of a step. The last one may have columns past the end."""
    coding = coding_of(scheme, BF16, HIGH, columns)
    assert coding is not None
    coding = replace(coding, by_step=by_step)
    step, every = coding.columns, np.arange(256, dtype=np.uint8)
    for k in range(-(-columns // step)):
        block = np.minimum((k * step + np.arange(step)) // (coding.held or columns), max(1, coding.blocks) - 1)
        each = {name: a[:, block] for name, a in shared.items()}
        alone = Scheme(scheme.element, 1, scheme.scale, zero=scheme.zero)  # each code has what its block has
        for turn in range(0, 256, 64):
            codes = (every[turn : turn + 64, None] + 37 * np.arange(64, dtype=np.uint8)[None]).astype(np.uint8)
            found = decoded(coding, codes, {name: shared[name] for name in coding.shared}, k)
            values = dequantize(QTensor(codes, scheme=alone, **each), "F32")
            with np.errstate(all="ignore"):
                yield found, np.asarray(arranged(jnp.asarray(values), coding)).astype(BF16).astype(np.float32)


FLOATS = {"bf16": BF16, "f16": np.dtype(np.float16), "f32": np.dtype(np.float32)}


@pytest.mark.parametrize(
    "scheme", [
        MXFP4, Scheme("e2m1", 16, "e4m3"), Scheme("e4m3", 32, "e8m0"), Scheme("e5m2", 32, "e8m0"),
        Scheme("mxint8", 32, "e8m0"), Scheme("int4", 32, "e8m0"),
    ], ids=lambda s: f"{s.element} {s.scale}",
)  # fmt: skip
def test_every_code_under_every_scale_of_a_byte(scheme: Scheme) -> None:
    """Rows of ten blocks, the last step of which may have fewer; of 64 rows 640 scales, among them all there are."""
    scales = np.resize(np.arange(256, dtype=np.uint8), (HIGH, 10))
    if scheme.scale == "e8m0":
        scales[(scales > 245) & (scales < 255)] = 245  # under which the largest is finite
        scales[:16] %= 129  # a warp's, of whose scales none is large
    stored = scales if scheme.scale == "e8m0" else scales.view(ml_dtypes.float8_e4m3fn)
    for found, wanted in beside_the_definition(scheme, 10 * scheme.block_elems, scales=stored):
        np.testing.assert_array_equal(found, wanted)


UINT4 = Scheme("uint4", 32, "bf16", zero="int")
INTEGERS = ("int4", "uint4", "int8", "uint8")


@pytest.mark.brief
@pytest.mark.parametrize("scale", FLOATS)
@pytest.mark.parametrize("element", [*INTEGERS, "mxint8", "e2m1", "e4m3"])
def test_every_code_under_scales_that_are_floats(element: str, scale: str) -> None:
    """Of bfloat16, and of F16 where codes have five bits at most, the definition's to the bit; of others its neighbour
    now and then, where a product lies about halfway between. Infinite scales and NaN are what they are; zero points are
    all that there are."""
    drawn = np.random.default_rng(0)
    scheme = Scheme(element, 64, scale, zero="int" if element.startswith("u") else None)
    scales = np.exp(drawn.uniform(-9, 9, (HIGH, 6))).astype(FLOATS[scale])
    scales[0, :3], scales[1, 0] = (0, np.inf, -np.inf), np.nan
    zeros = {"zeros": drawn.permutation(np.resize(np.arange(256), HIGH * 6)).reshape(HIGH, 6).astype(np.uint8)}
    zeros["zeros"][:16] %= 128  # a warp's, none of which is large
    some = different = 0
    for found, wanted in beside_the_definition(scheme, 6 * 64, scales=scales, **(zeros if scheme.zero else {})):
        finite = np.isfinite(wanted)
        np.testing.assert_array_equal(found[~finite], wanted[~finite])
        off = np.abs(found[finite] - wanted[finite])
        assert (off <= 2.0**-7 * np.abs(wanted[finite])).all()
        some, different = some + finite.sum(), different + (off > 0).sum()
    exact = scale == "bf16" or (scale == "f16" and element in ("int4", "e2m1", "e4m3"))
    assert different <= (0 if exact else some / 100)


@pytest.mark.parametrize(
    ("scheme", "blocks"), [(Scheme("e2m1", 16, "e4m3"), 32), (Scheme("int4", 128, "bf16"), 16), (UINT4, 32)],
    ids=lambda of: getattr(of, "element", of),
)  # fmt: skip
def test_what_blocks_share_may_come_with_their_step(scheme: Scheme, blocks: int) -> None:
    """16 bytes a row, which are of one step, or of several."""
    drawn = np.random.default_rng(0)
    kind = ml_dtypes.float8_e4m3fn if scheme.scale == "e4m3" else BF16
    shared = {"scales": np.exp(drawn.uniform(-3, 3, (HIGH, blocks))).astype(kind)}
    if scheme.zero:
        shared["zeros"] = drawn.integers(0, 256, (HIGH, blocks)).astype(np.uint8)
    for found, wanted in beside_the_definition(scheme, blocks * scheme.block_elems, by_step=True, **shared):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("element", ["int4", "int8", "mxint8", "e2m1", "e4m3", "e5m2"])
def test_every_code_where_a_row_has_one_scale(element: str) -> None:
    """Which products are multiplied with."""
    ones = np.ones((HIGH, 1), np.float32)
    for found, wanted in beside_the_definition(Scheme(element, 0, "f32"), 256, scales=ones):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("wide", [16, 64, 128])
def test_what_is_turned_lies_as_copies_want_it(wide: int) -> None:
    """Rows of 128 bytes, whose pieces of 16 bytes are at the place that the last three bits of their row make of it."""
    y = np.random.default_rng(0).standard_normal((HIGH, wide)).astype(BF16)
    registers = np.empty((1, wide // 8, 1, 1, 2, 1, 1, 1, 1), dtype=object)
    for half in range(2):
        for j in range(wide // 8):
            rows, column = 16 * WARP + LANE // 4 + 8 * half, 8 * j + 2 * (LANE % 4)
            pair = np.stack([y[rows, column], y[rows, column + 1]], axis=1)
            registers[0, j, 0, 0, half, 0, 0, 0, 0] = np.ascontiguousarray(pair).view(np.uint32).reshape(-1)
    memory = np.full(2 * HIGH * wide, 0xAA, np.uint8)
    bits.turned(SimpleNamespace(registers=registers, shape=y.shape), memory)
    pieces = memory.reshape(wide, 8, 16)
    row = np.arange(wide)[:, None]
    lies = pieces[row, np.arange(8)[None] ^ (row & 7)].reshape(wide, 128).view(BF16)
    np.testing.assert_array_equal(lies, y.T)
