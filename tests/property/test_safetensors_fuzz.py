"""Arbitrary headers raise nothing but SourceError, and are accepted where the `safetensors` package accepts them.

We are stricter in the ways `STRICTER` lists and no others: a header that the package accepts and we refuse must be
refused for one of those reasons.
"""

import json
import struct
from pathlib import Path

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, deserialize

from pipeline.errors import SourceError
from pipeline.tensors.spec import DTYPE_BITS, TensorSpec, numpy_dtype
from plugins.formats.boxes import held_index, held_shape
from plugins.formats.npy import Npy
from plugins.formats.safetensors import SafeTensors
from plugins.formats.safetensors_header import parse_header
from tests.cases.hostile.safetensors_files import FILES, GOOD, STRICTER

STRICTER_REASONS = (
    "header begins with", "header ends with", "duplicate key", "__metadata__ must map", "must have exactly the fields",
    "overflows the size of any file", "shape must be a list", "dimensions; at most",
)  # fmt: skip


def package_verdict(data):
    """The tensors the package finds, or None."""
    try:
        return {n: (t["dtype"], tuple(t["shape"]), bytes(t["data"])) for n, t in deserialize(data)}
    except SafetensorError:
        return None


def our_verdict(data):
    """The tensors we find, or the reason there are none."""
    n = int.from_bytes(data[:8], "little")
    if len(data) < 8 or n > len(data) - 8:
        return "length"
    try:
        header = parse_header(data[8 : 8 + n], len(data) - 8 - n, Path("f"))
    except SourceError as e:
        return str(e)
    return {
        name: (spec.dtype, spec.shape, data[begin : begin + spec.nbytes])
        for name, (spec, begin) in header.tensors.items()
    }


def compare(data):
    ours, theirs = our_verdict(data), package_verdict(data)
    if isinstance(ours, dict):
        event("accepted")
        assert ours == theirs
    elif theirs is not None:
        event("stricter")
        assert any(reason in ours for reason in STRICTER_REASONS), ours
    else:
        event("refused by both")


def file_of(text, data):
    return struct.pack("<Q", len(text)) + text + data


SEEDS = [data for data, _ in (FILES | STRICTER).values() if len(data) < 500]


@st.composite
def mutated(draw):
    """A known file with some bytes replaced, removed, doubled or put in, and its length made right again, mostly."""
    data = draw(st.one_of(st.just(GOOD), st.sampled_from(SEEDS)))
    data = bytearray(data if len(data) > 8 else GOOD)
    n = int.from_bytes(data[:8], "little")
    text, rest = data[8 : 8 + n], data[8 + n :]
    for _ in range(draw(st.sampled_from([1, 1, 1, 2, 4]))):
        at = draw(st.integers(0, len(text)))
        stop = min(len(text), at + draw(st.integers(0, 6)))
        piece = draw(
            st.one_of(
                st.sampled_from([b"", b"0", b"1", b"-", b"[", b"]", b"{", b"}", b",", b":", b'"', b" ", b"\n", b"1e3"]),
                st.sampled_from([b"null", b"true", b'"U8"', b'"F4"', b'"a":', b"[0,0]", b"\\ud800", b"\\u0061", b"\0"]),
                st.binary(max_size=3),
                st.just(bytes(text[at:stop]) * 2),
            )
        )
        text[at:stop] = piece
    return file_of(bytes(text), bytes(rest))


@settings(max_examples=1500)
@given(mutated())
def test_mutated_headers(data):
    compare(data)


@settings(max_examples=300)
@given(st.binary(max_size=60), st.binary(max_size=8))
def test_any_bytes(text, data):
    compare(file_of(text, data))
    compare(file_of(b"{" + text + b"}", data))
    compare(text + data)


COUNTS = st.one_of(
    st.integers(0, 9), st.sampled_from([-1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 1.0])
)
LOOSE_ENTRY = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*DTYPE_BITS, "F33", ""]),
        "shape": st.lists(COUNTS, max_size=4),
        "data_offsets": st.lists(COUNTS, min_size=2, max_size=2),
    }
)
LOOSE_HEADER = st.dictionaries(st.text(max_size=3), LOOSE_ENTRY, max_size=3)


@settings(max_examples=400)
@given(LOOSE_HEADER, st.integers(0, 12))
def test_headers_of_the_right_form_with_any_numbers(header, data_nbytes):
    compare(file_of(json.dumps(header).encode(), bytes(data_nbytes)))


def spec_of(draw, dtype):
    lead = draw(st.lists(st.integers(0, 5), max_size=3))
    last = draw(st.integers(0, 6)) * (4 if DTYPE_BITS[dtype] < 8 else 1)
    return TensorSpec((*lead, last), dtype)


SPECS = st.composite(lambda draw: spec_of(draw, draw(st.sampled_from([*DTYPE_BITS]))))()


@settings(max_examples=300)
@given(st.lists(st.tuples(st.text('ab.\\"\u00fc\n', max_size=4), SPECS), unique_by=lambda t: t[0]), st.data())
def test_headers_near_the_truth(leaves, data):
    """What we lay out is accepted by both; with one number moved by one, both say the same."""
    layout = SafeTensors().layout(dict(leaves), {}, None)
    plan = layout.files[0]
    whole = plan.prefix + bytes(plan.nbytes - len(plan.prefix))
    assert our_verdict(whole) == package_verdict(whole)
    assert len(our_verdict(whole)) == len(leaves)
    header = json.loads(plan.prefix[8:])
    names = [n for n in header if n != "__metadata__"]
    if names:
        entry = header[data.draw(st.sampled_from(names))]
        numbers = entry[data.draw(st.sampled_from(["shape", "data_offsets"]))]
        i = data.draw(st.integers(0, len(numbers) - 1))
        numbers[i] += data.draw(st.sampled_from([-1, 1]))
        compare(file_of(json.dumps(header).encode(), whole[len(plan.prefix) :]))


def boxes_of(draw, spec):
    step = 4 if DTYPE_BITS[spec.dtype] < 8 else 1
    index = []
    for i, n in enumerate(spec.shape):
        unit = step if i == len(spec.shape) - 1 else 1
        start, stop = sorted(draw(st.lists(st.integers(0, n // unit), min_size=2, max_size=2)))
        index.append(slice(start * unit, stop * unit))
    return tuple(index[: draw(st.integers(0, len(index)))])


@settings(max_examples=120)
@given(st.data())
def test_random_boxes_round_trip(tmp_path_factory, data):
    """Random boxes written over random content in both containers read back as NumPy would have it."""
    folder = tmp_path_factory.getbasetemp() / "boxes"
    leaves = {f"w{i}": data.draw(SPECS) for i in range(data.draw(st.integers(1, 4)))}
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    container = data.draw(st.sampled_from([SafeTensors(), Npy()]))
    layout = container.layout(leaves, {}, data.draw(st.sampled_from([None, 1, 600])))
    for old in folder.glob("*"):
        old.unlink()
    container.begin(folder, layout)
    held = {n: np.zeros(held_shape(s), numpy_dtype(s.dtype)) for n, s in leaves.items()}
    for name in data.draw(st.lists(st.sampled_from([*leaves]), max_size=6)):
        index = data.draw(st.composite(boxes_of)(leaves[name]))
        box = held_index(leaves[name], index)
        part = held[name][box]
        part = np.frombuffer(rng.bytes(part.nbytes), part.dtype).reshape(part.shape)
        held[name][box] = part
        container.write(folder, layout, name, index, part)
    store = container.open(folder)
    assert dict(store.specs) == leaves
    for name, spec in leaves.items():
        index = data.draw(st.composite(boxes_of)(spec))
        want = held[name][held_index(spec, index)]
        for got in (store.read(name, index), container.read_back(folder, layout, name, index)):
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            assert got.tobytes() == want.tobytes()
