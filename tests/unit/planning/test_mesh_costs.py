"""Bytes on meshes, by hand: what a device holds, and devices send."""

import pytest

from pipeline.mesh import SINGLE, Exchange, Mesh, Parameter
from pipeline.planning.layout import largest_whole, lay_out
from pipeline.planning.mesh_costs import (
    exchanges,
    held_nbytes,
    summed,
    weights_nbytes,
)
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.tensors.spec import TensorSpec
from tests.unit.planning.test_layout import EMBED, HEAD_DIM, STORED, TENSOR, layer, specs_of

INT8_ROWS = Scheme(element="int8", block_elems=0, scale="f32")


def test_packed_parts_have_their_codes_and_scales() -> None:
    """[96, 128] over two: 64 columns of 4 bits are 32 bytes and 2 scales a row."""
    mesh = Mesh({"tensor": 2}, TENSOR)
    layout = lay_out(mesh, layer(), specs_of(layer(), down=MXFP4))["model.layers.0.mlp.down"]
    assert held_nbytes(mesh, layout, TensorSpec((EMBED, 128), "BF16", MXFP4)) == EMBED * (32 + 2)


def test_scales_of_whole_rows_are_on_every_device_that_has_a_part_of_the_row() -> None:
    mesh = Mesh({"tensor": 2}, TENSOR)
    layout = lay_out(mesh, layer(), specs_of(layer(), down=INT8_ROWS))["model.layers.0.mlp.down"]
    assert held_nbytes(mesh, layout, TensorSpec((EMBED, 128), "BF16", INT8_ROWS)) == EMBED * (64 + 4)


def test_weights_of_a_device() -> None:
    """Four ways by both axes; only what has no `mlp`, `heads` or `vocab` is divided by two."""
    mesh = Mesh({"fsdp": 2, "tensor": 2}, {**TENSOR, "batch": "fsdp"}, {"fsdp": STORED})
    specs = specs_of(layer())
    norm = EMBED * 2
    whole = sum(s.nbytes for s in specs.values())
    assert weights_nbytes(mesh, layer(), specs, lay_out(mesh, layer(), specs)) == (whole - norm) // 4 + norm // 2
    assert weights_nbytes(SINGLE, layer(), specs, lay_out(SINGLE, layer(), specs)) == whole


def test_the_largest_that_lie_whole() -> None:
    mesh = Mesh({"tensor": 2}, {"mlp": "tensor"}, replicated_most=1)
    specs = specs_of(layer())
    found = largest_whole(layer(), specs, lay_out(mesh, layer(), specs))
    assert found[0] == ("model.layers.*.o", EMBED * 4 * HEAD_DIM * 2)
    assert [name for name, _ in found][-1] == "model.layers.*.sinks"
    assert "model.layers.*.mlp.up" not in dict(found)


def test_one_device_sends_nothing() -> None:
    specs = specs_of(layer())
    layouts = lay_out(SINGLE, layer(), specs)
    assert exchanges(SINGLE, layer(), specs, layouts, tokens=8, predicted=8, activation_nbytes=2) == []


def test_what_tensor_parallelism_sends() -> None:
    """Two devices: of every sum of [5, 96] in fp32 each sends all of it; of logits [2, 64] its half."""
    mesh = Mesh({"tensor": 2}, TENSOR)
    specs = specs_of(layer())
    found = exchanges(mesh, layer(), specs, lay_out(mesh, layer(), specs), tokens=5, predicted=2, activation_nbytes=2)
    assert set(found) == {
        Exchange("embedding", "psum", ("tensor",), 1, 5 * EMBED * 2),
        Exchange("sum", "psum", ("tensor",), 2, 2 * 5 * EMBED * 4),
        Exchange("logits", "all_gather", ("tensor",), 1, 2 * 32 * 4),
    }


def test_what_expert_parallelism_sends() -> None:
    """Sums of [7, 96] in fp32 over 4 × 2 devices: 2 · 7 / 8 of them, once a layer."""
    mesh = Mesh({"expert": 4, "tensor": 2}, {"experts": "expert", "mlp": "tensor"}, replicated_most=1)
    model = layer(experts=4)
    specs = specs_of(model, gate_up=MXFP4, down=MXFP4)
    found = exchanges(mesh, model, specs, lay_out(mesh, model, specs), tokens=7, predicted=7, activation_nbytes=4)
    assert found == [Exchange("experts", "psum", ("expert", "tensor"), 1, 7 * EMBED * 4 * 2 * 7 // 8)]


def test_what_fsdp_sends() -> None:
    """Each of 4 devices sends its quarter three times; a tied embedding is gathered once for both of its uses."""
    mesh = Mesh({"fsdp": 4}, {"batch": "fsdp"}, {"fsdp": STORED})
    specs = specs_of(layer())
    whole = sum(s.nbytes for s in specs.values())
    found = exchanges(mesh, layer(), specs, lay_out(mesh, layer(), specs), tokens=7, predicted=7, activation_nbytes=4)
    assert found == [Exchange("gather", "all_gather", ("fsdp",), len(layer()), whole * 3 // 4)]
    head = Parameter(("head",), (64, EMBED), ("vocab", "embed"), (1, 1))
    model = [*layer(), head]
    specs = specs_of(model)
    whole = sum(s.nbytes for s in specs.values())
    found = exchanges(mesh, model, specs, lay_out(mesh, model, specs), tokens=7, predicted=7, activation_nbytes=4)
    assert found == [Exchange("gather", "all_gather", ("fsdp",), len(model), whole * 3 // 4)]


def test_gathering_sends_no_scales_that_are_there_already() -> None:
    """Whole rows share a scale, and columns are divided: codes go around, scales do not."""
    matrix = Parameter(("m",), (8, 64), ("embed", "mlp"), (1, 1))
    specs = {"m": TensorSpec((8, 64), "BF16", INT8_ROWS)}
    mesh = Mesh({"fsdp": 4}, {}, {"fsdp": ("mlp",)})
    found = exchanges(mesh, [matrix], specs, lay_out(mesh, [matrix], specs), tokens=1, predicted=1, activation_nbytes=4)
    assert found == [Exchange("gather", "all_gather", ("fsdp",), 1, 8 * 64 * 3 // 4)]


@pytest.mark.parametrize(("ways", "nbytes"), [(1, 0), (2, 1000), (4, 1500), (8, 1750)])
def test_a_ring_sum(ways: int, nbytes: int) -> None:
    assert summed(Mesh({"a": ways}), ("a",), 1000) == nbytes
