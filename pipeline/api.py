"""The command line as functions, for notebooks and other programs: the same overrides, folders and report.

    import pipeline

    report = pipeline.run(["+model=gpt_oss", "quant=mxfp4"])
    model = pipeline.load_model("outputs/gpt_oss-mxfp4/model")
    print(model.generate("The state of the Union", max_tokens=40))

`import pipeline` imports nothing else; these functions do when they are called.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.config.spine import RunConfig
    from pipeline.method import Method
    from pipeline.reporting.manifest import Report


def run(overrides: Sequence[str], *, config_dir: str | Path | None = None, progress: bool = False) -> "Report":
    """`python -m pipeline OVERRIDES…`, and its report.

    A run that is complete already is verified and not done again, as on the command line.

    Args:
        overrides: as typed, one string each: `["+model=gpt_oss", "quant=mxfp4"]`. No sweeps: call it in a loop.
        config_dir: as `--config-dir`.
        progress: say on stderr how it goes.

    Raises:
        ConfigError, PlanError, SourceError, StorageError, StageError: what the command line would say and exit with.
    """
    from pipeline.errors import ConfigError
    from pipeline.events import Events
    from pipeline.reporting import console
    from pipeline.running.runner import execute

    if isinstance(overrides, str):
        raise ConfigError(f"overrides={overrides!r}: a list of them is expected, one string each")
    with _composed(overrides, config_dir) as (config, settled):
        run_dir = Path(os.path.expanduser(config.spine.paths.run)).absolute()
        if not progress:
            return execute(config, run_dir, settled, Events())
        with console.progress(config.spine.progress) as events:
            return execute(config, run_dir, settled, events)


def load_model(
    source: str | Path,
    *,
    quant: str | None = None,
    model: str | None = None,
    mesh: str | None = None,
    overrides: Sequence[str] = (),
) -> Any:
    """A checkpoint on the device, or on a mesh of them, ready to generate and to score; nothing is written.

    Args:
        source: folder, GGUF file or `hf://owner/name`, in any dialect.
        quant: a quant option, applied while loading; None keeps every tensor as it is, packed ones packed.
        model: a model option, whose rules say what `quant` applies to; None: the one that is for the checkpoint.
        mesh: a mesh option, over all devices that JAX has: `"tensor"`; their number along each axis is said in
            `overrides`: `["mesh.axes.tensor=4"]`. None: one device.
        overrides: more of what the command line takes: `["engine.dtype=bf16", "engine.cache=int8"]`.

    Returns:
        A `plugins.engine.session.Model`. Without a tokenizer beside the weights it takes prompts of token ids only.

    Raises:
        as `run`.
    """
    from pipeline.config.overrides import quoted
    from pipeline.running.loading import how, loaded

    chosen = [
        f"{group}={name}" for group, name in (("model", model), ("mesh", mesh), ("quant", quant)) if name is not None
    ]
    args = [*chosen, f"model.source={quoted(_place(source))}", *how(quant is not None), *overrides]
    with _composed(args, None, build=("engine",)) as (config, _):
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
    overrides: Sequence[str], config_dir: str | Path | None, build: Sequence[str] = ()
) -> Iterator[tuple["RunConfig", list[str]]]:
    """The config of a command line, checked, and the overrides as they were composed.

    Args:
        build: nodes that are built beside the stages.

    Raises:
        ConfigError: Hydra's errors, explained.
        PlanError: every problem of every node.
    """
    from hydra import compose, initialize_config_dir
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException
    from omegaconf import open_dict
    from omegaconf.errors import OmegaConfBaseException

    from pipeline.config.compose import CONF, load_run, register, search_override
    from pipeline.config.explain import explain
    from pipeline.config.overrides import as_typed
    from pipeline.planning.model_choice import with_model

    register()
    folder = Path(config_dir).absolute() if config_dir else None
    search = search_override(folder)
    overrides = with_model(as_typed(overrides), fetch=True, config_dir=folder)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        try:
            whole = compose("config", [*search, *overrides], return_hydra_config=True)
            HydraConfig.instance().set_config(whole)
            with open_dict(whole):
                del whole["hydra"]
            config = load_run(whole, build)
        except (HydraException, OmegaConfBaseException) as why:
            raise explain(why, list(overrides), sweeps=False) from None
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

    from pipeline.config.compose import CONF, load_run, register, search_override
    from pipeline.config.overrides import as_typed
    from pipeline.planning.model_choice import with_model

    register()
    search = search_override(config_dir.absolute() if config_dir else None)
    settled = with_model(as_typed(overrides), fetch=False, config_dir=config_dir)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return load_run(compose("config", [*search, "paths.run=outputs/run", *settled]))
