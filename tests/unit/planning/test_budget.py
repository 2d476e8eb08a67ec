"""What dask.memory=auto allows: the least of every bound on the process, and not what the machine has."""

import resource
from dataclasses import replace

import pytest

import pipeline
from pipeline.config.spine import Dask
from pipeline.errors import ConfigError, PlanError
from pipeline.planning.budget import CONVERSION, SHARE, budget, limits
from pipeline.planning.memory import fits_workers
from pipeline.planning.wiring import MemoryPlan
from tests.cli.run import ROOT

GIB = 1 << 30
CONF = Dask(
    scheduler="threads", address=None, tls=False, workers=None, threads_per_worker=1, memory="auto", chunk="32MiB",
    retries=0, keep_going=False, resources={}, dashboard=False,
)  # fmt: skip


def machine(tmp_path, available, cgroup="", files=()):
    """A file system in which /proc and /sys say so."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: {99 << 20} kB\nMemAvailable: {available >> 10} kB\n")
    (tmp_path / "proc/self/cgroup").write_text(cgroup)
    for name, content in dict(files).items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return tmp_path


CASES = {
    "no cgroup": (16 * GIB, "", {}, "available"),
    "v2, its own": (4 * GIB, "0::/job/me\n", {"job/me/memory.max": f"{4 * GIB}\n"}, "job/me/memory.max"),
    "v2, above": (
        3 * GIB,
        "0::/job/me\n",
        {"job/me/memory.max": "max\n", "job/memory.max": f"{3 * GIB}\n"},
        "job/memory.max",
    ),
    "v2, throttled": (5 * GIB, "0::/\n", {"memory.max": "max\n", "memory.high": f"{5 * GIB}\n"}, "memory.high"),
    "v1": (
        6 * GIB,
        "9:cpu:/a\n4:memory,hugetlb:/a/b\n0::/\n",
        {"memory/a/b/memory.limit_in_bytes": "9223372036854771712\n", "memory/a/memory.limit_in_bytes": f"{6 * GIB}"},
        "memory/a/memory.limit_in_bytes",
    ),
    "v1, in a container": (
        7 * GIB,
        "4:memory:/docker/0123\n",
        {"memory/memory.limit_in_bytes": f"{7 * GIB}\n"},
        "memory/memory.limit_in_bytes",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_least_limit_counts_and_is_named(case, tmp_path):
    least, cgroup, files, where = CASES[case]
    root = machine(tmp_path, 16 * GIB, cgroup, files)
    found = budget(CONF, root)
    assert found.total == int(least * SHARE)
    assert found.conversion == CONVERSION
    assert where in found.said
    assert found.said.startswith(f"auto: {least * SHARE / GIB:.1f} GiB, 80 % of {least / GIB:.1f} GiB (")


def test_a_limit_below_two_gibibytes_bounds_conversions_too(tmp_path):
    found = budget(CONF, machine(tmp_path, GIB))
    assert found.conversion == found.total == int(GIB * SHARE)


def test_the_address_space_is_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (3 * GIB, 9 * GIB) if kind == resource.RLIMIT_AS else 1 / 0)
    assert min(limits(machine(tmp_path, 16 * GIB))) == (3 * GIB, "ulimit -v")


def test_a_number_is_what_it_says(tmp_path):
    found = budget(replace(CONF, memory="3GiB"), machine(tmp_path, GIB))
    assert (found.conversion, found.total, found.said) == (3 * GIB, 3 * GIB, "3GiB")


def test_other_words_are_refused():
    with pytest.raises(ConfigError, match=r"dask\.memory='lots' is not a size"):
        replace(CONF, memory="lots")


def test_of_a_cluster_the_workers_decide(tmp_path):
    found = budget(replace(CONF, address="tcp://there:8786"), machine(tmp_path, GIB))
    assert (found.conversion, found.total) == (CONVERSION, None)
    fit = MemoryPlan(base=GIB // 2, task=0, tasks=1, budget=found, model=2 * GIB)
    assert fit.fits
    fits_workers(fit, {})
    fits_workers(fit, {"tcp://a": 4 * GIB})
    with pytest.raises(PlanError, match=r"tcp://b has 3\.0 GiB; 2\.5 GiB are needed; dask\.memory=2560MiB takes"):
        fits_workers(fit, {"tcp://a": 4 * GIB, "tcp://b": 3 * GIB})


def test_conversion_has_a_bound_of_its_own(tmp_path):
    allowed = budget(CONF, machine(tmp_path, 16 * GIB))
    assert MemoryPlan(base=GIB, task=GIB, tasks=1, budget=allowed, model=8 * GIB).fits
    assert not MemoryPlan(base=GIB, task=GIB + 1, tasks=1, budget=allowed).fits
    assert not MemoryPlan(base=GIB, task=0, tasks=1, budget=allowed, model=12 * GIB).fits


def test_python_is_told_the_override_as_python_writes_it():
    folder = ROOT / "plugins/models/gpt_oss/tiny"
    with pytest.raises(PlanError, match=r'64MiB is too little: .*; overrides=\["dask\.memory=\d+MiB"\] would do'):
        pipeline.load_model(folder, overrides=["dask.memory=64MiB", "dask.workers=1"])
