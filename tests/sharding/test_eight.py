"""Eight devices, in a process of their own: every family on three axes at once, and the embedded model on whatever
its sizes divide over."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.sharding.eight import CASES, MESHES

LIMIT_S = 240


@pytest.fixture(scope="module")
def eight(request: pytest.FixtureRequest) -> dict[tuple[str, str], Any]:
    """Model and mesh → what was found, of those that are asked for."""
    calls = [item.callspec.params for item in request.session.items if item.path == request.path]
    asked = [(call["kind"], call["name"]) for call in calls]
    said = subprocess.run(
        [sys.executable, "-m", "tests.sharding.eight", json.dumps(asked)],
        env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"},
        capture_output=True, text=True, timeout=LIMIT_S, cwd=Path(__file__).parents[2], check=False,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    return dict(zip(asked, json.loads(said.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize(("kind", "name"), CASES)
@pytest.mark.brief("llama-cube", "qwen3_moe-expert_tensor_data")
def test_several_devices_give_what_one_does(kind: str, name: str, eight: dict[tuple[str, str], Any]) -> None:
    """And send what the plan says and nothing else, and each holds what it says."""
    found = eight[kind, name]
    assert found["apart"] < 1e-5
    assert found["sent"] == found["planned"]
    assert found["live"] == [found["weights"]] * MESHES[name].size
