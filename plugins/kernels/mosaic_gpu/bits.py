"""What each thread of a Mosaic GPU kernel does with a step's codes, in MLIR: which bits go where (`by_bits.py` says
why)."""

from importlib import import_module
from typing import Any

import numpy as np

from plugins.kernels.mosaic_gpu import words
from plugins.kernels.mosaic_gpu.coding import STEP, Coding
from plugins.kernels.mosaic_gpu.elements import without_zeros
from plugins.kernels.mosaic_gpu.factors import scaled
from plugins.kernels.mosaic_gpu.launch import SWIZZLE
from plugins.kernels.mosaic_gpu.products import HIGH
from plugins.kernels.mosaic_gpu.words import arith, ir, llvm, number, shifted

mgpu = import_module("jax.experimental.mosaic.gpu")
utils = words.utils


def decoded(coding: Coding, codes: Any, shared: dict[str, Any], k: Any) -> Any:
    """bfloat16 `[64, columns]`, as `wgmma` wants it, of a step's codes: of a thread columns 2q and 2q + 1 of every
    eight, of rows r and r + 8.

    Args:
        codes, shared: shared memory `[64, 64]`, and by name, `[64, Coding.across]`, row after row.
        k: the number of the step.
    """
    i32 = ir.IntegerType.get_signless(32)
    thread = arith.andi(utils.thread_idx(), number(127))
    lane = arith.andi(thread, number(31))
    row = arith.addi(arith.muli(shifted(thread, -5), number(16)), shifted(lane, -2))
    q = arith.andi(lane, number(3))
    blocks = _blocks(coding, k, q)
    vector = ir.VectorType.get((4,), i32)
    pairs: list[Any] = []
    found: dict[str, list[Any]] = {name: [] for name in shared}
    for half in range(2):
        mine = arith.addi(row, number(8 * half))
        at = arith.addi(arith.muli(mine, number(STEP)), arith.muli(q, number(16)))
        four = llvm.load(vector, words.place(codes, at), alignment=16)
        pairs += [pair for n in range(4) for pair in coding.of.pairs(llvm.extractelement(four, number(n)))]
        for name, ref in shared.items():
            found[name] += _found(coding, ref, name, mine, blocks)
    if coding.zero:
        pairs = without_zeros(coding.of, pairs, found["zeros"])
    pairs = scaled(coding.of, coding.scale, pairs, found.get("scales", []))
    made = np.empty(mgpu.WGMMA_LAYOUT.registers_shape((HIGH, coding.columns)), dtype=object)
    two = ir.VectorType.get((2,), ir.BF16Type.get())
    for n, pair in enumerate(pairs):
        half, j = divmod(n, coding.columns // 8)
        made[0, j, 0, 0, half, 0, 0, 0, 0] = llvm.bitcast(two, pair)
    return mgpu.FragmentedArray(_registers=made, _layout=mgpu.WGMMA_LAYOUT, _is_signed=None)


def _blocks(coding: Coding, k: Any, q: Any) -> list[Any]:
    """The numbers of those blocks of a row that a thread has codes of in step `k`; past the last one that again."""
    if not coding.blocks:
        return []
    columns = coding.columns // 4
    held = min(coding.held, columns)
    first = arith.addi(arith.muli(k.registers.item(), number(coding.columns)), arith.muli(q, number(columns)))
    first = shifted(first, 1 - coding.held.bit_length())
    last = number(coding.blocks - 1)
    return [arith.minsi(arith.addi(first, number(n)), last) for n in range(columns // held)]


def _found(coding: Coding, ref: Any, name: str, row: Any, blocks: list[Any]) -> list[Any]:
    """A word of what each of `blocks` of a row has."""
    nbytes, across = coding.shared[name], coding.across(name)
    start = arith.muli(row, number(across))
    if coding.by_step:
        blocks = [arith.andi(block, number(across - 1)) for block in blocks]
    return [words.loaded(ref, arith.muli(arith.addi(start, block), number(nbytes)), nbytes) for block in blocks]


def turned(y: Any, ref: Any) -> None:
    """bfloat16 `y` `[64, N]`, as `wgmma` leaves it, transposed to shared memory `[N, 64]`: of four matrices of 8 × 8
    at a time a thread says where a row of one goes."""
    thread = utils.thread_idx()
    lane = arith.andi(thread, number(31))
    warp = arith.andi(arith.shrui(thread, number(5)), number(3))
    row = arith.andi(lane, number(7))
    second = arith.andi(arith.shrui(lane, number(3)), number(1))  # of the two matrices of a warp's 16 rows of y
    chunk = arith.xori(arith.addi(arith.muli(warp, number(2)), second), row)  # swizzled, 16 bytes each
    down = arith.addi(arith.muli(arith.shrui(lane, number(4)), number(8)), row)
    at = arith.addi(arith.muli(down, number(SWIZZLE)), arith.muli(chunk, number(16)))
    for j in range(0, y.shape[1] // 8, 2):
        here = arith.addi(at, number(8 * j * SWIZZLE))
        four = [llvm.bitcast(at.type, y.registers[0, j + n // 2, 0, 0, n % 2, 0, 0, 0, 0]) for n in range(4)]
        asm = "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [$0], {$1, $2, $3, $4};"
        llvm.inline_asm(
            ir.Type.parse("!llvm.void"), [words.place(ref, here), *four], asm, "r,r,r,r,r,~{memory}",
            has_side_effects=True,
        )  # fmt: skip
