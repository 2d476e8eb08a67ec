"""How devices are numbered, and what parts of a tensor they hold."""

import pickle
from typing import Any

import pytest

from pipeline.errors import PlanError
from pipeline.mesh import Layout, Mesh


def test_devices_are_numbered_row_major() -> None:
    mesh = Mesh({"fsdp": 2, "tensor": 3})
    assert mesh.size == 6
    assert [tuple(mesh.coordinates(d).items()) for d in (0, 2, 3, 5)] == [
        (("fsdp", 0), ("tensor", 0)),
        (("fsdp", 0), ("tensor", 2)),
        (("fsdp", 1), ("tensor", 0)),
        (("fsdp", 1), ("tensor", 2)),
    ]
    with pytest.raises(IndexError, match="device 6 of a mesh of 6"):
        mesh.coordinates(6)


def test_the_order_of_axes_is_part_of_a_mesh_and_the_order_of_rules_is_not() -> None:
    rules = {"heads": "b", "kv_heads": "b"}
    mesh = Mesh({"a": 2, "b": 2}, rules)
    assert mesh != Mesh({"b": 2, "a": 2}, rules)
    assert mesh == Mesh({"a": 2, "b": 2}, dict(reversed(rules.items())))
    assert hash(mesh) == hash(pickle.loads(pickle.dumps(mesh)))
    lists: Any = ({"batch": ["a", "b"]}, {"a": ["mlp"]})
    assert hash(Mesh({"a": 2, "b": 2}, *lists)) == hash(Mesh({"a": 2, "b": 2}, {"batch": ("a", "b")}, {"a": ("mlp",)}))


def test_an_axis_of_one_device_divides_nothing() -> None:
    mesh = Mesh({"host": 2, "fsdp": 1}, {"batch": ("host", "fsdp")})
    assert mesh.over("batch") == ("host",)
    assert mesh.over("mlp") == ()


def test_parts_cover_a_tensor_and_name_their_devices() -> None:
    mesh = Mesh({"fsdp": 2, "tensor": 2})
    layout = Layout((8, 6), (("tensor", "fsdp"), ()), (("fsdp",), ()))
    assert layout.local_shape(mesh) == (2, 6)
    assert [(box[0].start, devices) for box, devices in layout.boxes(mesh)] == [
        (0, (0,)),
        (4, (1,)),
        (2, (2,)),
        (6, (3,)),
    ]
    assert all(layout.box(mesh, d) == box for box, devices in layout.boxes(mesh) for d in devices)
    assert layout.used == Layout((8, 6), (("tensor",), ()), ((), ()))
    assert [(box[0], devices) for box, devices in layout.used.boxes(mesh)] == [
        (slice(0, 4), (0, 2)),
        (slice(4, 8), (1, 3)),
    ]


def test_what_is_wrong_whatever_the_model_is_said_at_once() -> None:
    with pytest.raises(PlanError) as why:
        Mesh(
            {"tensor": 0},
            {"head": "tensor", "mlps": "tensor", "mlp": "tensr", "embed": "tensor", "vocab": ("tensor", "tensor")},
            {"fsdp": ("mlpp",)},
            replicated_most=1.5,
        )
    said = {p.where: p.message for p in why.value.problems}
    assert "0 devices" in said["axes.tensor"]
    assert "never computed divided" in said["rules.head"]
    assert "did you mean 'mlp'" in said["rules.mlps"]
    assert "did you mean 'tensor'" in said["rules.mlp"]
    assert "never computed divided" in said["rules.embed"]
    assert "twice" in said["rules.vocab"]
    assert len([p for p in why.value.problems if p.where == "stored.fsdp"]) == 2
    assert "from 0 to 1" in said["replicated_most"]
