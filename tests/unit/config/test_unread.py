"""What is typed and no stage looks at is said, with who does; what is looked at in any way never is."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict

import pipeline
from pipeline.api import _composed
from pipeline.config import unread
from pipeline.config.auto import Both
from pipeline.config.compose import _resolved, _wanted, load_run
from pipeline.config.options import CONF, options
from pipeline.config.resolvers import register
from pipeline.errors import PlanError
from pipeline.reporting import unused

MODEL = "+model=gpt_oss"


def said(*overrides: str) -> list[str]:
    """What a plan says of what was typed for nothing."""
    return unused.lines(unused.rows(pipeline.plan([MODEL, "progress=false", *overrides]).plan.unread.values()))


@pytest.mark.parametrize(
    ("typed", "reason"),
    [
        ("sampling.max_tokens=2", "no stage of this flow reads sampling; generate and chat do"),
        ("export.nvfp4_second=f32", "no stage of this flow reads export.nvfp4_second; quant=nvfp4 does"),
        ("prompt=Once", "no stage of this flow reads prompt; generate does"),
        ("evaluate.windows.tokens=64",
         "no stage of this flow reads evaluate; evaluate, parity, bench_quality and 4 more do"),
        ("train.steps=3", "no stage of this flow reads train; train does"),
        ("calibrate.samples=9", "no stage of this flow reads calibrate.samples; calibrate does, which calibrate=none "
                                "leaves out"),
        ("stages.smooth.unpack=null", "calibrate=none leaves the stage smooth out"),
    ],
)  # fmt: skip
def test_a_setting_that_no_stage_reads(typed: str, reason: str) -> None:
    assert said("flow=convert", "quant=mxfp4", typed) == [f"unused: {typed.lstrip('+')} ({reason})"]


def test_stages_by_name() -> None:
    reason = "no stage of this run reads sampling; generate and chat do"
    assert said("stages=[load,decode]", "sampling.top_k=3") == [f"unused: sampling.top_k=3 ({reason})"]


def test_what_names_lead_to_is_read() -> None:
    """`activations=nvfp4`, and a rule that says nvfp4, make a quant option of it, of which no reference says so."""
    assert said("flow=convert", "quant=nvfp4", "export.nvfp4_second=f32") == []
    assert said("flow=generate", "quant=int4", "activations=nvfp4", "export.nvfp4_second=f32") == []
    rule = "model.extra_rules=[{role: experts, to: nvfp4}]"
    assert said("flow=convert", "quant=int4", rule, "export.nvfp4_second=f32") == []


def test_a_typo_is_an_error_as_ever() -> None:
    with pytest.raises(Exception, match=r"sampling.max_token.*did you mean 'max_tokens'"):
        said("flow=convert", "sampling.max_token=2")


@pytest.mark.parametrize(
    ("typed", "reason"),
    [
        ("export.nvfp4_second=zzz", r"export\.nvfp4_second: 'zzz' is not a choice \(allowed: f32, inverse_f32\)"),
        ("sampling.temperature=warm", r"sampling\.temperature: a number is expected, got 'warm'"),
        ("train.optimizer.rate=-1", r"train\.optimizer\.rate: -1.0: a number above 0 is needed"),
    ],
)
def test_what_no_stage_could_take_is_an_error_too(typed: str, reason: str) -> None:
    with pytest.raises(PlanError, match=reason):
        said("flow=convert", "quant=mxfp4", typed)


def test_benchmarks_are_asked_with_what_their_runs_are() -> None:
    """A choice that no other flow would take, and no stage of theirs reads, is said too."""
    assert said("flow=bench_ops", "sampling=nucleus") == [
        "unused: sampling=nucleus (no stage of this flow reads sampling; generate and chat do)"
    ]
    assert said("flow=bench_convert", "quant=mxfp4", "export.nvfp4_second=f32", "kernels=native") == []
    with pytest.raises(PlanError, match="nothing in flow=convert"):
        said("flow=convert", "sampling=nucleus")


TYPICAL: Mapping[str, tuple[str, ...]] = {
    "allocate": ("allocate.bits=4.5", "allocate.quants=[int4,int8]", "evaluate.windows.tokens=64", "calibrate=imatrix",
                 "calibrate.windows.tokens=64", "evaluate.texts=[README.md]", "engine.dtype=bf16"),
    "bench": ("bench.rounds=1", "bench.prefill=[8]", "quants=[none,int4]", "bench.against=x",
              "evaluate.texts=[README.md]", "tokenizer.kind=auto", "engines.jax.dtype=f32"),
    "bench_convert": ("quant=mxfp4", "export.dtype=fp16", "bench.rounds=1", "kernels.quantize=[numpy]", "seed=3",
                      "bench.ours.ours=[]", "dask.workers=1"),
    "bench_ops": ("bench.ops=[rope]", "bench.rows=[1]", "bench.threads=1", "bench.rounds=1", "bench.seconds=0.01"),
    "bench_parts": ("quant=int4", "bench.contexts=[16]", "bench.prompts=[16]", "kernels.matmul=[xla]",
                    "engine.cache=int8", "stages.decode.dtype=keep"),
    "bench_quality": ("bench.quants=[int4]", "bench.calibrates=[none]", "bench.more={}", "evaluate.windows.tokens=64",
                      "calibrate.windows.tokens=64", "calibrate.method.damping=0.1"),
    "bench_scale": ("bench.seconds=3", "bench.exponent=0.3", "bench.rounds=1"),
    "bench_train": ("bench.trainers=[ours]", "bench.rate=0.1", "bench.rows=2", "engine.dtype=f32"),
    "convert": ("quant=mxfp4", "quant.scale_rule=even", "export=gguf", "export.path=x", "export.dtype=fp16",
                "hub.offline=true", "rules_file=null", "allow_requantize=true", "stages.quantize.measure=false",
                "calibrate=awq+gptq", "calibrate.samples=9", "calibrate.method.damping=0.1", "engine.dtype=bf16",
                "calibrate.sequential=null", "tokenizer.kind=auto", "mesh.replicated_most=0.5", "seed=3", "debug=true"),
    "distill": ("teacher=plugins/models/gpt_oss/tiny", "data.files=[README.md]", "train.steps=3", "export.path=x",
                "train.objective.temperature=2", "train.optimizer.rate=0.1", "sampling.top_k=2", "prompt=Once"),
    "evaluate": ("quant=int4", "evaluate.windows.tokens=64", "evaluate.windows.stride=9", "export.dtype=fp16",
                 "mesh=tensor", "mesh.axes.tensor=1", "activations=int8", "engine.cache=int8", "tokenizer.kind=auto"),
    "finetune": ("data.files=[README.md]", "data.length=32", "train=lora", "train.transform.rank=4", "train.steps=3",
                 "train.look.every=2", "train.save.every=2", "train.optimizer.schedule.warmup=0.1", "prompt=Once"),
    "full": ("quant=q4_k_m", "export=gguf", "sampling.top_k=2", "prompt=Once", "evaluate.windows.tokens=64",
             "calibrate=reconstruct", "calibrate.reconstruct.updates=3", "calibrate.texts=[README.md]"),
    "generate": ("prompts=[a,b]", "system=Short", "chat=true",
                 "sampling=nucleus", "sampling.temperature=0.5", "engine.programs=null", "activations=int8",
                 "activations_rotate=32", "calibrate=smoothquant", "calibrate.smooth.alpha=0.4", "kernels=numpy"),
    "histogram": ("histogram.tensors=['*q_proj*']", "quant=nvfp4", "export.nvfp4_second=f32", "kernels.cast=[numpy]"),
    "parity": ("stages.parity.tokens=9", "stages.export.dtype=fp32", "evaluate.texts=[README.md]", "engine.dtype=f32"),
    "sensitivity": ("sensitivity.by=role", "sensitivity.nearest=false", "evaluate.windows.tokens=64",
                    "quant=int4", "model.extra_rules=[]", "evaluate.texts=[README.md]"),
    "transcode": ("quant=none", "export=gguf", "export.max_shard_size=1MB", "hub.cache=null"),
    "verify": ("a=plugins/models/gpt_oss/tiny", "b=plugins/models/gpt_oss/tiny", "hub.offline=true"),
}  # fmt: skip
"""What people say to each flow."""


@pytest.mark.parametrize("flow", options("flow"))
def test_no_flow_calls_its_own_settings_unused(flow: str) -> None:
    assert said(f"flow={flow}", *TYPICAL[flow]) == []


NEEDED = {
    "finetune": ["data.files=[x]"], "distill": ["teacher=x", "data.files=[x]"], "verify": ["a=x", "b=x"],
    "histogram": ["histogram.tensors=[x]"], "allocate": ["allocate.bits=4"],
}  # fmt: skip
MADE = [(), ("quant=nvfp4",), ("quant=mxfp4", "calibrate=awq+gptq", "activations=int8"), ("calibrate=reconstruct",),
        ("quant=q4_k_m", "calibrate=smoothquant", "activations=nvfp4", "activations_scales=calibrated")]  # fmt: skip


CASES = [(flow, MADE[0]) for flow in options("flow")] + [
    (flow, made) for flow in ("convert", "evaluate", "generate", "histogram", "bench_parts") for made in MADE[1:]
]


@pytest.mark.parametrize(("flow", "made"), CASES, ids=[" ".join([flow, *made]) for flow, made in CASES])
def test_nothing_is_made_of_what_is_called_unused(flow: str, made: tuple[str, ...]) -> None:
    """Every setting of the config is typed; those that are called unused are changed, all of them, and every stage is
    given what it was given before."""
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        given = [MODEL, f"flow={flow}", "paths.run=here", *NEEDED.get(flow, ()), *made]
        config = compose("config", given, return_hydra_config=True)
        other = deepcopy(config)
        typed = [key for key in settings(OmegaConf.to_container(config, resolve=False)) if key != "quant"]
        with as_typed(config, typed), as_typed(other, typed):
            before = stages(config)
            idle = load_run(config, of_several=True).unread
            for key in idle:
                OmegaConf.update(other, key, "otherwise", merge=False)
            assert stages(other) == before
    assert {*idle} - {"zip"}, "no flow reads everything"


def stages(config: DictConfig) -> dict[str, Any]:
    """What each stage is given, and every run."""
    tree, _ = _resolved(config)  # problems are of what nobody reads: no stage is given something else
    tree = _wanted(tree)
    return {name: tree.get(name) for name in ("stages", *unread.ALWAYS)}


@contextmanager
def as_typed(config: DictConfig, typed: list[str]) -> Iterator[None]:
    """As if all of `typed` had been said."""
    with open_dict(config), open_dict(config.hydra):
        config.hydra.overrides.task = [f"{key}=said" for key in typed]
        HydraConfig.instance().set_config(config)
        del config["hydra"]
    yield
    HydraConfig.instance().cfg = None


def settings(node: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for name, value in node.items():
        key = f"{above}{name}"
        if key in ("hydra", "stages", "paths"):
            continue
        if isinstance(value, Mapping) and value:
            yield from settings(value, f"{key}.")
        elif not key.endswith("_target_"):
            yield key


def test_a_sweep_says_once_what_none_of_its_jobs_reads() -> None:
    jobs = [pipeline.plan([MODEL, *more]).plan.unread for more in (
        ["flow=convert", "sampling.top_k=2", "evaluate.windows.tokens=64", "prompt=a"],
        ["flow=evaluate", "sampling.top_k=3", "evaluate.windows.tokens=64", "prompt=a"],
    )]  # fmt: skip
    found = unused.lines(unused.in_all([unused.rows(job.values()) for job in jobs]))
    assert found == [
        "unused: sampling.top_k=2,3 (no stage of this flow reads sampling; generate and chat do)",
        "unused: prompt=a (no stage of this flow reads prompt; generate does)",
    ]


def test_of_two_runs_that_are_one_command() -> None:
    """quant=auto: texts are what the first judges by, the prompt is for the second, and the third for neither."""
    more = ("evaluate.windows.tokens=64", "prompt=a", "system=b")
    with _composed([MODEL, "flow=allocate", "allocate.bits=4", *more], None) as (first, _):
        pass
    with _composed([MODEL, "flow=transcode", *more, "sampling.top_k=3"], None) as (second, _):
        pass
    told = Both()
    assert told.said(first).unread == {}
    assert [*told.said(second).unread] == ["prompt", "system", "sampling.top_k"]
