"""Every check of the GGUF reader and the message it gives; and that lies about sizes cost nothing."""

import struct
import tracemalloc

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import SourceError
from plugins.formats.gguf.file import GgufContainer
from tests.cases.hostile.gguf_files import FILES, GOOD, kv, raw, text


def refusal(path):
    with pytest.raises(SourceError) as caught:
        GgufContainer().open(path)
    return str(caught.value)


@pytest.mark.parametrize("case", FILES)
def test_refused_with_file_and_reason(case, tmp_path):
    data, expected = FILES[case]
    path = tmp_path / f"{case}.gguf"
    path.write_bytes(data)
    message = refusal(path)
    assert message.startswith(f"{path}: ")
    assert expected in message
    assert len(message) < 600 + len(str(path))


def test_good_file_is_accepted(tmp_path):
    """The hostile files are this one with one thing wrong; were it refused, the tests above would prove nothing."""
    path = tmp_path / "good.gguf"
    path.write_bytes(GOOD)
    leaves = GgufContainer().open(path)
    assert {n: (s.dtype, s.shape) for n, s in leaves.specs.items()} == {"a": ("F32", (3, 4)), "b": ("U8", (2, 34))}
    assert leaves.read("a").tobytes() == bytes(range(48))
    assert leaves.read("b").tobytes() == bytes(range(68))
    theirs = gguf.GGUFReader(path)
    assert [t.data.tobytes() for t in theirs.tensors] == [bytes(range(48)), bytes(range(68))]
    del theirs


def test_every_cut_of_a_good_file_is_refused(tmp_path):
    path = tmp_path / "cut.gguf"
    for n in range(len(GOOD) - 28):  # padding of the last tensor may be missing
        path.write_bytes(GOOD[:n])
        assert refusal(path).startswith(f"{path}: ")


@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_a_changed_byte_is_read_or_refused(tmp_path_factory, at, change):
    """Never another exception, and never bytes from outside the file."""
    path = tmp_path_factory.mktemp("flip") / "flip.gguf"
    data = bytearray(GOOD)
    data[at] ^= change
    path.write_bytes(data)
    try:
        leaves = GgufContainer().open(path)
    except SourceError:
        return
    assert sum(leaves.read(n).nbytes for n in leaves.specs) <= len(GOOD)
    leaves.config()


@pytest.mark.parametrize(
    "case", ["string_past_end", "huge_array", "huge_array_of_strings", "many_entries", "many_tensors"]
)
def test_lies_about_sizes_cost_no_memory(case, tmp_path):
    path = tmp_path / f"{case}.gguf"
    path.write_bytes(FILES[case][0])
    tracemalloc.start()
    refusal(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_a_header_has_a_bound(tmp_path):
    """A sparse file can be larger than any header; so can an array that is really there."""
    path = tmp_path / "large.gguf"
    path.write_bytes(raw([kv("k", 9, struct.pack("<IQ", 0, 200_000_000))]))
    with path.open("r+b") as f:
        f.truncate(300_000_000)
    assert "header of more than 100,000,000 bytes" in refusal(path)


def test_long_names_are_quoted_in_part(tmp_path):
    path = tmp_path / "long.gguf"
    path.write_bytes(raw(infos=[text("n" * 60000) + struct.pack("<I", 9)]))
    assert len(refusal(path)) < 600 + len(str(path))


def test_padding_after_the_last_tensor_may_be_missing(tmp_path):
    path = tmp_path / "short.gguf"
    path.write_bytes(GOOD[:-28])
    assert np.array_equal(GgufContainer().open(path).read("b").reshape(-1), np.arange(68, dtype=np.uint8))
