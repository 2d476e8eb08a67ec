"""The command line: `python -m pipeline [VERB] OVERRIDES…`, and nothing else.

Without a verb the run is executed (`-m` sweeps). `plan`, `graph` and `why` stop before anything is read or written;
`explain KEY` says what a group, an option or a setting is;
`chat` loads the model and talks; `convert`, `evaluate`, `generate` and `chat SOURCE` say their words as overrides;
`gc` lists results that no run refers to, `gc --delete` removes them; `tune` times how kernels had best divide their
work on this machine, and which are fastest on its GPU; `new-stage NAME` writes a stage to start from, and
`new-method`, `new-dialect`, `new-kernel` and `new-family` such plugins.
Exit codes: 0 done, 1 bug or unexpected error, 2 configuration, 3 plan, 4 source, 5 storage, 6 a stage failed,
7 checkpoints or runs differ, 9 `compare` found what got worse by too much, 129 the terminal was closed,
130 interrupted, 141 nobody reads stdout, 143 terminated.
"""

import io
import os
import shlex
import sys
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pipeline.beginning import begin

if __name__ == "__main__":
    begin(sys.argv[1:])

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from pipeline import backends, terminal
from pipeline.config import auto, line, usage, verbs
from pipeline.config.asked import COMMANDS
from pipeline.config.compose import load_run, unresolved
from pipeline.config.families import checkpoints
from pipeline.config.options import CONF, option_folders, options
from pipeline.config.overrides import as_typed, for_jobs
from pipeline.config.resolvers import register
from pipeline.config.words import before_dashes
from pipeline.errors import ConfigError, WeightmillError
from pipeline.reporting import console
from pipeline.running import process
from pipeline.waiting import Waiting

# What plans and runs is imported by whoever does: a third of a start, that help and short verbs do without.
if TYPE_CHECKING:
    from pipeline.config.spine import RunConfig
    from pipeline.planning.sweep import Asked

_verb = "run"
_debug = False
_composing = Waiting("composing")
_outcome: Any = None  # of a single run: its report, or the error that ended it
_both: auto.Both | None = None  # of two runs that are one command; None: there is one
_code = 0  # the largest exit code that a report of this process asks for


@hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")
def job(cfg: "DictConfig | Asked") -> Any:
    """One composed config; returns its report, or the error, which Hydra would otherwise announce in its own way.

    With `-m` our launcher gives all jobs, composed; then it returns the outcome of each.
    """
    global _code, _debug, _outcome
    if not isinstance(cfg, DictConfig):
        from pipeline.running import sweep

        _debug = any(one.run.spine.debug for one in cfg.jobs)
        _composing.end()
        process.collect_garbage()
        outcomes = sweep.executed(cfg) if _verb == "run" else sweep.planned(cfg, _verb)
        _code = max([_code, *(getattr(o, "exit_code", 0) for o in outcomes if not isinstance(o, Exception))])
        return outcomes
    _debug = bool(cfg.get("debug"))
    try:
        _outcome = _job(cfg)
        _code = max(_code, getattr(_outcome, "exit_code", 0))
    except Exception as why:
        _outcome = why
    return _outcome


def _job(cfg: DictConfig) -> Any:
    """Plan, and run unless the verb says otherwise."""
    if _verb == "chat":
        return _talk(cfg)
    run = load_run(cfg) if _both is None else _both.said(load_run(cfg))
    run_dir = Path(os.path.expanduser(run.spine.paths.run)).absolute()
    if _verb in ("plan", "graph", "why"):
        _plan(run, run_dir)
        return None
    from pipeline.reporting.progress import progress
    from pipeline.running.graph import import_threads
    from pipeline.running.runner import execute

    if not run.spine.dask.remote:
        import_threads()
    process.collect_garbage()
    _composing.end()
    command = unresolved(HydraConfig.get().overrides.task)
    with progress(run.spine.progress) as events:
        report = execute(run, run_dir, command, events)
    from pipeline.reporting.tables import tables

    console.out(*tables(report, seen=run.spine.progress and console.one_place()), *report.places)
    return report


def _plan(run: "RunConfig", run_dir: Path) -> None:
    """Say what a run would do, or why it would do it again.

    Raises:
        PlanError: it cannot be done.
    """
    from pipeline.planning.memory import plan_run
    from pipeline.running.attempt import obstacles_ahead, outputs_of
    from pipeline.running.results import FOLDER, Results
    from pipeline.running.why import done_already, reasons

    _composing.say("planning")
    plan = plan_run(run, run_dir, fetch=False)
    _composing.end()
    if plan.failures:  # what could be planned all the same is not what was asked for
        raise plan.refusal
    if _verb == "graph":
        console.out(console.mermaid(plan))
    elif _verb == "why":
        outputs = outputs_of(run)
        console.out(*console.why_tables(reasons(plan, outputs, Results(outputs / FOLDER))))
    else:
        done = [] if run.spine.overwrite else done_already(plan, outputs_of(run))
        plan.time = plan.time and plan.time.without(done)
        console.out(*console.plan_tables(plan), *console.kernels_table(plan))
        if done:
            console.out(f"done already: {', '.join(done)}; `why` says where")
        if not plan.problems:
            plan.problems += obstacles_ahead(run, plan, run_dir, unresolved(HydraConfig.get().overrides.task))
    if plan.problems:
        raise plan.refusal


def _talk(cfg: DictConfig) -> None:
    """Load the model, and chat."""
    from pipeline.engine import gang_of
    from pipeline.running import text_stream
    from pipeline.running.chat import chat
    from pipeline.running.loading import loaded

    run = load_run(cfg, build=("engine", "sampling"))
    _composing.end()
    if gang_of(run.built["engine"]) is not None:
        raise ConfigError("mesh.processes: a chat is one process; it takes all devices that this one sees")
    with Waiting("loading the model") as line, text_stream.to(lambda text: terminal.say(text.rstrip("\n")), line.say):
        model = loaded(run, "{}", text=True)
    process.collect_garbage()
    chat(model, run.built["sampling"], template=run.tree["chat"], system=run.tree["system"])


def main() -> NoReturn:
    """Entry point of `python -m pipeline` and of the console script `weightmill`."""
    then = ["nothing of CPUs is kept; of a GPU what was timed"] if sys.argv[1:2] == ["tune"] else []
    process.end(lambda: _main(sys.argv[1:]), *then, debug=lambda: _debug)


def _main(args: list[str]) -> int:
    """The exit code of what `args` ask for."""
    global _both, _code, _outcome, _verb
    _both, _code, _outcome, _verb = None, 0, None, "run"
    args = [*args[1:], "--help"] if args[:1] == ["help"] else args
    typed = {*before_dashes(args)}
    if {"-h", "--help"} & typed and (asked := usage.asked(args)) is not None:
        console.out(usage.usage(asked))
        return 0
    if "--version" in typed or args[:1] == ["version"]:
        console.out(f"weightmill {_version()}")
        return 0
    if (apart := line.apart(args)) is not None:
        verb, others = apart
        return _apart(verb, others)
    _run_hydra(args)
    return _code


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("weightmill")
    except metadata.PackageNotFoundError:
        return f"in {CONF.parent}, not installed"


def _apart(verb: str, args: list[str]) -> int:
    """The verbs that are about no run of this process; the exit code.

    Raises:
        ConfigError: an argument that they do not have.
    """
    if verb in COMMANDS:
        return int(import_module(f"pipeline.commands.{verb}").main(args))
    if verb == "new-stage":
        from pipeline.config.scaffold import new_stage

        new_stage(args)
    elif verb in verbs.NEW:
        from pipeline.config.scaffolds import new

        new(verb.removeprefix("new-"), args)
    elif verb == "explain":
        _explain(args)
    elif args:
        raise ConfigError(f"tune {args[0]}: it takes no arguments")
    else:
        console.out(*console.tune_table(backends.tune(terminal.say)))
    return 0


def _explain(args: list[str]) -> None:
    """Say what a group, an option or a setting is; without one, which groups there are.

    Raises:
        ConfigError: more than one key, or one that is not there.
    """
    from pipeline.config.reference import explained
    from pipeline.reporting.reference import explained_tables, groups_table

    _use_config_dir(args)
    keys = _without_option(args, "--config-dir", "-cd")
    if keys[:1] and keys[0] in usage.OTHERS:
        console.out(usage.usage(keys[0]))
        return
    if keys[:1] and (spells := verbs.OWN.get(keys[0])):
        console.out(f"{keys[0]} of a short verb says {spells.format('…')}")
        keys[0] = spells.partition("=")[0]
    if wrong := [key for key in keys if key.startswith("-")]:
        raise ConfigError(f"explain {wrong[0]}: there is no such option; it takes a key, and --config-dir DIR")
    if len(keys) > 1:
        raise ConfigError(f"explain {' '.join(keys)}: one key at a time, such as explain {keys[0]}")
    console.out(*(explained_tables(explained(keys[0])) if keys else groups_table()))


def _run_hydra(args: list[str]) -> None:
    global _both, _debug, _verb
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises, and the messages are ours
    register()
    if {"--shell-completion", "-sc"} & {*args}:
        _complete()
        sys.argv = [sys.argv[0], *args]
        job()
        return
    if "bench" in args:
        from pipeline.bench.again import completed  # which no other verb waits for

        args = completed(args, options("flow"))
    said = line.read(args, {group: options(group) for group in ("model", "flow", "quant", "export")})
    _verb = said.verb
    _debug = any(o.lstrip("+").lower() == "debug=true" for o in said.overrides)
    if said.spelt is not None:
        terminal.say(said.spelt)
    _use_config_dir(said.options)
    if (both := auto.two_runs(said.overrides)) is None or said.sweeps:
        _compose(said)
        return
    first, then = both
    _both = auto.Both()
    terminal.say(f"{auto.AUTO}: {shlex.join(first)}")
    with auto.named_as_typed():
        _compose(replace(said, overrides=first))
    if _verb != "run":
        terminal.say(f"and then: {shlex.join(then('FOLDER'))}")
        return
    second = then(_outcome.run)
    terminal.say(f"and then: {shlex.join(second)}")
    _compose(replace(said, overrides=second))


def _compose(said: line.Line) -> None:
    global _composing
    _composing = Waiting("composing")
    with _composing:
        _ask_hydra(said)


def _ask_hydra(said: line.Line) -> None:
    typed = _for_chat(said) if _verb == "chat" else said.overrides
    typed = as_typed(typed)
    if typed and _option(said.options, "--config-name", "-cn") is None:  # a config of the user's own has a model or not
        from pipeline.planning.model_choice import with_model

        typed = with_model(typed, fetch=_verb in ("run", "chat"))
    typed = for_jobs(typed) if said.sweeps else typed
    sys.argv = [sys.argv[0], *said.options, *typed]
    try:
        _helped() if {"-h", "--help"} & {*said.options} else job()
        if isinstance(_outcome, Exception) and not said.sweeps:
            raise _outcome
    except Exception as why:
        from pipeline.config.explain import explain

        found = explain(why, typed, sweeps=said.sweeps)
        if found is why:
            raise
        raise found from (why if _debug else None)


def _helped() -> None:
    """Hydra's help, in lines that fit."""
    with redirect_stdout(io.StringIO()) as shown, suppress(SystemExit):  # of code 0; errors are raised
        job()
    console.out(*usage.overview(shown.getvalue(), checkpoints(option_folders(None))))


def _use_config_dir(args: list[str]) -> str | None:
    """Make the folder that `--config-dir` names the user's."""
    config_dir = _option(args, "--config-dir", "-cd")
    if config_dir is not None:
        if not Path(config_dir).is_dir():
            raise ConfigError(f"--config-dir {config_dir!r}: no such folder")
        os.environ["WEIGHTMILL_CONFIG_DIR"] = str(Path(config_dir).absolute())
    return config_dir


def _without_option(args: list[str], *names: str) -> list[str]:
    """`args` without an option and its value."""
    found, skip = [], False
    for arg in args:
        if not skip and arg not in names and not arg.startswith(tuple(f"{name}=" for name in names)):
            found.append(arg)
        skip = not skip and arg in names
    return found


def _for_chat(said: line.Line) -> list[str]:
    """The overrides of a chat: those that load a model, and how it answers where nobody said how.

    Raises:
        ConfigError: what makes no sense for it.
    """
    from pipeline.running.loading import STAGES, of_others

    if said.sweeps:
        raise ConfigError("chat -m: one conversation at a time")
    if found := of_others(said.overrides):
        raise ConfigError(f"chat {found[0]}: a chat has no stages; quant=NAME quantizes what is loaded")
    keys = [o.lstrip("+").partition("=")[0] for o in said.overrides]
    return [*([] if "sampling" in keys else ["sampling=chat"]), STAGES, *said.overrides]


def _complete() -> None:
    """A shell asks how a line goes on: that line is settled as one that is typed."""
    from pipeline.planning.model_choice import with_model

    app, *words = os.environ.get("COMP_LINE", "").split(" ")
    words = words[1:] if words[:1] and words[0] in verbs.VERBS else words
    with suppress(WeightmillError):  # a line that is not finished may be wrong
        words = [*with_model(as_typed(words[:-1]), fetch=False), *words[-1:]]
    os.environ["COMP_LINE"] = " ".join([app, *words])


def _option(args: list[str], *names: str) -> str | None:
    for i, arg in enumerate(args):
        for name in names:
            if arg == name and i + 1 < len(args):
                return args[i + 1]
            if arg.startswith(f"{name}="):
                return arg.partition("=")[2]
    return None


if __name__ == "__main__":
    main()
