"""What each thread of a Mosaic GPU kernel does with FP4 codes, in MLIR: which bits go where (`fp4.py` says why).

Pallas has no words of several codes, and no permutation that is free; so these are functions of a thread's registers.
"""

from importlib import import_module
from typing import Any, Final

import numpy as np

from plugins.kernels.codecs.mx import E8M0_NAN
from plugins.kernels.mosaic_gpu.launch import SWIZZLE
from plugins.kernels.mosaic_gpu.products import HIGH

# What these modules say of their own types holds of what they are generated from.
ir: Any = import_module("jaxlib.mlir.ir")
arith, llvm, scf = (import_module(f"jaxlib.mlir.dialects.{name}") for name in ("arith", "llvm", "scf"))
mgpu, utils = (import_module(f"jax.experimental.mosaic.gpu{name}") for name in ("", ".utils"))

STEP: Final = 64  # bytes of a row of codes in a step
COLUMNS: Final = 2 * STEP
MOST_POWER: Final = 128  # of E8M0 bytes: 2^126 times its power is the largest of bfloat16
NAN, ONE, TWO_TO_119 = 0x7FC0, 0x3F80, 0x7B00  # as bfloat16
NVFP4_LATER: Final = np.float32(256)  # what `_nvfp4` leaves out


def _number(n: int) -> Any:
    i32 = ir.IntegerType.get_signless(32)
    return arith.constant(i32, ir.IntegerAttr.get(i32, n - (n >> 31 << 32)))


def _shifted(word: Any, left: int) -> Any:
    if left == 0:
        return word
    return arith.shli(word, _number(left)) if left > 0 else arith.shrui(word, _number(-left))


def _multiplied(a: Any, b: Any) -> Any:
    """Two products of bfloat16, rounded to nearest, subnormals too."""
    return llvm.inline_asm(a.type, [a, b], "mul.rn.bf16x2 $0, $1, $2;", "=r,r,r", has_side_effects=False)


def _place(ref: Any, at: Any) -> Any:
    """The pointer `at` bytes into shared memory."""
    base = utils.memref_ptr(ref)
    byte = ir.IntegerType.get_signless(8)
    return llvm.getelementptr(base.type, base, [at], [-(1 << 31)], byte, llvm.GEPNoWrapFlags.none)


def decoded(kind: str, of_step: int, blocks: int, codes: Any, scales: Any, k: Any) -> Any:
    """bfloat16 `[64, 128]`, as `wgmma` wants it, of a step's codes: of a thread columns 2q and 2q + 1 of every eight,
    of rows r and r + 8.

    Args:
        kind: of the scales, of which a row has `blocks`, and `of_step` of a step.
        codes, scales: shared memory `[64, 64]`, and of `[64, blocks]`, row after row.
        k: the number of the step.
    """
    i8, i32 = (ir.IntegerType.get_signless(bits) for bits in (8, 32))
    thread = arith.andi(utils.thread_idx(), _number(127))
    lane = arith.andi(thread, _number(31))
    row = arith.addi(arith.muli(_shifted(thread, -5), _number(16)), _shifted(lane, -2))
    q = arith.andi(lane, _number(3))
    of_thread = of_step // 4
    first = arith.addi(arith.muli(k.registers.item(), _number(of_step)), arith.muli(q, _number(of_thread)))
    words = ir.VectorType.get((4,), i32)
    pairs, more = [], []
    for half in range(2):
        mine = arith.addi(row, _number(8 * half))
        at = arith.addi(arith.muli(mine, _number(STEP)), arith.muli(q, _number(16)))
        four = llvm.load(words, _place(codes, at), alignment=16)
        factors = []
        for n in range(of_thread):
            block = arith.minsi(arith.addi(first, _number(n)), _number(blocks - 1))
            place = arith.addi(arith.muli(mine, _number(blocks)), block)
            byte = arith.extui(i32, llvm.load(i8, _place(scales, place), alignment=1))
            factors.append(_nvfp4(byte) if kind == "e4m3" else _mxfp4(byte))
            more.append(byte)
        for j in range(COLUMNS // 8):
            word = llvm.extractelement(four, _number(j // 4))
            sign = arith.andi(_shifted(word, 12 - 4 * (j % 4)), _number(0x80008000))
            rest = arith.andi(_shifted(word, 6 - 4 * (j % 4)), _number(0x01C001C0))
            pairs.append(_multiplied(arith.ori(sign, rest), factors[j * of_thread // (COLUMNS // 8)]))
    if kind == "e8m0":
        pairs = _enlarged(pairs, more)
    made = np.empty(mgpu.WGMMA_LAYOUT.registers_shape((HIGH, COLUMNS)), dtype=object)
    two = ir.VectorType.get((2,), ir.BF16Type.get())
    for n, pair in enumerate(pairs):
        half, j = divmod(n, COLUMNS // 8)
        made[0, j, 0, 0, half, 0, 0, 0, 0] = llvm.bitcast(two, pair)
    return mgpu.FragmentedArray(_registers=made, _layout=mgpu.WGMMA_LAYOUT, _is_signed=None)


def _chosen(byte: Any, value: int, found: Any, otherwise: Any) -> Any:
    return arith.select(arith.cmpi(arith.CmpIPredicate.eq, byte, _number(value)), found, otherwise)


def _mxfp4(byte: Any) -> Any:
    """Two bfloat16, alike: 2^126 times the power of two of an E8M0 byte, and at most 2^127."""
    power = arith.shli(arith.addi(arith.minsi(byte, _number(MOST_POWER)), _number(126)), _number(7))
    return arith.muli(_chosen(byte, E8M0_NAN, _number(NAN), power), _number(0x10001))


def _enlarged(pairs: list[Any], scales: list[Any]) -> list[Any]:
    """`pairs`, half of them of each scale, with what `_mxfp4` leaves out, if any thread of a warp has such a scale."""
    i32 = pairs[0].type
    large = [arith.cmpi(arith.CmpIPredicate.sgt, byte, _number(MOST_POWER)) for byte in scales]
    asm = "{ .reg .pred p; setp.ne.u32 p, $1, 0; vote.sync.any.pred p, p, 0xffffffff; selp.u32 $0, 1, 0, p; }"
    some = llvm.inline_asm(i32, [arith.extui(i32, arith.ori(*large))], asm, "=r,r", has_side_effects=True)
    branch = scf.IfOp(arith.cmpi(arith.CmpIPredicate.ne, some, _number(0)), [i32] * len(pairs), has_else=True)
    with ir.InsertionPoint(branch.then_block):
        factors = [
            arith.muli(
                arith.select(is_large, arith.shli(arith.subi(byte, _number(1)), _number(7)), _number(ONE)),
                _number(0x10001),
            )
            for is_large, byte in zip(large, scales, strict=True)
        ]
        scf.yield_([_multiplied(pair, factors[n * len(factors) // len(pairs)]) for n, pair in enumerate(pairs)])
    with ir.InsertionPoint(branch.else_block):
        scf.yield_(pairs)
    return list(branch.results)


def _nvfp4(byte: Any) -> Any:
    """Two bfloat16, alike: 2^118 times what an E4M3 byte says."""
    # Of E4M3 as of E2M1: its bits in a bfloat16's place are 2^-120 times what they say, subnormals too.
    magnitude = arith.muli(arith.shli(arith.andi(byte, _number(127)), _number(4)), _number(0x10001))
    magnitude = _multiplied(_multiplied(magnitude, _number(TWO_TO_119 * 0x10001)), _number(TWO_TO_119 * 0x10001))
    two = arith.ori(magnitude, arith.muli(arith.shli(arith.andi(byte, _number(128)), _number(8)), _number(0x10001)))
    for value in (127, 255):
        two = _chosen(byte, value, _number(NAN * 0x10001), two)
    return two


def turned(y: Any, ref: Any) -> None:
    """bfloat16 `y` `[64, N]`, as `wgmma` leaves it, transposed to shared memory `[N, 64]`: of four matrices of 8 × 8
    at a time a thread says where a row of one goes."""
    thread = utils.thread_idx()
    lane = arith.andi(thread, _number(31))
    warp = arith.andi(arith.shrui(thread, _number(5)), _number(3))
    row = arith.andi(lane, _number(7))
    second = arith.andi(arith.shrui(lane, _number(3)), _number(1))  # of the two matrices of a warp's 16 rows of y
    chunk = arith.xori(arith.addi(arith.muli(warp, _number(2)), second), row)  # swizzled, 16 bytes each
    down = arith.addi(arith.muli(arith.shrui(lane, _number(4)), _number(8)), row)
    at = arith.addi(arith.muli(down, _number(SWIZZLE)), arith.muli(chunk, _number(16)))
    for j in range(0, y.shape[1] // 8, 2):
        here = arith.addi(at, _number(8 * j * SWIZZLE))
        four = [llvm.bitcast(at.type, y.registers[0, j + n // 2, 0, 0, n % 2, 0, 0, 0, 0]) for n in range(4)]
        asm = "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [$0], {$1, $2, $3, $4};"
        llvm.inline_asm(
            ir.Type.parse("!llvm.void"), [_place(ref, here), *four], asm, "r,r,r,r,r,~{memory}", has_side_effects=True
        )
