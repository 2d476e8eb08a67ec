"""Boxes of C-order arrays that lie in files: the only place where tensor bytes cross the system-call boundary.

Reading is `preadv` into an array (`pipeline.tensors.rooms`). It is not mmap: a file cut short under a mapping kills the
process with SIGBUS where a read can say which tensor lost which bytes, and mapped pages count as resident memory. A box
is cut into runs of contiguous bytes; a leading slice of whole rows is one run and one read. Where runs are short and
close together (a column slice of a matrix), reading sieves: it takes runs and gaps together through a small staging
buffer and copies the runs out. Writing never sieves: a neighbouring box may be written by another process at the same
moment.
"""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import SourceError
from pipeline.files import storage_error
from pipeline.tensors import rooms
from pipeline.tensors.spec import DTYPE_BITS, TensorSpec, numpy_dtype
from pipeline.tensors.store import Index, normalize

STAGING_NBYTES = 4 << 20  # what a sieving read holds besides its result
SIEVE_RUN_NBYTES = 16 << 10  # from here on a run is worth its own system call
SIEVE_STRIDE_NBYTES = 64 << 10  # gaps up to this cost less to read than to skip: 6 µs cached, one request on a disk
READ_NBYTES = 1 << 30  # Linux moves at most 2^31 - 4096 bytes a call (read(2), NOTES)
# Of calls that write more the page cache takes huge pages, which a virtual machine gives back to its host while they
# are free, and has to have again first: 8 MiB a call took 5 to 8 times as long there. Others may write in between, too.
WRITE_NBYTES = 1 << 20

Level = tuple[int, int]
"""(count, stride in bytes) of one loop around the contiguous runs of a box."""


def held_shape(spec: TensorSpec) -> tuple[int, ...]:
    """Shape of the NumPy array that holds a stored tensor of `spec`.

    Sub-byte dtypes are packed uint8 with the last dimension in bytes; where rows do not fill whole bytes, the whole
    tensor is one row of `nbytes`.
    """
    bits = DTYPE_BITS[spec.dtype]
    if bits >= 8:
        return spec.shape
    if spec.shape and spec.shape[-1] * bits % 8 == 0:
        return (*spec.shape[:-1], spec.shape[-1] * bits // 8)
    return (spec.nbytes,)


def held_index(spec: TensorSpec, index: Index) -> tuple[slice, ...]:
    """`index`, given in elements of `spec`, as a box of the array that holds it.

    Raises:
        IndexError: not a box of `spec`, or it cuts through a byte of a sub-byte dtype.
    """
    box = normalize(index, spec.shape)
    bits = DTYPE_BITS[spec.dtype]
    if bits >= 8:
        return box
    if spec.shape and spec.shape[-1] * bits % 8 == 0:
        last = box[-1]
        if last.start * bits % 8 or last.stop * bits % 8:
            elems = 8 // math.gcd(8, bits)
            raise IndexError(f"{last} cuts through a byte: {spec.dtype} is cut at multiples of {elems} elements")
        return (*box[:-1], slice(last.start * bits // 8, last.stop * bits // 8))
    if any(s != slice(0, n) for s, n in zip(box, spec.shape, strict=True)):
        raise IndexError(f"{spec.dtype} rows of shape {spec.shape} do not fill whole bytes: only the whole can be used")
    return (slice(0, spec.nbytes),)


def cut(shape: Sequence[int], box: Sequence[slice], item_nbytes: int) -> tuple[int, list[Level], int]:
    """(first byte, loops outermost first, bytes of one run) of a box that is not empty."""
    start, run, stride = 0, item_nbytes, item_nbytes
    levels: list[Level] = []
    whole = True  # every dimension so far is whole: runs still grow
    for n, s in zip(reversed(shape), reversed(box), strict=True):
        count = s.stop - s.start
        start += s.start * stride
        if whole:
            run, whole = count * stride, count == n
        elif count > 1:
            if levels and levels[-1][0] * levels[-1][1] == stride:
                levels[-1] = (count * levels[-1][0], levels[-1][1])
            else:
                levels.append((count, stride))
        stride *= n
    return start, levels[::-1], run


def read_box(fd: int, offset: int, spec: TensorSpec, index: Index, where: str) -> Any:
    """The box `index` of a tensor of `spec` whose first byte is at `offset`, in a C-contiguous array of its own.

    Args:
        where: file and tensor, for messages.

    Raises:
        SourceError: the file ends before the box does, or cannot be read.
        IndexError: not a box of `spec`.
    """
    shape, box = held_shape(spec), held_index(spec, index)
    wanted, dtype = [s.stop - s.start for s in box], numpy_dtype(spec.dtype)
    out = rooms.unfilled(math.prod(wanted) * dtype.itemsize).view(dtype).reshape(wanted)
    if out.size:
        start, levels, run = cut(shape, box, out.itemsize)
        _Reader(fd, where).read(offset + start, levels, run, out.reshape(-1).view(np.uint8))
    return out


def write_box(fd: int, offset: int, spec: TensorSpec, index: Index, array: Any, where: str) -> None:
    """Write `array` to the box `index`; not one byte outside the box is touched.

    Raises:
        StorageError: the write failed; says the free space.
        ValueError: `array` has another shape or dtype than the box.
    """
    shape, box = held_shape(spec), held_index(spec, index)
    want, dtype = tuple(s.stop - s.start for s in box), numpy_dtype(spec.dtype)
    values = np.asarray(array)
    if values.shape != want or values.dtype != dtype:
        raise ValueError(f"{where}: given {values.dtype}{list(values.shape)} for a box of {dtype}{list(want)}")
    if not values.size:
        return
    start, levels, run = cut(shape, box, values.itemsize)
    data: Any = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    flat = memoryview(data)
    for i, at in enumerate(_starts(offset + start, levels)):
        write_bytes(fd, at, flat[i * run : (i + 1) * run], where)


def read_bytes(fd: int, at: int, into: memoryview, where: str) -> None:
    """Fill `into` from byte `at`, however many calls that takes.

    Raises:
        SourceError: the file ends first, or cannot be read.
    """
    done, total = 0, len(into)
    while done < total:
        try:
            got = os.preadv(fd, [into[done : done + READ_NBYTES]], at + done)
        except OSError as e:
            raise SourceError(f"{where}: reading {total} bytes at byte {at}: {e.strerror}") from e
        if got == 0:
            raise SourceError(f"{where}: cut short: expected {total} bytes at byte {at}, got {done}")
        done += got


def write_bytes(fd: int, at: int, data: memoryview, where: str) -> None:
    """Write all of `data` at byte `at`, however many calls that takes.

    Raises:
        StorageError: the write failed.
    """
    done, total = 0, len(data)
    while done < total:
        try:
            done += os.pwrite(fd, data[done : done + WRITE_NBYTES], at + done)
        except OSError as e:
            raise storage_error(f"{where}: writing {total} bytes at byte {at}", e, Path(f"/proc/self/fd/{fd}")) from e


def _starts(at: int, levels: Sequence[Level]) -> Sequence[int]:
    """First byte of every run, in the order of the box's elements."""
    starts = np.array([at], np.int64)
    for count, stride in levels:
        starts = (starts[:, None] + np.arange(count, dtype=np.int64) * stride).reshape(-1)
    return starts.tolist()  # type: ignore[no-any-return]


class _Reader:
    """One box being read: the staging buffer is made when a sieving read first needs it."""

    def __init__(self, fd: int, where: str):
        self.fd, self.where = fd, where
        self.staging: Any = None

    def read(self, at: int, levels: Sequence[Level], run: int, out: Any) -> None:
        """Read the runs under `levels` from byte `at` into `out`, uint8 [bytes of all runs]."""
        if not levels:
            read_bytes(self.fd, at, memoryview(out), self.where)
            return
        (count, stride), inner = levels[0], levels[1:]
        item = out.size // count
        span = sum((n - 1) * step for n, step in inner) + run  # first to last byte of one item of this loop
        if run < SIEVE_RUN_NBYTES and span <= STAGING_NBYTES and stride * run <= SIEVE_STRIDE_NBYTES * item:
            at_once = 1 + (STAGING_NBYTES - span) // stride
            for i in range(0, count, at_once):
                k = min(at_once, count - i)
                self.sieve(at + i * stride, [(k, stride), *inner], run, out[i * item : (i + k) * item])
            return
        for i in range(count):
            self.read(at + i * stride, inner, run, out[i * item : (i + 1) * item])

    def sieve(self, at: int, levels: Sequence[Level], run: int, out: Any) -> None:
        """Read runs and gaps in one call and copy the runs out."""
        nbytes = sum((n - 1) * step for n, step in levels) + run
        if self.staging is None or self.staging.size < nbytes:
            self.staging = np.empty(nbytes, np.uint8)
        read_bytes(self.fd, at, memoryview(self.staging)[:nbytes], self.where)
        unit = math.gcd(8, run, *(step for _, step in levels))  # move words, not bytes, where everything allows it
        counts = (*(n for n, _ in levels), run // unit)
        runs: Any = np.ndarray(counts, f"u{unit}", self.staging, 0, (*(step for _, step in levels), unit))
        out.view(f"u{unit}").reshape(counts)[...] = runs
