"""The suites find what they are there to find: plugins with one fault each."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import StageError, Unsupported
from pipeline.planning.wiring import Plan
from pipeline.stage import Checkpoint, Context, Footprint, Prediction
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.store import Index
from pipeline.tensors.views import MappedStore
from pipeline.testing.container import ContainerContract
from pipeline.testing.kernel import Case, KernelContract
from pipeline.testing.method import MethodContract
from pipeline.testing.model_op import ModelOpContract
from pipeline.testing.stage import StageContract
from plugins.formats.safetensors.container import SafeTensors
from plugins.kernels.matmul import cases as matmuls
from plugins.quant.blockwise import Blockwise
from tests.cases import guests


def unit_scale(x: Any) -> Any:
    """Depends on the whole array, so it must not be mapped box by box."""
    return (x / max(1, np.abs(x).max(initial=0))).astype(x.dtype)


def widened(x: Any) -> Any:
    return x.astype(np.float64)


@dataclass(frozen=True)
class Mapped:
    fn: Any

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        return checkpoint.map(self.fn)


@dataclass(frozen=True)
class Reads:
    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        checkpoint.store.read("model.embed_tokens.weight")
        return checkpoint


@dataclass(frozen=True)
class AsF64:
    def spec(self, name: str, spec: TensorSpec) -> TensorSpec:
        return spec

    def apply(self, name: str, value: Any, index: Index) -> Any:
        return value.astype(np.float64)


@dataclass(frozen=True)
class Lies:
    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        return replace(checkpoint, store=MappedStore(checkpoint.store, AsF64()))


@dataclass(frozen=True)
class Eager:
    """Promises what it does not give."""

    def plan(self, checkpoint: Checkpoint) -> Prediction:
        return Prediction(checkpoint, Footprint())

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        return replace(checkpoint, store=replace(checkpoint.store.store, tensors={}))


@dataclass
class Melts:
    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        return checkpoint


def plan_of(stage: Any, tmp_path: Path) -> tuple[StageContract, Plan]:
    class Suite(StageContract):
        def stage(self) -> Any:
            return stage

    suite = Suite()
    return suite, StageContract.plan.__wrapped__(suite, tmp_path)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("stage", "error", "said"),
    [
        (Mapped(unit_scale), AssertionError, "is not that slice of the whole; is its function elementwise"),
        (Mapped(widened), StageError, "must keep shape and dtype"),
        (Lies(), AssertionError, r"is float64, the spec promises BF16"),
        (Eager(), StageError, "gives other tensors than its `plan` promised; 'model.embed_tokens.weight'"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_stages_that_are_not_what_they_say(stage: Any, error: type, said: str, tmp_path: Path) -> None:
    suite, plan = plan_of(stage, tmp_path)
    with pytest.raises(error, match=said):
        suite.test_what_is_read_is_what_was_promised(plan)


def test_a_stage_that_reads_while_planning(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"reads 'model.embed_tokens.weight' in `run`; return a view, or"):
        plan_of(Reads(), tmp_path)


def test_a_stage_that_is_not_frozen(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception):
        plan_of(Melts(), tmp_path)[0].test_is_a_frozen_dataclass_with_run()


def test_a_container_that_forgets(tmp_path: Path) -> None:
    class Forgets(SafeTensors):
        def begin(self, folder: Path, layout: Any) -> None:
            for file in layout.files:
                (folder / file.name).unlink(missing_ok=True)
            super().begin(folder, layout)

    class Suite(ContainerContract):
        def container(self) -> Any:
            return Forgets()

    suite = Suite()
    written = ContainerContract.written.__wrapped__(suite, tmp_path)  # type: ignore[attr-defined]
    suite.test_reads_what_it_wrote(written)
    with pytest.raises(AssertionError, match="did not survive a second begin"):
        suite.test_begin_keeps_what_is_there(written)


@dataclass(frozen=True)
class PeaksTogether(Blockwise):
    """Scales by what it sees of the whole array, so tasks that see slices disagree."""

    def encode(self, x: Any, **more: Any) -> Any:
        return super().encode(unit_scale(x * 8), **more)


def test_a_method_whose_slices_differ() -> None:
    class Suite(MethodContract):
        def method(self) -> Any:
            return PeaksTogether("e2m1", 32, "e8m0")

    x = np.random.default_rng(0).standard_normal((5, 256), dtype=np.float32)
    with pytest.raises(AssertionError, match="encoded alone differs"):
        Suite().test_slices_may_be_encoded_apart(x)


@dataclass(frozen=True)
class Rescales(Blockwise):
    """Codes that nobody but itself decodes to the values."""

    def encode(self, x: Any, **more: Any) -> Any:
        return super().encode(2 * np.asarray(x), **more)

    def decode(self, q: Any, dtype: str = "BF16", **more: Any) -> Any:
        return super().decode(q, dtype, **more) / 2


def test_a_method_that_only_itself_decodes() -> None:
    class Suite(MethodContract):
        def method(self) -> Any:
            return Rescales("int8", 32, "f32")

    with pytest.raises(AssertionError):
        Suite().test_measures_what_it_loses(np.random.default_rng(0).standard_normal((5, 256), dtype=np.float32))


ADDS = {
    "plugins.kernels.add.reference": "def add(x):\n    return x + 1\n",
    "plugins.adds.fast": "def add(x):\n    x += 1\n    return x\n",
    "plugins.adds.off": "def add(x):\n    return x + 2\n",
    "plugins.adds.refuses": (
        "from pipeline.errors import Unsupported\n"
        "def add(x):\n    raise Unsupported('not today')\n"
        "def declines(request):\n    return 'no vectors' if len(request.given['x'].shape) == 1 else None\n"
    ),
}


def test_a_backend_with_a_fault(tmp_path: Path) -> None:
    class Suite(KernelContract):
        def op(self) -> str:
            return "add"

    case = Case("ones", (np.ones(3),))
    with guests.guest(tmp_path, ADDS):
        with pytest.raises(AssertionError, match="off: float64"):
            Suite().test_gives_what_the_reference_gives("plugins.adds.off", case)
        with pytest.raises(AssertionError, match="fast writes into its arguments"):
            Suite().test_leaves_its_input_alone("plugins.adds.fast", case)
        with pytest.raises(pytest.skip.Exception, match=r"refuses declines this: .*no vectors"):
            Suite().test_gives_what_the_reference_gives("plugins.adds.refuses", case)
        with pytest.raises(pytest.fail.Exception, match=r"refuses refuses \(not today\) what it did not decline"):
            Suite().test_gives_what_the_reference_gives("plugins.adds.refuses", Case("a matrix", (np.ones((2, 3)),)))


# Backends of matmul with one fault each
HEAD = """import jax, numpy as np
from pipeline.errors import Unsupported
from pipeline.tensors.qtensor import QTensor
from plugins.kernels.matmul.xla import matmul as right
def matmul(x, w, bias=None, **options):
"""
FAULTS = {
    "a_little_off": "    return right(x, w, bias, **options) * (1 + 2.0**-15)\n",
    "always_float32": "    return right(x, w, bias, out_dtype=np.float32)\n",
    "without_bias": "    return right(x, w, **options)\n",
    "scribbles": "    y = right(x, w, bias, **options)\n    x[...] = 0\n    return y\n",
    "forgets_a_gradient": (
        "    w = w if isinstance(w, QTensor) else jax.lax.stop_gradient(w)\n    return right(x, w, bias, **options)\n"
    ),
    "doubles_a_gradient": "    return right(2 * x - jax.lax.stop_gradient(x), w, bias, **options)\n",
    "silent_about_packed": "    return right(x, jax.lax.stop_gradient(w), bias, **options)\n",
    "refuses": "    raise Unsupported('no')\n",
    "declines_all": "    raise Unsupported('no')\ndef declines(request):\n    return 'not today'\n",
}

VALUES, ITSELF = "test_gives_what_the_definition_gives", "test_does_something_and_needs_no_jit"
GRADIENTS, PACKED = "test_gradients_are_those_of_float64", "test_packed_weights_have_no_gradient"


@pytest.mark.parametrize(
    ("fault", "test", "name", "error", "said"),
    [
        ("a_little_off", VALUES, "plain float32 (3,)", AssertionError, "Not equal to tolerance"),
        ("always_float32", VALUES, "plain bfloat16 (3,)", AssertionError, "float32 is not bfloat16"),
        ("without_bias", VALUES, "mxfp4 float32 3", AssertionError, "Not equal to tolerance"),
        ("refuses", VALUES, "mxfp4 float32 3", Unsupported, "no"),
        ("declines_all", VALUES, "mxfp4 float32 3", pytest.skip.Exception, "declines_all declines this: .*not today"),
        ("scribbles", ITSELF, None, AssertionError, "writes into its arguments"),
        ("a_little_off", ITSELF, None, AssertionError, "Not equal to tolerance"),
        ("declines_all", ITSELF, None, AssertionError, "does no case of matmul"),
        ("forgets_a_gradient", GRADIENTS, "plain float32 (3,)", AssertionError, "Not equal to tolerance"),
        ("doubles_a_gradient", GRADIENTS, "plain bfloat16 (3,)", AssertionError, "Not equal to tolerance"),
        ("silent_about_packed", PACKED, "nvfp4 float32 3", pytest.fail.Exception, "DID NOT RAISE"),
    ],
)
def test_a_model_op_that_is_wrong(
    tmp_path: Path, fault: str, test: str, name: str | None, error: type, said: str
) -> None:
    class Suite(ModelOpContract):
        op = "matmul"

    case = () if name is None else (next(c for c in matmuls.cases() if c.name == name),)
    run = getattr(Suite(), test)
    run("xla", *case)
    with (
        guests.guest(tmp_path, {f"plugins.faults.{fault}": HEAD + FAULTS[fault]}),
        pytest.raises(error, match=said),
    ):
        run(f"plugins.faults.{fault}", *case)
