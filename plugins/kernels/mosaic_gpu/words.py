"""32-bit words in a thread's registers, in MLIR: what codes are taken apart by, and made pairs of bfloat16.

Pallas has no words of several codes; so these are operations on registers. A pair has the lower of two columns in the
lower half of its word.
"""

from collections.abc import Callable
from functools import reduce
from importlib import import_module
from typing import Any, Final

# What these modules say of their own types holds of what they are generated from.
ir: Any = import_module("jaxlib.mlir.ir")
arith, llvm, scf = (import_module(f"jaxlib.mlir.dialects.{name}") for name in ("arith", "llvm", "scf"))
utils: Any = import_module("jax.experimental.mosaic.gpu.utils")

BOTH: Final = 0x10001  # times a bfloat16: two of it
INFINITY: Final = 0x7F80  # the exponent of bfloat16's infinities and NaN, and no other bit
NAN: Final = 0x7FC0


def number(n: int) -> Any:
    i32 = ir.IntegerType.get_signless(32)
    return arith.constant(i32, ir.IntegerAttr.get(i32, n - (n >> 31 << 32)))


def shifted(word: Any, left: int) -> Any:
    """By so many bits to the left, or if that is negative to the right, and zeros come after."""
    if left == 0:
        return word
    return arith.shli(word, number(left)) if left > 0 else arith.shrui(word, number(-left))


def masked(word: Any, half: int) -> Any:
    """Those bits of each half of a word that are in `half`."""
    return arith.andi(word, number(half * BOTH))


def twice(word: Any) -> Any:
    """Two of what the lower half of a word is, whose upper half is 0."""
    return arith.muli(word, number(BOTH))


def above(word: Any, value: int) -> Any:
    """Whether a word, as a signed integer, is more than `value`."""
    return arith.cmpi(arith.CmpIPredicate.sgt, word, number(value))


def chosen(word: Any, value: int, found: Any, otherwise: Any) -> Any:
    """`found` where `word` is `value`."""
    return arith.select(arith.cmpi(arith.CmpIPredicate.eq, word, number(value)), found, otherwise)


def power(n: int) -> Any:
    """Two bfloat16, alike: 2^n, for n from -126 to 127."""
    return number((n + 127 << 7) * BOTH)


def multiplied(a: Any, b: Any) -> Any:
    """Two products of bfloat16, rounded to nearest, subnormals too."""
    return _asm("mul.rn.bf16x2 $0, $1, $2;", a, b)


def less(a: Any, b: Any) -> Any:
    """Two differences of bfloat16, rounded to nearest."""
    return _asm("sub.rn.bf16x2 $0, $1, $2;", a, b)


def added_product(a: Any, b: Any, c: Any) -> Any:
    """a · b + c, of two bfloat16 each, rounded once, to nearest."""
    return _asm("fma.rn.bf16x2 $0, $1, $2, $3;", a, b, c)


def rounded(a: Any) -> Any:
    """A float32 as two bfloat16, alike, rounded to nearest."""
    return _asm("cvt.rn.bf16x2.f32 $0, $1, $1;", a)


def less_by_float32(a: Any, b: Any) -> Any:
    """The difference of two float32."""
    return _asm("sub.rn.f32 $0, $1, $2;", a, b)


def of_float16(word: Any, *, upper: bool) -> Any:
    """The float32 of a float16 in the lower or upper half of a word."""
    return _asm(_of_half("cvt.f32.f16", upper), word)


def of_float8(kind: str, word: Any, *, upper: bool) -> Any:
    """Two float16 of two bytes in the lower or upper half of a word, E4M3 or E5M2, NaN and infinities as they are."""
    return _asm(_of_half(f"cvt.rn.f16x2.{kind}x2", upper), word)


def _of_half(conversion: str, upper: bool) -> str:
    halves = "other, h" if upper else "h, other"
    return f"{{ .reg .b16 h, other; mov.b32 {{{halves}}}, $1; {conversion} $0, h; }}"


def highs(a: Any, b: Any) -> Any:
    """The upper halves of two words: two float32 as bfloat16, whose other bits are dropped."""
    return _asm("prmt.b32 $0, $1, $2, 0x7632;", a, b)


def if_any(
    conditions: list[Any], count: int, found: Callable[[], list[Any]], otherwise: Callable[[], list[Any]]
) -> list[Any]:
    """`count` words: `found()` where any of a thread's conditions holds in any thread of its warp, or `otherwise()`."""
    i32 = ir.IntegerType.get_signless(32)
    branch = scf.IfOp(_any_of_warp(reduce(arith.ori, conditions)), [i32] * count, has_else=True)
    for block, words in ((branch.then_block, found), (branch.else_block, otherwise)):
        with ir.InsertionPoint(block):
            scf.yield_(words())
    return list(branch.results)


def _any_of_warp(condition: Any) -> Any:
    i32 = ir.IntegerType.get_signless(32)
    asm = "{ .reg .pred p; setp.ne.u32 p, $1, 0; vote.sync.any.pred p, p, 0xffffffff; selp.u32 $0, 1, 0, p; }"
    some = llvm.inline_asm(i32, [arith.extui(i32, condition)], asm, "=r,r", has_side_effects=True)
    return arith.cmpi(arith.CmpIPredicate.ne, some, number(0))


def place(ref: Any, at: Any) -> Any:
    """The pointer `at` bytes into shared memory."""
    base = utils.memref_ptr(ref)
    byte = ir.IntegerType.get_signless(8)
    return llvm.getelementptr(base.type, base, [at], [-(1 << 31)], byte, llvm.GEPNoWrapFlags.none)


def loaded(ref: Any, at: Any, nbytes: int) -> Any:
    """A word of what so many bytes `at` bytes into shared memory are, the others 0."""
    word, part = (ir.IntegerType.get_signless(bits) for bits in (32, 8 * nbytes))
    found = llvm.load(part, place(ref, at), alignment=nbytes)
    return found if nbytes == 4 else arith.extui(word, found)


def _asm(text: str, *args: Any) -> Any:
    constraints = ",".join(["=r", *["r"] * len(args)])
    i32 = ir.IntegerType.get_signless(32)
    return llvm.inline_asm(i32, list(args), text, constraints, has_side_effects=False)
