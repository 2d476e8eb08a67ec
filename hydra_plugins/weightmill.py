"""Our Hydra plugins; Hydra accepts them from this package only.

The search path: the config folders of installed third-party plugins.

Sweeps: Hydra's `-m`, with every job in a readable folder, and one failing job not stopping the others.

Hydra's own basic launcher raises at the first job that failed, and its sweeper refuses a sweep of which one job cannot
be composed. Ours names what failed, finishes the rest and compares the jobs. A job that is complete costs nothing, so
an interrupted sweep that is started again does only what is missing.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.plugins.launcher import Launcher as HydraLauncher
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from pipeline import redact, terminal
from pipeline.config.compose import plugin_folder, plugins
from pipeline.errors import StageError, StorageError, WeightmillError
from pipeline.places import hindrance
from pipeline.planning.model_choice import with_model
from pipeline.reporting import console

FILES = ("multirun.yaml", "sweep.csv", "sweep.png")  # what a sweep writes into its folder: Hydra the first of them


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
    """The Cartesian product, without refusing all jobs for one that does not compose."""

    def sweep(self, arguments: list[str]) -> Any:
        assert self.config is not None
        HydraConfig.instance().set_config(self.config)  # the sweep's folder is named after its overrides
        check_folder(Path(str(self.config.hydra.sweep.dir)).absolute())
        # What Hydra does with it here is write it down; the launcher has one of its own.
        self.config = OmegaConf.create(redact.tree(OmegaConf.to_container(self.config)))
        return super().sweep(arguments)

    def validate_batch_is_legal(self, batch: Any) -> None:
        """A job that does not compose fails by itself, in the launcher."""


def check_folder(folder: Path) -> None:
    """Raises StorageError when a sweep's files cannot be written there, or would overwrite what is not a sweep's.

    A sweep of ours is known by multirun.yaml, which Hydra writes first, and in which our sweeper stands.
    """
    if why := hindrance(folder / FILES[0]):
        raise StorageError(f"hydra.sweep.dir: {folder}: {why}")
    there = [name for name in FILES if os.path.lexists(folder / name)]
    known = folder / FILES[0]
    ours = known.is_file() and f"{Sweeper.__module__}.{Sweeper.__name__}" in known.read_text(errors="replace")
    if there and not ours:
        raise StorageError(
            f"hydra.sweep.dir: {folder} holds {', '.join(there)}, which no sweep of Weightmill wrote; choose another"
        )


class Launcher(HydraLauncher):
    """Runs jobs one after another in this process; each has the whole Dask budget."""

    def __init__(self) -> None:
        self.config: DictConfig | None = None
        self.task_function: TaskFunction | None = None
        self.hydra_context: HydraContext | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config = config
        self.hydra_context = hydra_context
        self.task_function = task_function

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run every job, print how they compare.

        Raises:
            StageError: some jobs failed; names each with its cause.
        """
        setup_globals()
        assert self.config is not None
        sweep_dir = Path(str(self.config.hydra.sweep.dir))
        results: list[Any] = []
        returns = []
        for number, overrides in enumerate(job_overrides):
            console.job(number + 1, len(job_overrides), overrides)
            try:
                ret = self._run(list(overrides), initial_job_idx + number)
            except Exception as why:  # does not compose
                ret = JobReturn(overrides=list(overrides), status=JobStatus.FAILED)
                ret.return_value = why
            result = ret._return_value
            if isinstance(result, Exception):
                if not isinstance(result, WeightmillError):
                    from pipeline.config.explain import explain

                    result = explain(result, list(overrides))
                console.error(result)
            results.append(result)
            returns.append(ret)
        rows = list(zip(console.short_names(job_overrides), results, strict=True))
        console.comparison(rows, sweep_dir)
        failed = [(name, why) for name, why in rows if isinstance(why, Exception)]
        if failed:
            lines = "\n".join(f"  {name}: {str(why).splitlines()[0]}" for name, why in failed)
            raise StageError(f"{len(failed)} of {len(rows)} jobs failed\n{lines}")
        return returns

    def _run(self, overrides: list[str], number: int) -> JobReturn:
        assert self.config is not None
        assert self.hydra_context is not None
        assert self.task_function is not None
        settled = with_model(overrides, fetch=True)  # of a source that the sweep varies
        config = self.hydra_context.config_loader.load_sweep_config(self.config, settled)
        HydraConfig.instance().set_config(config)
        with open_dict(config), read_write(config), read_write(config.hydra):
            config.hydra.job.id = number
            config.hydra.job.num = number
            config.hydra.sweep.dir = config.hydra.sweep.subdir = "."  # a run makes its own folder, paths.run
        return run_job(
            hydra_context=self.hydra_context,
            task_function=self.task_function,
            config=config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
            configure_logging=False,
        )
