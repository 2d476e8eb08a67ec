"""Strictness for all tests: the same seeds and examples every time, JAX on several make-believe CPU devices.

Warnings are errors (pyproject.toml). JAX is told what it needs through the environment; the first test imports it.
"""

import ctypes
import gc
import os
import random
import signal
import sys
import tempfile
from collections.abc import Iterator
from ctypes.util import find_library
from importlib.util import find_spec
from pathlib import Path

import hypothesis
import numpy as np
import pytest

from plugins.kernels.native import library
from tests.cases import brief, caches, environment

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")  # a silently added dimension is a quantization bug
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4".strip()
# Tests and the programs they start share what JAX compiled: most of them run the same small models.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")  # programs need not say which line each operation is of
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of torch and of BLAS: where every core has tests, more of them wait
for variable in ("WEIGHTMILL_CONFIG_DIR", "HYDRA_FULL_ERROR", "COLUMNS"):  # whoever runs the tests may have them set
    os.environ.pop(variable, None)

# As in a shell's background job, or under nohup: runs under test would inherit it.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, usual)

# Derandomized: a failure on one machine is a failure on all. No deadline: a loaded machine is not a failure.
hypothesis.settings.register_profile("strict", derandomize=True, deadline=None, database=None, print_blob=False)
hypothesis.settings.load_profile("strict")

ORACLES = ("torch", "transformers", "torchao")
SUBNORMAL = np.array([1e-40], np.float32)
# What `make check` leaves out of tests/unit and tests/contract: whole models, and programs of every scheme and size.
SLOW = (
    "contract/test_model_ops.py", "unit/engine/test_generate.py", "unit/kernels/test_formats_by_hand.py",
    "unit/kernels/test_gradients.py", "unit/kernels/test_matmul.py", "unit/kernels/test_moe.py",
    "unit/kernels/test_number_formats_xla.py", "unit/models/test_quantized.py", "unit/models/test_reference.py",
    "unit/test_model_slot.py", "unit/kernels/test_native_compilers.py", "unit/kernels/test_native_fuzz.py",
    "unit/kernels/test_native_gemm.py", "unit/kernels/test_native_mxfp4.py", "unit/kernels/test_native_products.py",
    "unit/kernels/test_native_quantize.py", "unit/stages/test_export_durable.py", "unit/stages/test_rounded_once.py",
    "unit/kernels/test_quantize_dequantize.py", "unit/kernels/test_mx_codec.py", "unit/planning/test_sweep.py",
    "unit/running/test_exports.py", "unit/running/test_sweep.py", "unit/tokenizers/test_chat_templates.py",
    "unit/live/test_linear.py", "unit/live/test_page.py", "unit/planning/test_holding.py",
    "unit/running/test_learning.py", "unit/running/test_why.py", "unit/train/test_adapted_run.py",
    "unit/train/test_adapters.py", "unit/train/test_distilled_run.py",
    "unit/train/test_killed.py", "unit/train/test_lora.py", "unit/train/test_qat.py",
    "unit/quant/test_llm_compressor.py",
)  # fmt: skip


# Where programs are held to bits, or are what people run: XLA makes them as fast as it can. All others run a few times,
# and are compiled quickly, which takes a quarter of the time; for single tests there is the fixture `optimized`.
OPTIMIZED = (
    "contract/", "fuzz/", "golden/", "oracle/test_mx_torchao.py", "oracle/test_number_formats.py", "oracle/test_ops.py",
    "property/", "real/", "unit/kernels/",
)  # fmt: skip


@pytest.hookimpl(tryfirst=True)  # before workers start
def pytest_sessionstart(session: pytest.Session) -> None:
    """Whatever comes into a temporary folder, also in processes that are killed, goes with those of pytest, which keeps
    three. Compile the native kernels once: a run that has to says so, and tests look at what runs say."""
    ours: pytest.TempPathFactory = session.config._tmp_path_factory  # type: ignore[attr-defined]  # the fixture's
    os.environ["TMPDIR"] = tempfile.tempdir = str(ours.mktemp("temporary"))
    os.environ["XDG_CACHE_HOME"] = caches.fresh(ours.mktemp("cache"))
    if not hasattr(session.config, "workerinput"):
        library.prepare(lambda said: None, library.SELDOM)


@pytest.fixture(autouse=True)
def _seeds() -> None:
    random.seed(0)
    np.random.seed(0)
    if (redact := sys.modules.get("pipeline.redact")) is not None:
        redact._values.clear()  # secrets of an earlier test's environment are words like others
    if (compose := sys.modules.get("pipeline.config.compose")) is not None:
        compose._environment.clear()


@pytest.fixture(autouse=True)
def _own_variables() -> Iterator[None]:
    """What monkeypatch sets is gone by the time this looks: it is torn down first."""
    with environment.kept():
        yield


@pytest.fixture(autouse=True, scope="module")
def _compilation(request: pytest.FixtureRequest) -> Iterator[None]:
    """Programs compile quickly, but for those of `OPTIMIZED`; what commands do about theirs is in tests/cli/run.py."""
    where = request.path.relative_to(Path(__file__).parent).as_posix()
    if where.startswith(OPTIMIZED) and "/test_native_" not in where:  # C++ is what it is
        yield
        return
    from tests.cases import model_runs

    with model_runs.quick_compilation():
        yield


def _briefly(config: pytest.Config) -> bool:
    """Whether what only repeats is left out; `make test-all` says `repeats or not repeats`."""
    return "not repeats" in config.option.markexpr.replace("repeats or not repeats", "")


@pytest.fixture(scope="session")
def thorough(pytestconfig: pytest.Config) -> bool:
    """Whether what only repeats is to run too, for tests that make their cases as they run."""
    return not _briefly(pytestconfig)


@pytest.fixture
def optimized() -> Iterator[None]:
    """For one test, what `OPTIMIZED` is for a module."""
    from tests.cases import model_runs

    with model_runs.quick_compilation(False):
        yield


@pytest.fixture(autouse=True, scope="module")
def _memory() -> Iterator[None]:
    """What a module's tests compiled and loaded is let go of: processes of pytest would grow to gigabytes. What is
    there then stays, such as libraries that were imported: the next look need not go through millions of objects."""
    yield
    if (jax := sys.modules.get("jax")) is not None:
        jax.clear_caches()
        gc.collect()
        gc.freeze()


def pytest_collection_finish() -> None:
    """Modules and eleven thousand tests stay until the end: nobody looks for garbage among them again, where a look
    takes a third of a second, after each module and whenever a model is traced."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # tracing a model makes a hundred thousand objects, most of them no garbage


@pytest.hookimpl(tryfirst=True)  # before items are chosen by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    brief.mark(items)
    for item in items:
        if item.path.as_posix().endswith(SLOW):
            item.add_marker("slow")
    missing = [name for name in ORACLES if find_spec(name) is None]
    if missing:
        skip = pytest.mark.skip(
            reason=f"{', '.join(missing)} not installed; `make test ORACLES=1` installs the oracles"
        )
        for item in items:
            if "oracle" in item.keywords:
                item.add_marker(skip)


@pytest.hookimpl(trylast=True)  # when the test is taken down
def pytest_runtest_teardown() -> None:
    """A thread in which subnormal numbers are flushed to zero, as XLA's own are, computes otherwise in all tests that
    follow; the one after which it does so is named, and no other has to fail."""
    if not np.any(SUBNORMAL * np.float32(1)):
        if (libm := find_library("m")) is not None:
            ctypes.CDLL(libm).fesetenv(ctypes.c_void_p(-1))  # FE_DFL_ENV of glibc
        pytest.fail("what ran here left this thread flushing subnormal numbers to zero")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if _briefly(config):
        terminalreporter.section("repeats left out")
        terminalreporter.line("Further cases of what was tested here were deselected; `make test-all` runs them.")
    if "not oracle" in config.option.markexpr:
        terminalreporter.section("oracles left out")
        terminalreporter.line("Comparisons with other libraries were deselected; `make test ORACLES=1` runs them.")
