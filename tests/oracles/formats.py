"""Block formats encoded as their specifications and libraries say, a function each; what codecs must agree with.

A function takes blocks, float64 `[blocks, values]` of one matrix, and gives (codes, a byte each, of that shape; scales
`[blocks]`; zero points or minima `[blocks]` or None), all float64 but codes. A quotient that is not a number, 0 under
scale 0, has the code of 0. Slow, NumPy only.
"""

import math

import numpy as np

from tests.oracles.elements import largest, nearest
from tests.oracles.scales import dynamic_map, e8m0, f32, stored


def by_block(encode, matrix, rows, columns):
    """`encode` on the blocks of `[R, C]` values, bands of `rows` rows (0: all; the last may be lower).

    Returns codes `[R, C]`, scales and zero points or minima `[bands, blocks across]`.
    """
    height, width = matrix.shape
    rows, columns = rows or height, columns or width
    codes, shared = np.zeros(matrix.shape, np.uint8), []
    for top in range(0, height, rows):
        band = matrix[top : top + rows].astype(np.float64)
        across = band.reshape(len(band), -1, columns).swapaxes(0, 1)
        found, *more = encode(across.reshape(across.shape[0], -1))
        codes[top : top + rows] = found.reshape(across.shape).swapaxes(0, 1).reshape(band.shape)
        shared.append(more)
    scales, zeros = ([s[i] for s in shared] for i in (0, 1))
    return codes, np.array(scales), None if zeros[0] is None else np.array(zeros)


def divided(blocks, scale):
    """float32 quotients; what zero scales divide counts as 0."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(scale[:, None] == 0, np.copysign(0.0, blocks), f32(blocks / scale[:, None]))


def mx(kind, rule, ties):
    """OCP MX v1.0: a power of two, and exact quotients. Scales are bytes."""

    def encode(blocks):
        byte = e8m0(np.abs(blocks).max(axis=1), kind, rule)
        ratio = blocks / np.ldexp(1.0, byte.astype(int) - 127)[:, None]
        return nearest(ratio, kind, ties, narrow=True), byte, None

    return encode


def symmetric(kind, scale="f32", rule="amax", ties="even"):
    """amax on the largest element (`amax`), or half a step past the largest integer (`half_range`)."""

    def encode(blocks):
        top = largest(kind) + (0.5 if rule == "half_range" and kind not in ("e4m3", "e5m2") else 0)
        by = stored(f32(np.abs(blocks).max(axis=1) / top), scale)
        return nearest(divided(blocks, by), kind, ties, narrow=rule == "amax"), by, None

    return encode


def affine(kind, scale="f32"):
    """compressed-tensors' helpers.calculate_qparams and forward.quantize with `symmetric=False`, codes counted from 0.

    It computes with signed codes, from -half, and so does this, because float32 sums round.
    """
    half, most = 1 << (int(kind[-1]) - 1), (1 << int(kind[-1])) - 1

    def encode(blocks):
        low, high = np.minimum(blocks.min(axis=1), 0), np.maximum(blocks.max(axis=1), 0)
        by = stored(f32(f32(high - low) / most), scale)
        with np.errstate(divide="ignore", invalid="ignore"):
            zero = np.where(by == 0, 0, np.rint(f32(-half - f32(low / by))) + half).clip(0, most)
        signed = f32(divided(blocks, by) + (zero - half)[:, None]).clip(-half, half - 1)
        return (np.rint(signed) + half).astype(np.uint8), by, zero

    return encode


def nvfp4(amax, inverse=False):
    """NVFP4 of a matrix with this amax: (encode, second-level scale as stored).

    modelopt's weight_scale_2 is amax / (448 · 6); `inverse`, compressed-tensors' weight_global_scale, 448 · 6 / amax.
    """
    with np.errstate(divide="ignore", over="ignore"):
        second = float(f32(np.float64(2688.0) / amax if inverse else amax / 2688.0))
    second = 1.0 if second == 0 or math.isinf(second) else second

    def encode(blocks):
        alone = f32(np.abs(blocks).max(axis=1) / 6)
        by = stored(f32(alone * second if inverse else alone / second), "e4m3")
        total = f32(by / second if inverse else by * second)
        return nearest(divided(blocks, total), "e2m1"), by, None

    return encode, second


def nf4(blocks):
    """QLoRA as in bitsandbytes: times the reciprocal of absmax, the first of the nearest quantiles."""
    amax = np.abs(blocks).max(axis=1)
    return nearest(times_reciprocal(blocks, amax).clip(-1, 1), "nf4", "down"), amax, None


def times_reciprocal(blocks, scale):
    """float32 products with the float32 1 / scale; 0 where the scale is 0."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        inverse = np.where(scale == 0, 0, f32(1 / scale))
        return np.nan_to_num(f32(blocks * inverse[:, None]), nan=0.0, posinf=np.inf, neginf=-np.inf)


def double(scales):
    """Scales once more (QLoRA, section 3): (codes, largest magnitude of each 256 and, last, the mean)."""
    mean = float(f32(math.fsum(scales) / len(scales)))
    rest, table, codes, largest_of = f32(scales - mean), dynamic_map(), [], []
    for at in range(0, len(rest), 256):
        part = rest[at : at + 256][None]
        amax = np.abs(part).max(axis=1)
        ratio = times_reciprocal(part, amax)[0].clip(-1, 1)
        codes.append(np.argmin(np.abs(ratio[:, None] - table), axis=1))  # the first of equally near ones
        largest_of.append(amax[0])
    return np.concatenate(codes).astype(np.uint8), np.array([*largest_of, mean])


def q8_0(blocks):
    """ggml's quantize_row_q8_0_ref: C's roundf of x · (1 / d), d = amax / 127, stored as fp16."""
    d = f32(np.abs(blocks).max(axis=1) / 127)
    return nearest(times_reciprocal(blocks, d), "int8", "away", narrow=True), stored(d, "f16"), None


def q4_0(blocks):
    """quantize_row_q4_0_ref: the first value of largest magnitude becomes -8; x · (1 / d) + 8.5 is cut off. Two's
    complement here, where ggml counts from 0."""
    first = np.abs(blocks).argmax(axis=1)
    d = f32(blocks[np.arange(len(blocks)), first] / -8)
    code = np.trunc(f32(times_reciprocal(blocks, d) + 8.5)).clip(0, 15)
    return ((code - 8).astype(np.int64) & 15).astype(np.uint8), stored(d, "f16"), None


def q4_1(blocks):
    """quantize_row_q4_1_ref: (x - min) · (1 / d) + 0.5 cut off, d = (max - min) / 15; d and min as fp16."""
    low, high = blocks.min(axis=1), blocks.max(axis=1)
    d = f32(f32(high - low) / 15)
    code = np.trunc(f32(times_reciprocal(f32(blocks - low[:, None]), d) + 0.5)).clip(0, 15)
    return code.astype(np.uint8), stored(d, "f16"), stored(low, "f16")
