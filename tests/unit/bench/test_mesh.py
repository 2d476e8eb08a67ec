"""The benchmark of meshes: each of them fits the embedded model, and its table has what was found."""

import argparse
from dataclasses import replace

import pytest

from plugins.bench import mesh
from tests.cases import model_runs


def test_every_mesh_is_planned_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    args = argparse.Namespace(rows=4, prompt=32, new=8, rounds=1)
    checkpoint, engine = model_runs.checkpoint(mesh.EMBEDDED), model_runs.engine()
    rows = []
    for name, over in mesh.MESHES.items():
        said = mesh.planned(replace(engine, mesh=over), checkpoint, args)
        rate = 100.0 / over.size
        measured = {"prefill": 1 << 20, "score": 2 << 20}
        rows.append({
            "mesh": name, "devices": over.size, "prefill_rate": rate, "decode_rate": rate, "weights": 1 << 20,
            "measured": measured, **said,
        })  # fmt: skip
        assert over.size <= mesh.DEVICES
        assert (said["planned"]["score"] > 0) == (over.size > 1)
    sent = {row["mesh"]: row["sent"].get("decode", 0) for row in rows}
    assert sent["single"] == sent["data=2"] == 0
    assert sent["fsdp=4"] > sent["fsdp=2"] > sent["expert=2"] > sent["tensor=2"] > 0
    mesh.show(rows, args, 0.0)
    table = capsys.readouterr().out
    assert all(name in table for name in mesh.MESHES)
    assert "0.25" in table  # of one device's tokens, on four
