"""IDX: the format of MNIST and of the data sets that are made like it, .gz too.

    0, 0, kind of numbers, dimensions; the size of each (int32); the numbers, all big-endian
(http://yann.lecun.com/exdb/mnist, "The IDX file format")
"""

import math
from pathlib import Path

import numpy as np

from pipeline.digest import InputFile, identity
from pipeline.errors import SourceError
from pipeline.files import spoken
from pipeline.stage import Results
from plugins.data.sources import content, streamed

KINDS = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
VALUES = "values.bin"
COPY_NBYTES = 1 << 20


def header(path: Path) -> tuple[np.dtype, tuple[int, ...]]:
    """What the numbers are, and the shape of all of them.

    Raises:
        SourceError: it is no such file, or a plain one of another size than its header says.
    """
    with streamed(path) as stream:
        magic = stream.content.read(4)
        if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in KINDS or not 1 <= magic[3] <= 8:
            raise SourceError(f"{spoken(path)}: is no IDX file: it begins with {magic!r}")
        said = stream.content.read(4 * magic[3])
        sizes = np.frombuffer(said, ">i4") if len(said) == 4 * magic[3] else np.array([-1])
        if (sizes < 0).any():
            raise SourceError(f"{spoken(path)}: is no IDX file: its header says no sizes")
    dtype, shape = np.dtype(KINDS[magic[2]]), tuple(map(int, sizes))
    if path.suffix != ".gz":
        _sized(path, dtype, shape, path.stat().st_size - 4 * (1 + len(shape)))
    return dtype, shape


def _sized(path: Path, dtype: np.dtype, shape: tuple[int, ...], nbytes: int) -> None:
    if nbytes != (wanted := math.prod(shape) * dtype.itemsize):
        cut = "cut off" if nbytes < wanted else "longer than that"
        sizes = "×".join(map(str, shape))
        raise SourceError(
            f"{spoken(path)}: its header says {sizes}, {wanted:,} bytes, and it is {cut}: {nbytes:,} bytes"
        )


def mapped(results: Results, file: InputFile) -> np.ndarray:
    """The numbers of a file, in a file: itself, or what it is decompressed into.

    Raises:
        SourceError: as `header`; or what is compressed is damaged or cut off.
        StorageError: there is no room.
    """
    dtype, shape = header(file.path)
    begin = 4 * (1 + len(shape))
    if file.path.suffix != ".gz":
        return np.memmap(file.path, dtype, "r", begin, shape)
    parts = {"data": "idx", "file": content(file)}

    def make(folder: Path) -> list[int]:
        nbytes = 0
        with streamed(file.path) as stream, (folder / VALUES).open("wb") as out:
            stream.content.read(begin)
            while some := stream.content.read(COPY_NBYTES):
                nbytes += out.write(some)
        _sized(file.path, dtype, shape, nbytes)
        return list(shape)

    _, folder = results.once(identity(parts), make, files=(VALUES,), parts=parts)
    return np.memmap(folder / VALUES, dtype, "r", 0, shape)


def labels(path: Path) -> np.ndarray:
    """The numbers of a file of one dimension, read whole.

    Raises:
        SourceError: as `header`; it has several dimensions; or it is cut off.
    """
    dtype, shape = header(path)
    if len(shape) != 1 or dtype.kind == "f":
        raise SourceError(f"{spoken(path)}: labels are whole numbers in one dimension; it has {dtype.name} {shape}")
    with streamed(path) as stream:
        stream.content.read(4 * (1 + len(shape)))
        raw = stream.content.read()
    _sized(path, dtype, shape, len(raw))
    return np.frombuffer(raw, dtype)
