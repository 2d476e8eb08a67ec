"""What threads do with FP4 codes (`plugins/kernels/mosaic_gpu/bits.py`), of all codes and scales, by bits: no
interpreter runs MLIR, so that each operation stands here for itself, on the registers of 128 threads."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4, Scheme
from plugins.kernels.dequantize.reference import dequantize
from plugins.kernels.mosaic_gpu import bits
from plugins.kernels.mosaic_gpu.fp4 import arranged

THREADS, HIGH, COLUMNS, BLOCKS = 128, 64, 128, 9
BF16 = np.dtype(ml_dtypes.bfloat16)
LANE, WARP = np.arange(THREADS) % 32, np.arange(THREADS) // 32


def words(value: Any) -> Any:
    return np.broadcast_to(np.asarray(value).astype(np.uint32), THREADS)


def halves(word: Any) -> Any:
    """bfloat16 `[128, 2]`, the lower half first."""
    return np.ascontiguousarray(word).view(np.uint16).view(BF16).reshape(-1, 2)


def asm(kind: Any, args: list[Any], text: str, constraints: str, **_: Any) -> Any:
    if text.startswith("mul.rn.bf16x2"):
        a, b = (halves(words(arg)).astype(np.float32) for arg in args)
        with np.errstate(invalid="ignore"):
            return np.ascontiguousarray((a * b).astype(BF16)).view(np.uint32).reshape(-1)
    if "vote.sync.any" in text:
        return np.repeat((words(args[0]) != 0).reshape(4, 32).any(axis=1), 32).astype(np.uint32)
    assert text.startswith("stmatrix.sync.aligned.m8n8.x4.trans")
    (memory, at), *registers = args
    for warp in range(4):
        for n, register in enumerate(registers):
            matrix = np.ascontiguousarray(words(register)[32 * warp :][:32]).view(np.uint16).reshape(8, 8)
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
    return words(value).view(Word)


def load(kind: Any, place: Any, alignment: int) -> Any:
    memory, at = place
    assert not (at % alignment).any()
    if kind == 8:
        return memory[at]
    return [np.stack([memory[at + 4 * n + b] for b in range(4)], 1).copy().view(np.uint32)[:, 0] for n in range(4)]


def signed(value: Any) -> Any:
    return words(value).astype(np.int32)


ARITH = SimpleNamespace(
    constant=lambda _, n: word(n & 0xFFFFFFFF), addi=lambda a, b: word(words(a) + words(b)),
    subi=lambda a, b: word(words(a) - words(b)), muli=lambda a, b: word(words(a) * words(b)),
    andi=lambda a, b: word(words(a) & words(b)), ori=lambda a, b: word(words(a) | words(b)),
    xori=lambda a, b: word(words(a) ^ words(b)), shli=lambda a, b: word(words(a) << words(b)),
    shrui=lambda a, b: word(words(a) >> words(b)), minsi=lambda a, b: word(np.minimum(signed(a), signed(b))),
    extui=lambda _, a: word(a), select=lambda c, a, b: word(np.where(c, words(a), words(b))),
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
    for name, fake in {"arith": ARITH, "llvm": LLVM, "scf": scf, "ir": IR, "mgpu": MGPU, "utils": utils}.items():
        monkeypatch.setattr(bits, name, fake)


def of_registers(registers: Any) -> Any:
    """The array `[64, N]` that threads have in WGMMA's layout: PTX ISA, "Register fragments and shared memory"."""
    found = np.zeros((HIGH, 8 * registers.shape[1]), BF16)
    for half in range(2):
        for j in range(registers.shape[1]):
            rows, column = 16 * WARP + LANE // 4 + 8 * half, 8 * j + 2 * (LANE % 4)
            pair = halves(words(registers[0, j, 0, 0, half, 0, 0, 0, 0]))
            found[rows, column], found[rows, column + 1] = pair[:, 0], pair[:, 1]
    return found


@pytest.mark.parametrize(("scheme", "of_step"), [(MXFP4, 4), (Scheme("e2m1", 16, "e4m3"), 8)])
def test_every_code_under_every_scale(scheme: Scheme, of_step: int) -> None:
    """Rows of nine blocks, the last step of which has one, or of 16 all; those past the end are some other's."""
    drawn = np.random.default_rng(0)
    for first in (0, 101):
        scales = ((first + np.arange(HIGH * BLOCKS)) % 256).astype(np.uint8)
        if scheme.scale == "e8m0":
            scales[(scales == 253) | (scales == 254)] = 252  # under which 6 is infinite
        for k in range(-(-BLOCKS // of_step)):
            codes = drawn.permutation(np.resize(np.arange(256, dtype=np.uint8), HIGH * 64)).reshape(HIGH, 64)
            step = SimpleNamespace(registers=np.array(word(k)[:1]))
            found = of_registers(bits.decoded(scheme.scale, of_step, BLOCKS, codes.reshape(-1), scales, step))
            block = np.minimum(k * of_step + np.arange(of_step), BLOCKS - 1)
            mine = scales.reshape(HIGH, BLOCKS)[:, block]
            stored = mine if scheme.scale == "e8m0" else mine.view(ml_dtypes.float8_e4m3fn)
            values = np.asarray(dequantize(QTensor(codes, stored, scheme), "F32")).astype(np.float32)
            with np.errstate(invalid="ignore"):
                expected = np.asarray(arranged(jnp.asarray(values))).astype(np.float32)
                wide = found.astype(np.float32) * (1 if scheme.scale == "e8m0" else bits.NVFP4_LATER)
            np.testing.assert_array_equal(wide, expected.astype(BF16).astype(np.float32))


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
