"""Which devices a process of several takes: as much as can be told without accelerators."""

from dataclasses import replace
from typing import Any

import jax
import pytest

from pipeline.errors import PlanError, StageError
from pipeline.mesh import Mesh
from pipeline.running import gang
from pipeline.running.keeper import here
from plugins.engine import start
from plugins.mesh.devices import arrange
from plugins.mesh.processes import join
from tests.cases import model_runs

MESH = Mesh({"fsdp": 6}, {"batch": "fsdp"}, processes=3)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What JAX is asked for."""
    found: dict[str, Any] = {}
    monkeypatch.setattr(jax.config, "update", found.__setitem__)
    monkeypatch.setattr(jax.distributed, "initialize", lambda *args, **options: found.update(options, args=args))
    monkeypatch.setenv("XLA_FLAGS", "--xla_one --xla_force_host_platform_device_count=4")
    return found


def test_of_a_cpu_each_makes_as_many_as_it_is_to_have(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    join(MESH, 1, "127.0.0.1:7", "cpu", alone=True)
    assert asked == {
        "jax_platforms": "cpu", "jax_num_cpu_devices": 2, "args": ("127.0.0.1:7", 3, 1), "local_device_ids": None,
        "cluster_detection_method": "deactivate", "coordinator_bind_address": None,
    }  # fmt: skip
    join(MESH, 0, "127.0.0.1:7", "cpu", alone=False)
    assert asked["coordinator_bind_address"] == "127.0.0.1:7"


def test_gpus_are_divided_on_one_machine_and_all_taken_where_it_is_alone(asked: dict[str, Any]) -> None:
    join(MESH, 2, "127.0.0.1:7", "gpu", alone=False)
    assert asked["local_device_ids"] == [4, 5]
    join(MESH, 2, "127.0.0.1:7", "gpu", alone=True)
    assert asked["local_device_ids"] is None
    assert "jax_platforms" not in asked
    join(MESH, 2, "127.0.0.1:7", "tpu", alone=True)
    with pytest.raises(
        PlanError, match=r"mesh\.processes: 3 on one machine cannot divide its tpu; 1, or a Dask worker"
    ):
        join(MESH, 2, "127.0.0.1:7", "tpu", alone=False)


def test_who_watches_takes_no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """What kind it is says a process that ends; here, that there is none."""
    engine = replace(model_runs.engine(), mesh=MESH, device="gpu")
    monkeypatch.setattr(start, "resolved", lambda _: pytest.fail("asked in this process"))
    with gang.started_by(lambda _: pytest.fail("asked on a cluster")), pytest.raises(StageError) as why:
        engine.identity()
    assert "process 0 of 1 failed: engine.device='gpu': JAX has no such device" in str(why.value)
    assert gang._start.get() is here


def test_hosts_are_what_is_at_one_place_along_their_axis() -> None:
    turned = Mesh({"fsdp": 2, "host": 2}, {"batch": "host"}, processes=2)
    assert turned.hosts == ((0, 2), (1, 3))
    devices = jax.devices()[:4]  # of two processes, two each
    assert arrange(turned, devices).devices.tolist() == [[devices[0], devices[2]], [devices[1], devices[3]]]
    first = Mesh({"host": 2, "fsdp": 2}, {"batch": "host"}, processes=2)
    assert first.hosts == ((0, 1), (2, 3))
    assert arrange(first, devices).devices.flatten().tolist() == devices
    assert MESH.hosts == ((0, 1), (2, 3), (4, 5))
