"""What every stage promises, as tests. Subclass `StageContract` and say how to make the stage; pytest does the rest."""

import dataclasses
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.api import compose_run
from pipeline.config import extend
from pipeline.hooks import lacking
from pipeline.planning.wiring import Plan, make_plan
from pipeline.running.tasks import do_chunk, run_stage
from pipeline.stage import Checkpoint, Context, Work
from pipeline.tensors.store import TensorStore
from pipeline.testing.memory import checkpoint, holds, random_boxes, same


def stage_of(name: str, *options: str, config_dir: Path | None = None, overrides: Sequence[str] = ()) -> Any:
    """The stage that `stages=[NAME]` on the command line would make: its YAML is tested along with its class.

    Args:
        name: of the stage.
        options: of the stage, such as `threshold=0.01`.
        config_dir: what `--config-dir` would say.
        overrides: further ones, such as `quant=mxfp4`; the model is gpt_oss unless they say otherwise.
    """
    if config_dir is not None:
        extend.use(config_dir)
    model = [] if any(o.startswith("+model") for o in overrides) else ["+model=gpt_oss"]
    return compose_run(
        [*model, f"stages=[{name}]", *overrides, *(f"stages.{name}.{o}" for o in options)], config_dir
    ).stages[name]


@dataclasses.dataclass(frozen=True)
class Given:
    """A stage that gives an artefact, so that the planner can wire it to the stage under test."""

    artefact: Any

    @property
    def run(self) -> Any:
        def run(ctx: Context) -> Any:
            return self.artefact

        run.__annotations__["return"] = type(self.artefact)
        return run


class StageContract:
    """Tests of one stage on the artefacts of `inputs`.

    A view, and whatever a stage that computes gives, is read whole and in random boxes; work is done chunk by chunk
    in a random order, by copies, and begun again in between.
    """

    whole_rows = False
    """Cut no box along the last dimension: for a stage that unpacks blocks, of which it cannot read a part."""

    def stage(self) -> Any:
        """The stage, made anew."""
        raise NotImplementedError

    def inputs(self) -> Mapping[str, Any]:
        """What the stage takes: a name (of a parameter, where that matters) → artefact."""
        return {"checkpoint": checkpoint()}

    def context(self, run_dir: Path) -> Context:
        """Of the run; a chunk is small, so that there are several."""
        return Context(run_dir, seed=0, chunk_nbytes=4096)

    @pytest.fixture
    def plan(self, tmp_path: Path) -> Plan:
        """The stage planned on its inputs."""
        stages = {name: Given(artefact) for name, artefact in self.inputs().items()}
        plan = make_plan(stages | {"under_test": self.stage()}, self.context(tmp_path))
        assert not plan.problems, "planning finds problems:\n" + "\n".join(map(str, plan.problems))
        return plan

    def result(self, plan: Plan) -> Any:
        """What the stage gives when the graph runs."""
        node = plan.nodes["under_test"]
        if not node.computes:
            return node.result
        promised = node.result.store.specs if isinstance(node.result, Checkpoint) else None
        inputs = [plan.nodes[source].result for source in node.inputs.values()]
        params = tuple(node.inputs)
        args = ("under_test", node.stage, promised, plan.context, None, plan.inputs, params, None, None)
        return run_stage(*args, *inputs).value

    def test_is_a_frozen_dataclass_with_run(self) -> None:
        stage = self.stage()
        cls = type(stage)
        assert dataclasses.is_dataclass(cls), f"{cls.__name__} is no dataclass"
        with pytest.raises(dataclasses.FrozenInstanceError):
            stage.anything = None
        assert callable(getattr(cls, "run", None)), f"{cls.__name__} has no method run"

    def test_two_of_a_kind_are_equal_and_pickle(self) -> None:
        stage = self.stage()
        assert stage == self.stage(), "two stages of equal config differ"
        assert pickle.loads(pickle.dumps(stage)) == stage, "the pickled stage is another"

    def test_plans_without_reading(self, plan: Plan) -> None:
        node = plan.nodes["under_test"]
        assert node.gives is not Any, "`run` does not say what it gives; annotate its result"
        if not isinstance(node.result, Checkpoint) and not node.computes:
            assert isinstance(node.gives, type), f"`run` says it gives {node.gives}, which is no type"

    def test_planning_twice_gives_the_same(self, plan: Plan) -> None:
        again = make_plan({n: node.stage for n, node in plan.nodes.items()}, plan.context)
        first, second = plan.nodes["under_test"].result, again.nodes["under_test"].result
        if isinstance(first, Checkpoint):
            assert dict(first.store.specs) == dict(second.store.specs)
        if plan.nodes["under_test"].work is not None:
            assert list(first.chunks) == list(second.chunks)
            assert list(first.outputs) == list(second.outputs)

    def test_what_is_read_is_what_was_promised(self, plan: Plan) -> None:
        """Shapes, dtypes and schemes of random boxes, each of them the slice of the whole that it claims to be."""
        result = self.result(plan)
        if not isinstance(result, Checkpoint):
            pytest.skip("gives no checkpoint")
        store: TensorStore = pickle.loads(pickle.dumps(result)).store
        rng = np.random.default_rng(0)
        for name, spec in store.specs.items():
            whole = checkpoint({name: store.read(name)}).store
            for box in random_boxes(spec, rng):
                if self.whole_rows and box:
                    box = (*box[:-1], slice(0, spec.shape[-1]))
                given = store.read(name, box)
                wrong = holds(given, spec, box)
                assert wrong is None, f"{name}{list(box)} {wrong}"
                hint = "is its function elementwise, and does it leave its input alone?"
                assert same(given, whole.read(name, box)), f"{name}{list(box)} is not that slice of the whole; {hint}"

    def test_work_in_any_order_and_again(self, plan: Plan) -> None:
        """Chunks in random order, by pickled copies, with a second beginning half way; then everything is there."""
        work: Any = self.result(plan)
        if lacking(work, Work):
            pytest.skip("gives no work")
        chunks = list(work.chunks)
        order = np.random.default_rng(0).permutation(len(chunks)).tolist()
        work.begin(fresh=True)
        digests: dict[int, str] = {}
        records: dict[int, dict[str, Any]] = {}
        for count, i in enumerate(order):
            if count == len(order) // 2:
                _copy(work).begin(fresh=False)
                for j, digest in digests.items():
                    assert work.digest(chunks[j]) == digest, f"{chunks[j]} did not survive begin(fresh=False)"
            records[i] = do_chunk(_copy(work), chunks[i], None)
            digests[i] = records[i]["digest"]
        for i, chunk in enumerate(chunks):
            assert work.digest(chunk) == digests[i], f"digest of {chunk} is not what do gave"
            assert _copy(work).do(chunk) == digests[i], f"{chunk} done twice differs"
        promised = {f.path: f.nbytes for f in work.outputs}
        pickle.dumps(work.finish([records[i] for i in range(len(chunks))]))
        for path, nbytes in promised.items():
            assert path.is_file(), f"{path} was promised and is not there"
            assert path.stat().st_size == nbytes, f"{path} has {path.stat().st_size} bytes, {nbytes} were promised"

    def test_chunks_are_bounded(self, plan: Plan) -> None:
        work = plan.nodes["under_test"].work
        if work is None:
            pytest.skip("gives no work")
        assert all(c.peak_nbytes >= c.nbytes_out >= 0 for c in work.chunks), (
            "a chunk claims no memory for what it writes"
        )
        assert len({str(c.pieces) for c in work.chunks}) == len(work.chunks), "two chunks are the same"


def _copy(work: Work[Any]) -> Work[Any]:
    copy: Work[Any] = pickle.loads(pickle.dumps(work))
    return copy
