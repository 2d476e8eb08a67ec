"""Our Hydra plugins; Hydra accepts them from this package only.

Its discovery skips modules whose names begin so, or every program with Hydra in it would import all of this: we make
them known ourselves, to programs of ours (`pipeline.config.resolvers.register`).

The search path: the config folders of installed third-party plugins.

Sweeps: Hydra's `-m`. The sweeper makes jobs of what was typed, combined or in step; the launcher composes them all and
hands them on together, because they run as one graph. So a typo in the last job stops the sweep before the first began,
and all that is wrong is said at once.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobReturn, JobStatus, env_override, setup_globals
from hydra.plugins.launcher import Launcher as HydraLauncher
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from pipeline import redact, terminal
from pipeline.config.compose import check_choices, load_run, unresolved
from pipeline.config.explain import explain
from pipeline.config.jobs import combined
from pipeline.config.names import short_names
from pipeline.config.options import plugin_folder, plugins
from pipeline.errors import ConfigError, PlanError, Problem, StorageError, WeightmillError
from pipeline.places import hindrance

if TYPE_CHECKING:  # every start reads this module, and few are sweeps
    from pipeline.planning.sweep import Job

FILES = ("multirun.yaml", "sweep.csv", "sweep.png")  # what a sweep writes into its folder, in this order


class PluginSearchPath(SearchPathPlugin):
    """Adds the config folder of every installed plugin to Hydra's search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for ep in plugins():
            folder = plugin_folder(ep)
            if folder is None or not folder.is_dir():
                terminal.say(f"plugin {ep.name!r} names {ep.value!r}, which is not a folder; it is left out")
            else:
                search_path.append(f"weightmill-{ep.name}", f"file://{folder}")


class Sweeper(BasicSweeper):
    """The Cartesian product of the lists that were typed; those that `zip` names go together, in step."""

    def sweep(self, arguments: list[str]) -> Any:
        assert self.config is not None
        assert self.hydra_context is not None
        assert self.launcher is not None
        HydraConfig.instance().set_config(self.config)  # the sweep's folder is named after its overrides
        check_folder(Path(str(self.config.hydra.sweep.dir)).absolute())
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        jobs = combined(parser.parse_overrides([*self._parse_config(), *arguments]))
        returns, done = [], 0
        for batch in self.split_overrides_to_chunks(jobs, self.max_batch_size):
            returns.append(self.launcher.launch(batch, initial_job_idx=done))
            done += len(batch)
        return returns


def check_folder(folder: Path) -> None:
    """Raises StorageError when a sweep's files cannot be written there, or would overwrite what is not a sweep's.

    A sweep of ours is known by multirun.yaml, which is written first, and in which our sweeper stands.
    """
    if why := hindrance(folder / FILES[0]):
        raise StorageError(f"hydra.sweep.dir: {folder}: {why}")
    there = [name for name in FILES if os.path.lexists(folder / name)]
    known = folder / FILES[0]
    ours = known.is_file() and f"weightmill.{Sweeper.__name__}" in known.read_text(errors="replace")
    if there and not ours:
        raise StorageError(
            f"hydra.sweep.dir: {folder} holds {', '.join(there)}, which no sweep of Weightmill wrote; choose another"
        )


def _none_composed(failed: Sequence[tuple[str, Exception]]) -> Exception:
    """One error for all jobs that do not compose; what several have in common is said once."""
    said: dict[Problem, list[str]] = {}
    for name, why in failed:
        if not isinstance(why, WeightmillError):
            return why
        problems = why.problems if isinstance(why, PlanError) else [Problem("", text) for text in str(why).splitlines()]
        for problem in problems:
            said.setdefault(problem, []).append(name)
    found = []
    for problem, names in said.items():
        who = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
        message = problem.message.removeprefix(f"{who}: ")  # of the one override that tells this job from others
        found.append(Problem(f"{who}: {problem.where}" if problem.where else who, message))
    kinds = {getattr(why, "exit_code", 1) for _, why in failed}
    return PlanError(found, exit_code=kinds.pop() if len(kinds) == 1 else ConfigError.exit_code)


class Launcher(HydraLauncher):
    """Composes all jobs, and hands them to the task together: they are one graph, in this process."""

    def __init__(self) -> None:
        self.config: DictConfig | None = None
        self.task_function: Any = None
        self.hydra_context: HydraContext | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config = config
        self.hydra_context = hydra_context
        self.task_function = task_function

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Compose every job, then run them.

        Raises:
            PlanError: some do not compose; nothing was run.
            StageError: some failed; names each with its cause.
        """
        setup_globals()
        assert self.config is not None
        folder = Path(str(self.config.hydra.sweep.dir))  # named after what was typed, which a job's config is not
        names = short_names(job_overrides)
        from pipeline.planning.sweep import Asked

        jobs: list[Job] = []
        failed: list[tuple[str, Sequence[str], Exception]] = []
        for overrides, name in zip(job_overrides, names, strict=True):
            try:
                jobs.append(self._job(list(overrides), initial_job_idx + len(jobs), name))
            except Exception as why:
                failed.append((name, overrides, why))
        if failed:
            raise _none_composed([(name, explain(why, overrides)) for name, overrides, why in failed])
        check_choices([one.run for one in jobs])
        record = OmegaConf.create(redact.tree(OmegaConf.to_container(self.config)))
        with env_override(self.config.hydra.job.env_set):
            outcomes = self.task_function(Asked(jobs, list(job_overrides), folder, OmegaConf.to_yaml(record)))
        status = [JobStatus.FAILED if isinstance(o, Exception) else JobStatus.COMPLETED for o in outcomes]
        return [
            JobReturn(overrides=list(given), status=s, _return_value=o)
            for given, s, o in zip(job_overrides, status, outcomes, strict=True)
        ]

    def _job(self, overrides: list[str], number: int, name: str) -> "Job":
        """Raises what composing and checking it raises."""
        from pipeline.planning.model_choice import with_model
        from pipeline.planning.sweep import Job

        assert self.config is not None
        assert self.hydra_context is not None
        settled = with_model(overrides, fetch=True)  # of a source that the sweep varies
        config = self.hydra_context.config_loader.load_sweep_config(self.config, settled)
        with open_dict(config), read_write(config), read_write(config.hydra):
            config.hydra.job.id = config.hydra.job.num = number
            command = unresolved(config.hydra.overrides.task)
            HydraConfig.instance().set_config(config)  # the run's folder is named after its overrides
            del config["hydra"]
        run = load_run(config, of_several=True)
        return Job(run, Path(os.path.expanduser(run.spine.paths.run)).absolute(), tuple(command), name)
