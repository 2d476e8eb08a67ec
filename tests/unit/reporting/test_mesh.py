"""What people see of a mesh: tables, blocks of characters, the graph and a picture."""

from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from pipeline.api import compose_run
from pipeline.errors import StorageError
from pipeline.mesh import Layout, Mesh
from pipeline.planning.memory import plan_run
from pipeline.planning.wiring import Plan
from pipeline.reporting import console
from pipeline.reporting.mesh import draw_placements, mesh_tables, show_mesh
from pipeline.reporting.mesh_picture import (
    EVERYWHERE,
    Drawing,
    blocks,
    colours,
    draw,
    drawn_dims,
    grid,
    shown_devices,
)

F2T2 = Mesh({"fsdp": 2, "tensor": 2})


def layout(shape: tuple[int, ...], *axes: Sequence[str]) -> Layout:
    return Layout(shape, tuple(map(tuple, axes)), ((),) * len(shape))


def planned(*overrides: str) -> Plan:
    found = plan_run(compose_run(["+model=gpt_oss", "quant=mxfp4", *overrides]), Path("/nowhere"))
    assert not found.problems
    return found


@pytest.fixture(scope="module")
def expert() -> Plan:
    return planned("flow=generate", "mesh=expert", "mesh.axes.expert=4")


def printed(*tables: Any) -> list[str]:
    from rich.console import Console

    file = StringIO()
    for one in tables:
        Console(file=file, width=140).print(one)
    return [" ".join(row.replace("│", " ").split()) for row in file.getvalue().splitlines()]


def test_blocks_are_where_devices_hold_them() -> None:
    """Columns over fsdp, rows over tensor: device 1 has the second rows of the first columns."""
    found = grid(F2T2, layout((4, 6), ["tensor"], ["fsdp"]))
    assert found.holders == {(0, 0): (0,), (1, 0): (1,), (0, 1): (2,), (1, 1): (3,)}


def test_copies_are_blocks_of_several_devices() -> None:
    found = grid(F2T2, layout((8, 4, 6), ["tensor"], [], []))
    assert found.holders == {(0, 0): (0, 2), (1, 0): (1, 3)}
    assert (found.rows, found.columns) == (0, 2)
    assert grid(F2T2, layout((6,), [])).holders == {(0, 0): (0, 1, 2, 3)}


def test_of_three_divided_dimensions_two_are_drawn() -> None:
    mesh = Mesh({"a": 2, "b": 2, "c": 2})
    found = grid(mesh, layout((2, 2, 2), ["a"], ["b"], ["c"]))
    assert found.holders == {(0, 0): (0, 1), (0, 1): (2, 3), (1, 0): (4, 5), (1, 1): (6, 7)}


@pytest.mark.parametrize(
    ("shape", "axes", "dims"),
    [
        ((), (), (None, None)),
        ((5,), ((),), (None, 0)),
        ((5, 6, 7), ((), (), ()), (1, 2)),
        ((5, 6), ((), ("a",)), (0, 1)),
    ],
)
def test_what_is_drawn_of_fewer_dimensions(shape: Any, axes: Any, dims: Any) -> None:
    assert drawn_dims(layout(shape, *axes)) == dims


@pytest.mark.parametrize(
    ("devices", "said"),
    [((3,), "3"), ((0, 1), "0 1"), ((0, 1, 2, 3), "0–3"), ((0, 4), "0 4"), (range(8), "all"),
     ((0, 2, 4, 6, 9, 11), "0 2 … 11"), ((0, 1, 2, 5), "0–2 5")],
)  # fmt: skip
def test_devices_are_said_in_few_characters(devices: Sequence[int], said: str) -> None:
    assert shown_devices(tuple(devices), 8) == said


def test_the_console_shows_blocks_and_leaves_out_the_middle_of_many() -> None:
    mesh = Mesh({"fsdp": 64})
    drawing = Drawing("w", (), ("mlp", "embed"), layout((64, 3), ["fsdp"], []))
    found = printed(blocks(mesh, drawing))
    assert found[1:-1] == ["0", "1", "2", "3", "4", "5", "⋯", "63"]
    assert printed(blocks(F2T2, Drawing("w", (), ("a", "b"), layout((4, 6), ["tensor"], ["fsdp"]))))[1:-1] == [
        "0 2",
        "1 3",
    ]


def test_every_device_has_a_colour_of_its_own() -> None:
    for axes in ({"fsdp": 64}, {"fsdp": 8, "tensor": 8}, {"a": 2, "b": 16, "c": 2}, {"tensor": 4}, {}):
        found = colours(Mesh(axes))
        assert len({tuple(round(255 * c) for c in colour) for colour in found}) == Mesh(axes).size
        assert EVERYWHERE not in found


@pytest.mark.parametrize("axes", [{}, {"tensor": 2}, {"fsdp": 2, "tensor": 4}, {"fsdp": 64}, {"fsdp": 8, "tensor": 8}])
def test_a_picture_has_the_colour_of_every_device_in_every_tensor(axes: dict[str, int], tmp_path: Path) -> None:
    from matplotlib.image import imread

    mesh = Mesh(axes)
    drawing = Drawing("w ×2", ("each device …",), ("mlp", "embed"), layout((128, 128), [*axes], []))
    draw(tmp_path / "mesh.png", show_mesh(mesh), mesh, [drawing])
    image = (imread(tmp_path / "mesh.png")[..., :3] * 255).round().astype(int)
    right = image[:, image.shape[1] // 2 :]  # the tensor; the mesh is left of it
    there = {tuple(pixel) for pixel in right.reshape(-1, 3)}
    for colour in colours(mesh):
        wanted = tuple(round(255 * c) for c in colour)
        assert any(all(abs(a - b) <= 1 for a, b in zip(wanted, pixel, strict=True)) for pixel in there)


def test_a_plan_is_drawn_in_the_folder_of_its_run(expert: Plan, tmp_path: Path) -> None:
    draw_placements(expert, tmp_path)
    assert (tmp_path / "mesh.png").stat().st_size > 10_000
    with pytest.raises(StorageError, match=r"mesh\.png: No such file or directory"):
        draw_placements(expert, tmp_path / "none")


def test_one_device_is_not_drawn(tmp_path: Path) -> None:
    plan = planned("flow=generate")
    draw_placements(plan, tmp_path)
    assert not list(tmp_path.iterdir())
    assert mesh_tables(plan) == []
    assert "shard checkpoint ← quantize Checkpoint one device" in printed(*console.plan_tables(plan))


def test_tables_say_what_lies_where(expert: Plan) -> None:
    """By hand: 8 experts of 448 × 160 over 4, at 4.25 bits: 2 · 448 · 160 · 17 / 32 bytes in each of 4 layers."""
    found = printed(*mesh_tables(expert))
    gate_up = f"{4 * 2 * 448 * 160 * 17 / 32 / 1024:.1f} KiB"
    rows = [
        f"model.layers.*.mlp.experts.gate_up_proj ×4 experts 8 / expert · mlp 448 · embed 160 2×448×160 {gate_up}",
        "model.layers.*.self_attn.q_proj.weight ×4 heads 192 · embed 160 / (expert) 192×40 60.0 KiB",
        "model.layers.*.mlp.router.bias 64 B",
    ]
    assert [row for row in rows if row not in found] == []
    assert next(row for row in found if row.startswith("all of them 2.6 KiB"))


def test_tables_say_what_devices_and_hosts_take() -> None:
    plan = planned("flow=generate", "mesh=multihost", "mesh.axes={host: 2, fsdp: 2}")
    placement = plan.nodes["shard"].result.placement
    whole = sum(s.nbytes for s in placement.specs.values())
    found = printed(*mesh_tables(plan))
    read = sum(s.nbytes for s in plan.nodes["load"].result.store.specs.values())  # it is quantized as it is read
    assert f"generate: each of 2 hosts reads {read / 2**20:.1f} MiB of weights for its 2 devices" in found
    assert show_mesh(placement.mesh) == "4 devices, host 2 × fsdp 2, in 2 processes of 2"
    [row] = [row for row in found if row.startswith("generate") and row.endswith(" 4")]
    takes = plan.takes["generate"]
    assert f"{(takes.device_nbytes - takes.cache_nbytes) / 2**20:.1f} MiB" in row
    assert takes.device_nbytes - takes.cache_nbytes < 0.6 * whole


def test_tables_say_what_devices_send(expert: Plan) -> None:
    """By hand, a token: of a sum of 160 numbers in fp32 each of 4 devices sends 2 · 3/4, once a layer; of logits its
    1024 of 4096 three times."""
    found = printed(*mesh_tables(expert))
    experts, logits = 4 * 2 * 160 * 4 * 3 // 4, 3 * 1024 * 4
    assert f"experts psum over expert ×4 {experts / 1024:.1f} KiB {experts / 1024:.1f} KiB" in found
    assert f"logits all_gather over expert ×1 {logits / 1024:.1f} KiB {logits / 1024:.1f} KiB" in found
    assert any(row.startswith("generate decode, 1 token gather all_gather over expert") for row in found)


def test_the_graph_shows_the_mesh(expert: Plan) -> None:
    assert '    shard["shard<br/>4 devices, expert 4"]' in console.mermaid(expert).splitlines()
    assert '    shard["shard"]' in console.mermaid(planned("flow=generate")).splitlines()


def test_the_backends_of_a_model_are_those_of_the_stages_that_run_it(expert: Plan) -> None:
    found = printed(*console.kernels_table(expert))
    assert not [row for row in found if "shard" in row]
    assert [row for row in found if row.startswith("moe") and "generate" in row]
