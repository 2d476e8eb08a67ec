"""What we lay out is what others read, and random boxes written and read back are what NumPy has there.

Arbitrary headers are in tests/fuzz.
"""

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.tensors.spec import DTYPE_BITS, TensorSpec, numpy_dtype
from plugins.formats.common.boxes import held_index, held_shape
from plugins.formats.npy.container import Npy
from plugins.formats.safetensors.container import SafeTensors
from tests.fuzz.safetensors_header import compare, file_of, our_verdict, package_verdict


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
