"""The suites find what they are there to find: plugins with one fault each."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import StageError
from pipeline.ops import Op
from pipeline.planning.wiring import Plan
from pipeline.stage import Checkpoint, Context, Footprint, Prediction
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.store import Index
from pipeline.tensors.views import MappedStore
from pipeline.testing.container import ContainerContract
from pipeline.testing.kernel import Case, KernelContract
from pipeline.testing.method import MethodContract
from pipeline.testing.stage import StageContract
from plugins.formats.safetensors.container import SafeTensors
from plugins.quant.mx import MX


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
class PeaksTogether(MX):
    """Scales by what it sees of the whole array, so tasks that see slices disagree."""

    def encode(self, x: Any, *, measure: bool = False) -> Any:
        return super().encode(unit_scale(x * 8), measure=measure)


def test_a_method_whose_slices_differ() -> None:
    class Suite(MethodContract):
        def method(self) -> Any:
            return PeaksTogether()

    x = np.random.default_rng(0).standard_normal((5, 256), dtype=np.float32)
    with pytest.raises(AssertionError, match="encoded alone differs"):
        Suite().test_slices_may_be_encoded_apart(x)
    with pytest.raises(AssertionError):
        Suite().test_measures_what_it_loses(x)


def plain(x: Any) -> Any:
    return x + 1


def in_place(x: Any) -> Any:
    x += 1
    return x


def test_a_backend_that_writes_into_its_input_or_differs() -> None:
    class Suite(KernelContract):
        def op(self) -> Op:
            return Op(
                "add", {"reference": f"{__name__}:plain", "fast": f"{__name__}:in_place", "off": f"{__name__}:wrong"}
            )

    case = Case("ones", (np.ones(3),))
    with pytest.raises(AssertionError, match="off: float64"):
        Suite().test_gives_what_the_reference_gives("off", case)
    with pytest.raises(AssertionError, match="fast writes into its arguments"):
        Suite().test_leaves_its_input_alone("fast", case)


def wrong(x: Any) -> Any:
    return x + 2 if not isinstance(x, QTensor) else x
