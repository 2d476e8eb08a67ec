"""A composed run that ends with its model on the device, for whoever asks it things: `load_model`, and chats."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.config.spine import RunConfig
from pipeline.engine import Loads
from pipeline.planning import kernels
from pipeline.planning.memory import plan_run
from pipeline.running import text_stream

STAGES = "stages=[load,decode,quantize]"  # of such a run; it is composed with `engine` built


def loaded(config: RunConfig, override: str, *, text: bool = False) -> Any:
    """The model of a run, which is its caller's.

    Args:
        override: as messages should show one.
        text: as `pipeline.engine.Loads.text`.

    Raises:
        PlanError: all that is in the way.
    """
    loads = Loads(config.built["engine"], text)
    run = replace(config, stages={**config.stages, "model": loads}, nodes={**config.nodes, "model": {}})
    kernels.prepare([run], text_stream.live)
    plan = plan_run(run, Path(config.spine.paths.run).absolute(), override=override)
    if plan.problems:
        raise plan.refusal
    taken = plan.nodes[plan.nodes["model"].inputs["checkpoint"]]
    return loads.engine.load(taken.result)


def of_others(overrides: Sequence[str]) -> list[str]:
    """Those of `overrides` that say which stages run, which is settled here."""
    return [o for o in overrides if o.lstrip("+").partition("=")[0] in ("stages", "flow")]
