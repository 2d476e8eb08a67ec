"""The command line as functions, for notebooks and other programs: the same overrides, folders and report.

    import pipeline

    report = pipeline.run(["+model=gpt_oss", "quant=mxfp4"])
    model = pipeline.load_model("outputs/gpt_oss-mxfp4/model")
    print(model.generate("The state of the Union", max_tokens=40))

`import pipeline` imports nothing else; these functions do when they are called.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.config.spine import RunConfig
    from pipeline.method import Method
    from pipeline.records.run import Run
    from pipeline.reporting.compare.compared import Compared
    from pipeline.reporting.compare.jobs import Comparison
    from pipeline.reporting.manifest import Report
    from pipeline.reporting.planned import Planned
    from pipeline.reporting.runs import Runs

_composing = threading.RLock()  # there is one Hydra in a process, and what it is about at the moment is global


def run(overrides: Sequence[str], *, config_dir: str | Path | None = None, progress: bool | None = None) -> "Report":
    """`python -m pipeline OVERRIDES…`, and its report.

    A run that is complete already is verified and not done again, as on the command line.

    Args:
        overrides: as typed, one string each: `["+model=gpt_oss", "quant=mxfp4"]`. Lists of values are for `sweep`. Of
            `quant=auto`, which is two runs, it is the second one's report.
        config_dir: as `--config-dir`.
        progress: say how it goes; None: where somebody looks, in a notebook or a terminal.

    Raises:
        ConfigError, PlanError, SourceError, StorageError, StageError: what the command line would say and exit with.
    """
    from pipeline.config.auto import Both, named_as_typed, two_runs

    if (both := two_runs(_checked(overrides))) is not None:
        first, then = both
        told = Both()
        with named_as_typed():
            done = _ran(first, config_dir, progress, told.said)
        return _ran(then(done.run), config_dir, progress, told.said)
    return _ran(_checked(overrides), config_dir, progress)


def _ran(
    overrides: list[str], config_dir: str | Path | None, progress: bool | None,
    told: "Callable[[RunConfig], RunConfig]" = lambda config: config,
) -> "Report":  # fmt: skip
    """One run, see `run`.

    Args:
        told: gives the config with what the run is to say of it.
    """
    from pipeline.running.runner import execute

    with _composed(overrides, config_dir) as (config, settled), _events(progress, config) as events:
        return execute(told(config), _folder(config), settled, events)


def plan(overrides: Sequence[str], *, config_dir: str | Path | None = None) -> "Planned":
    """`python -m pipeline plan OVERRIDES…`: what a run would do and take; nothing is read or written.

    Args: as `run`.

    Returns:
        What is shown in a notebook as on the command line, `problems` included, which raise nothing here.

    Raises:
        ConfigError, PlanError: what cannot be composed.
    """
    from pipeline.config.auto import Both, two_runs
    from pipeline.planning.memory import plan_run
    from pipeline.reporting.planned import Planned
    from pipeline.running.attempt import obstacles_ahead

    both = two_runs(_checked(overrides))  # of both runs, the first: what the second takes is not known before
    with _composed(_checked(overrides) if both is None else both[0], config_dir) as (config, _):
        config = config if both is None else Both().said(config)
        found = plan_run(config, _folder(config), fetch=False)
        return Planned(found, tuple(found.problems or obstacles_ahead(config, found, _folder(config))))


def sweep(
    overrides: Sequence[str], *, config_dir: str | Path | None = None, progress: bool | None = None
) -> "Comparison":
    """`python -m pipeline -m OVERRIDES…`: a run for each combination of values, as one graph, and how they compare.

    Args: as `run`, with lists of values: `["+model=gpt_oss", "quant=mxfp4,int8"]`.

    Returns:
        A row for each job, and the reports; of jobs that failed what ended them.

    Raises:
        ConfigError, PlanError: what cannot be composed, of any job; nothing was run.
        StorageError: the comparison cannot be kept.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from pipeline.config.compose import check_choices
    from pipeline.config.jobs import combined
    from pipeline.config.names import run_name, short_names
    from pipeline.config.overrides import as_typed, for_jobs
    from pipeline.planning.sweep import Asked, Job
    from pipeline.running.attempt import outputs_of
    from pipeline.running.sweep import ran

    typed = for_jobs(as_typed(_checked(overrides)))
    several = combined(OverridesParser.create().parse_overrides(typed))
    jobs = []
    for each, name in zip(several, short_names(several), strict=True):
        with _composed(each, config_dir, typed=False) as (config, settled):
            jobs.append(Job(config, _folder(config), tuple(settled), name))
    check_choices([job.run for job in jobs])
    folder = outputs_of(jobs[0].run) / f"compared-{run_name(typed)}"
    asked = Asked(jobs, several, folder, "\n".join(f"- {o}" for o in typed))
    with _events(progress, jobs[0].run) as events:
        found = ran(asked, events)
    return found


def compare(
    *runs: "str | Path | Run | Report", outputs: str | Path = "outputs", baseline: "str | Path | Run | None" = None
) -> "Compared":
    """`python -m pipeline compare RUN RUN …`: in what runs differ, and what came of it.

    Args:
        runs: folders, names of runs or sweeps and conditions, as typed; runs, and reports of runs.
        outputs: where runs lie that are named.
        baseline: which run the others are held against; None: the first.

    Returns:
        What a notebook shows as the command line does; `rows` for pandas, and `pareto("bits a weight", "KL")`.

    Raises:
        ConfigError: fewer than two runs, or several for `baseline`.
        SourceError: there is no such run.
    """
    from pipeline.reporting.compare.compared import compared, place_of_baseline

    where = Path(outputs).expanduser().absolute()
    found, number = place_of_baseline(_meant(runs, where), None if baseline is None else _meant([baseline], where))
    return compared(found, number)


def _meant(given: "Sequence[str | Path | Run | Report]", outputs: Path) -> "list[Run]":
    """What is meant, each once, in order; words go together, as conditions do."""
    from pipeline.errors import ConfigError
    from pipeline.records.registry import find
    from pipeline.records.run import Run, read
    from pipeline.reporting.manifest import Report

    if wrong := [g for g in given if not isinstance(g, str | Path | Run | Report)]:
        raise ConfigError(f"{wrong[0]!r}: a run is expected: a name, a folder, a run or a report")
    words = [str(g) for g in given if isinstance(g, str | Path)]
    others = [g if isinstance(g, Run) else read(Path(g.run)) for g in given if isinstance(g, Run | Report)]
    named = find(outputs, words) if words or not others else []
    ordered = [*named, *others] if given and isinstance(given[0], str | Path) else [*others, *named]
    return list({run.folder: run for run in ordered}.values())


def runs(outputs: str | Path = "outputs", *, where: Sequence[str] = (), sort: str | None = None) -> "Runs":
    """The runs below a folder of outputs, newest first: what `python -m pipeline runs` lists.

    Args:
        outputs: the folder.
        where: names of runs and of sweeps, and conditions: `["quant=mxfp4", "kl<0.01"]`.
        sort: a metric, by which the best come first, or `name`, `started`, `seconds`, …

    Returns:
        A sequence that a notebook shows as a table; `to_pandas()` gives a frame.

    Raises:
        ConfigError: there is no such folder; a condition on what no run has.
        SourceError: no run is called so.
    """
    from pipeline.errors import ConfigError
    from pipeline.files import placed
    from pipeline.records.query import ordered
    from pipeline.records.registry import all_runs, find
    from pipeline.reporting.runs import Runs

    if isinstance(where, str) or not isinstance(where, Sequence) or not all(isinstance(w, str) for w in where):
        raise ConfigError(f"where={where!r}: a list is expected, one string each")
    if not isinstance(sort, str | None):
        raise ConfigError(f"sort={sort!r}: the name of a metric is expected, or `name`, `started`, `seconds`")
    folder = placed(str(outputs))
    if not folder.is_dir():
        raise ConfigError(f"{folder}: there is no such folder")
    found = find(folder, list(where))
    return Runs(tuple(found if sort is None else ordered(found, sort, known=lambda: all_runs(folder))), folder)


def _checked(overrides: Sequence[str]) -> list[str]:
    from pipeline.errors import ConfigError

    if isinstance(overrides, str):
        raise ConfigError(f"overrides={overrides!r}: a list of them is expected, one string each")
    return list(overrides)


def _folder(config: "RunConfig") -> Path:
    return Path(os.path.expanduser(config.spine.paths.run)).absolute()


def _events(progress: bool | None, config: "RunConfig") -> Any:
    """Where a run tells how it goes."""
    from pipeline.events import Events
    from pipeline.reporting import progress as shown

    if progress is None:
        progress = shown.notebook() is not None or bool(getattr(sys.stderr, "isatty", bool)())
    return shown.progress(config.spine.progress) if progress else nullcontext(Events())


def load_model(
    source: str | Path,
    *,
    quant: str | None = None,
    model: str | None = None,
    mesh: str | None = None,
    overrides: Sequence[str] = (),
    progress: bool | None = None,
) -> Any:
    """A checkpoint on the device, or on a mesh of them, ready to generate and to score; nothing is written.

    Args:
        source: folder, GGUF file or `hf://owner/name`, in any dialect; or a model option, with the checkpoint that it
            brings along.
        quant: a quant option, applied while loading; None: what is packed stays so,
            and the rest is bf16, as `flow=generate` has it (`overrides=["stages.decode.dtype=keep"]`: as it is stored).
        model: a model option, whose rules say what `quant` applies to; None: the one that is for the checkpoint.
        mesh: a mesh option, over all devices that JAX has: `"tensor"`; their number along each axis is said in
            `overrides`: `["mesh.axes.tensor=4"]`. None: one device.
        overrides: more of what the command line takes: `["engine.dtype=bf16", "engine.cache=int8"]`.
        progress: as `run`.

    Returns:
        A `plugins.engine.session.Model`. Without a tokenizer beside the weights it takes prompts of token ids only.

    Raises:
        as `run`.
    """
    from pipeline.config.options import options
    from pipeline.config.overrides import quoted
    from pipeline.running import text_stream
    from pipeline.running.loading import STAGES, loaded

    chosen = [
        f"{group}={name}" for group, name in (("model", model), ("mesh", mesh), ("quant", quant)) if name is not None
    ]
    by_name = model is None and str(source) in options("model") and not os.path.exists(source)
    which = f"model={source}" if by_name else f"model.source={quoted(_place(source))}"
    args = [*chosen, which, STAGES, *overrides]
    with (
        _composed(args, None, build=("engine",)) as (config, _),
        _events(progress, config) as events,
        text_stream.to(events.text, events.live),
    ):
        return loaded(config, 'overrides=["{}"]')


def quant_method(name: str, overrides: Sequence[str] = ()) -> "Method":
    """What `quant=NAME` stands for.

    Args:
        overrides: of its fields and of what they refer to, as on the command line: `["quant.like=torchao"]`.

    Raises:
        ConfigError, PlanError: as `run`.
    """
    from pipeline import backends
    from pipeline.ops import kernels_of

    # A run has a model; which one is nothing to a method.
    args = ["+model=gpt_oss", "stages=[load]", f"quant={name}", *overrides]
    with _composed(args, None, build=("quant",)) as (config, _):
        found: Method = config.built["quant"]
    backends.prepare({b for kernel in kernels_of(found) for b in kernel.backends}, lambda said: None)
    return found


def _place(source: str | Path) -> str:
    """What `model.source=` is to be: an absolute path, or an address as it is."""
    return str(source) if "://" in str(source) else str(Path(os.path.expanduser(source)).absolute())


@contextmanager
def _composed(
    overrides: Sequence[str], config_dir: str | Path | None, build: Sequence[str] = (), *, typed: bool = True
) -> Iterator[tuple["RunConfig", list[str]]]:
    """The config of a command line, checked, and the overrides as they were composed.

    Args:
        build: nodes that are built beside the stages.
        typed: overrides are as people type them; else they are a sweep's job's, as Hydra's grammar has them.

    Raises:
        ConfigError: Hydra's errors, explained.
        PlanError: every problem of every node.
    """
    from hydra import compose, initialize_config_dir
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from omegaconf import open_dict
    from omegaconf.errors import OmegaConfBaseException

    from pipeline.config.compose import load_run
    from pipeline.config.explain import explain
    from pipeline.config.options import CONF, search_override
    from pipeline.config.overrides import as_typed
    from pipeline.config.resolvers import register
    from pipeline.planning.model_choice import with_model

    folder = Path(config_dir).absolute() if config_dir else None
    search = search_override(folder)
    with _composing:
        register()
        overrides = with_model(as_typed(overrides) if typed else overrides, fetch=True, config_dir=folder)
        with initialize_config_dir(str(CONF), version_base="1.3"):
            try:
                whole = compose("config", [*search, *overrides], return_hydra_config=True)
                HydraConfig.instance().set_config(whole)
                with open_dict(whole):
                    del whole["hydra"]
                config = load_run(whole, build, of_several=not typed)
            except (HydraException, OmegaConfBaseException, ValueError) as why:
                found = explain(why, list(overrides), sweeps=False)
                if found is why:
                    raise
                raise found from None
            finally:
                HydraConfig.instance().cfg = None
    yield config, overrides


def compose_run(overrides: Sequence[str], config_dir: Path | None = None) -> "RunConfig":
    """The run that a command line with `overrides` describes, for tests and notebooks.

    Raises:
        PlanError: every problem of every node.
        HydraException: an override that does not compose.
    """
    from hydra import compose, initialize_config_dir

    from pipeline.config.compose import load_run
    from pipeline.config.options import CONF, search_override
    from pipeline.config.overrides import as_typed
    from pipeline.config.resolvers import register
    from pipeline.planning.model_choice import with_model

    search = search_override(config_dir.absolute() if config_dir else None)
    with _composing:
        register()
        settled = with_model(as_typed(overrides), fetch=False, config_dir=config_dir)
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return load_run(compose("config", [*search, "paths.run=outputs/run", *settled]))
