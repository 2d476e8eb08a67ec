"""Boxes against NumPy slicing: every path of the reader, what a writer must not touch, and what failures say."""

import errno
import itertools
import os

import ml_dtypes
import numpy as np
import pytest

from pipeline.errors import SourceError, StorageError
from pipeline.tensors import rooms
from pipeline.tensors.spec import DTYPE_BITS, TensorSpec, numpy_dtype
from pipeline.tensors.store import normalize
from plugins.formats.common import boxes
from plugins.formats.common.boxes import cut, held_index, held_shape, read_box, write_box

SHAPE = (3, 4, 5, 7)


def slices(n):
    return [slice(None), slice(0, 1), slice(1, n), slice(1, n - 1), slice(n - 1, n), slice(1, 1)]


@pytest.fixture
def calls(monkeypatch):
    """(first byte, bytes) of every read and every write, in order."""
    seen = []
    preadv, pwrite = os.preadv, os.pwrite
    monkeypatch.setattr(os, "preadv", lambda fd, b, at: seen.append(("r", at, len(b[0]))) or preadv(fd, b, at))
    monkeypatch.setattr(os, "pwrite", lambda fd, b, at: seen.append(("w", at, len(b))) or pwrite(fd, b, at))
    return seen


def file_of(path, array, offset):
    path.write_bytes(b"\xaa" * offset + array.tobytes() + b"\xbb" * 9)
    return os.open(path, os.O_RDWR)


@pytest.mark.parametrize("sieving", ["usual", "never", "tiny_buffer"])
def test_every_kind_of_box_reads_as_numpy_slices(sieving, tmp_path, monkeypatch):
    if sieving == "never":
        monkeypatch.setattr(boxes, "SIEVE_RUN_NBYTES", 0)
    if sieving == "tiny_buffer":  # a few rows at a time, and a last piece that is shorter
        monkeypatch.setattr(boxes, "STAGING_NBYTES", 100)
    array = np.arange(np.prod(SHAPE), dtype=np.uint16).reshape(SHAPE)
    fd = file_of(tmp_path / "f", array, 13)
    spec = TensorSpec(SHAPE, "U16")
    for index in itertools.product(*map(slices, SHAPE)):
        got = read_box(fd, 13, spec, index, "f")
        assert got.flags.c_contiguous
        assert got.ctypes.data % rooms.LINE_NBYTES == 0 or not got.size
        assert got.base.nbytes == got.nbytes + rooms.LINE_NBYTES, "no more than it needs is held"
        np.testing.assert_array_equal(got, array[index], strict=True)
    os.close(fd)


def test_every_kind_of_box_writes_its_bytes_and_no_others(tmp_path):
    array = np.arange(np.prod(SHAPE), dtype=np.uint16).reshape(SHAPE)
    spec = TensorSpec(SHAPE, "U16")
    for index in itertools.product(*map(slices, SHAPE)):
        fd = file_of(tmp_path / "f", array, 13)
        want = array.copy()
        want[index] += 1000
        write_box(fd, 13, spec, index, want[index], "f")  # mostly not contiguous: the writer must not mind
        os.close(fd)
        assert (tmp_path / "f").read_bytes() == b"\xaa" * 13 + want.tobytes() + b"\xbb" * 9


@pytest.mark.parametrize("dtype", DTYPE_BITS)
def test_every_dtype_keeps_its_bits(dtype, tmp_path):
    spec = TensorSpec((3, 5, 8), dtype)
    held = np.frombuffer(np.random.default_rng(7).bytes(spec.nbytes), numpy_dtype(dtype)).reshape(held_shape(spec))
    fd = file_of(tmp_path / "f", np.zeros(spec.nbytes, np.uint8), 3)
    index = (slice(1, 3), slice(0, 4), slice(4, 8))
    write_box(fd, 3, spec, (), held, "f")
    got = read_box(fd, 3, spec, index, "f")
    assert got.dtype == numpy_dtype(dtype)
    assert got.tobytes() == held[held_index(spec, index)].tobytes()
    os.close(fd)


def test_bf16_reads_as_bfloat16_with_every_bit_pattern(tmp_path):
    """NaN payloads and signs too, and the value of each is its bits moved up in a float32."""
    bits = np.arange(1 << 16, dtype=np.uint16).reshape(128, 512)
    fd = file_of(tmp_path / "f", bits, 1)
    got = read_box(fd, 1, TensorSpec((128, 512), "BF16"), (), "f")
    os.close(fd)
    assert got.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(got.view(np.uint16), bits)
    wide = (bits.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(got.astype(np.float32)[~np.isnan(wide)], wide[~np.isnan(wide)])
    np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), np.isnan(wide))


def test_rows_are_one_read_and_one_write(tmp_path, calls):
    array = np.arange(11 * 13 * 17, dtype=np.float32).reshape(11, 13, 17)
    fd = file_of(tmp_path / "f", array, 5)
    spec = TensorSpec(array.shape, "F32")
    row = 13 * 17 * 4
    write_box(fd, 5, spec, (slice(2, 9),), read_box(fd, 5, spec, (slice(2, 9),), "f"), "f")
    read_box(fd, 5, spec, (slice(4, 5), slice(3, 6)), "f")
    os.close(fd)
    assert calls == [("r", 5 + 2 * row, 7 * row), ("w", 5 + 2 * row, 7 * row), ("r", 5 + 4 * row + 3 * 68, 3 * 68)]


def test_columns_are_sieved_within_the_staging_buffer(tmp_path, calls):
    """A column slice of 600 rows of 16 KiB: 3 reads of at most 4 MiB, not 600; far or long runs are not sieved."""
    array = np.random.default_rng(1).integers(0, 255, (600, 16384), np.uint8)
    fd = file_of(tmp_path / "f", array, 0)
    got = read_box(fd, 0, TensorSpec(array.shape, "U8"), (slice(None), slice(100, 164)), "f")
    np.testing.assert_array_equal(got, array[:, 100:164])
    assert len(calls) == 3
    assert max(n for _, _, n in calls) <= boxes.STAGING_NBYTES
    calls.clear()
    got = read_box(fd, 0, TensorSpec((75, 131072), "U8"), (slice(None), slice(100, 164)), "f")
    np.testing.assert_array_equal(got, array.reshape(75, -1)[:, 100:164])
    assert [n for _, _, n in calls] == [64] * 75
    os.close(fd)


def test_short_transfers_are_continued(tmp_path, monkeypatch):
    array = np.arange(5000, dtype=np.int32).reshape(50, 100)
    fd = file_of(tmp_path / "f", array, 3)
    spec = TensorSpec(array.shape, "I32")
    for most in ("READ_NBYTES", "WRITE_NBYTES"):
        monkeypatch.setattr(boxes, most, 777)
    np.testing.assert_array_equal(read_box(fd, 3, spec, (), "f"), array)
    write_box(fd, 3, spec, (), array[::-1], "f")
    np.testing.assert_array_equal(read_box(fd, 3, spec, (), "f"), array[::-1])
    os.close(fd)


@pytest.mark.parametrize("width", [7, 3])  # a straight and a sieved read
def test_end_of_file_is_an_error_that_says_where(width, tmp_path):
    fd = file_of(tmp_path / "f", np.zeros((11, 7), np.uint8), 10)
    os.ftruncate(fd, 10 + 70)
    with pytest.raises(SourceError, match=r"^f: tensor 'w': cut short: expected \d+ bytes at byte 10, got 70$"):
        read_box(fd, 10, TensorSpec((11, 7), "U8"), (slice(None), slice(0, width)), "f: tensor 'w'")
    os.close(fd)


def test_failed_system_calls_say_the_file_the_bytes_and_the_space(tmp_path, monkeypatch):
    full = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(
        StorageError, match=r"^f: tensor 'w': writing 12 bytes at byte 8: No space left .* free there\)$"
    ):
        write_box(full, 8, TensorSpec((3,), "F32"), (), np.zeros(3, np.float32), "f: tensor 'w'")
    os.close(full)

    def broken(fd, buffers, at):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(SourceError, match=r"^f: tensor 'w': reading 12 bytes at byte 8: Input/output error$"):
        read_box(0, 8, TensorSpec((3,), "F32"), (), "f: tensor 'w'")


def test_write_refuses_another_shape_or_dtype(tmp_path):
    spec = TensorSpec((3, 5), "F32")
    for wrong in (np.zeros((5, 3), np.float32), np.zeros((3, 5), np.int32), np.zeros((3, 5), ">f4")):
        with pytest.raises(ValueError, match=r"^f: given \S+\[\d, \d\] for a box of float32\[3, 5\]"):
            write_box(-1, 0, spec, (), wrong, "f")


@pytest.mark.parametrize(
    ("dtype", "shape", "held"),
    [
        ("F4", (3, 10), (3, 5)),
        ("F6_E2M3", (3, 5, 8), (3, 5, 6)),
        ("F6_E3M2", (7, 4), (7, 3)),
        ("F4", (2, 3), (3,)),  # rows of a byte and a half
        ("F4", (0, 3), (0,)),
        ("F8_E4M3", (3, 7), (3, 7)),
        ("BF16", (), ()),
    ],
)
def test_held_shape(dtype, shape, held):
    assert held_shape(TensorSpec(shape, dtype)) == held


@pytest.mark.parametrize(
    ("dtype", "shape", "index", "message"),
    [
        ("F4", (3, 10), (slice(0, 1), slice(1, 4)), "F4 is cut at multiples of 2 elements"),
        ("F4", (3, 10), (slice(0, 1), slice(0, 3)), "F4 is cut at multiples of 2 elements"),
        ("F6_E2M3", (3, 8), (slice(0, 1), slice(2, 4)), "F6_E2M3 is cut at multiples of 4 elements"),
        ("F4", (2, 3), (slice(0, 1),), "only the whole can be used"),
        ("U8", (2, 3), (slice(0, 3),), "dimension 0"),
        ("U8", (2, 3), (slice(0, 2, 2),), "step-1"),
        ("U8", (2, 3), (slice(None),) * 3, "3 slices"),
    ],
)
def test_not_a_box(dtype, shape, index, message):
    with pytest.raises(IndexError, match=message):
        held_index(TensorSpec(shape, dtype), index)


def test_cut_merges_loops():
    """[3, 5, 7, 11] elements of 2 bytes: inner whole dimensions join the run, whole loops join their neighbours."""
    shape = (3, 5, 7, 11)
    whole = slice(None)

    def of(*box):
        return cut(shape, normalize(box, shape), 2)

    assert of(whole, whole, whole, whole) == (0, [], 3 * 5 * 7 * 22)
    assert of(slice(1, 2), slice(2, 4), whole, whole) == (770 + 2 * 154, [], 2 * 154)
    assert of(whole, whole, whole, slice(1, 2)) == (2, [(105, 22)], 2)
    assert of(whole, slice(1, 3), whole, slice(4, 6)) == (154 + 8, [(3, 770), (14, 22)], 4)
