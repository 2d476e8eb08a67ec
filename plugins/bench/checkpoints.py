"""The checkpoints that contenders read: a model in several forms, each written by the pipeline itself.

SmolLM2-135M has its real weights; those of gpt-oss-20b's shapes are made up (tests/cases/big_gpt_oss.py), experts in
MXFP4 as published. Peers read the GGUF files that Weightmill reads, so that all multiply with the same numbers.
"""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from pipeline.testing.peak import watch
from plugins.bench.peers import ROOT

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
TINY = ROOT / "plugins/models/gpt_oss/tiny"


@dataclass(frozen=True)
class Form:
    """What a run makes of the weights.

    Attributes:
        roles: names of groups of tensors that `quant` applies to.
        keeps: names of groups that stay as they come; without `quant`, what is packed is unpacked otherwise.
        of: the form that it is made of; empty: what the model comes in.
    """

    quant: str = "none"
    export: str = "gguf"
    roles: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    of: str = ""


@dataclass(frozen=True)
class Model:
    """Weights, and the forms that contenders read.

    Attributes:
        layers, vocab: of made-up weights of gpt-oss-20b's other shapes; 0: of real ones.
        nbytes: of disk, for all forms together and what they are made of.
    """

    option: str
    forms: dict[str, Form]
    nbytes: float
    layers: int = 0
    vocab: int = 0


_DENSE = ("attention", "embedding", "head")
_ALL = ("attention", "mlp", "embedding")
MODELS = {
    "gpt-oss, embedded": Model(
        "gpt_oss", {"bf16": Form(export="plain"), "mxfp4": Form("mxfp4", "hf", ("experts",))}, 50e6
    ),
    "SmolLM2-135M": Model(
        "smollm2",
        {
            "bf16": Form(export="plain"),
            "bf16 GGUF": Form(of="bf16"),
            "Q8_0": Form("q8_0", roles=_ALL, of="bf16"),
            "Q4_0": Form("q4_0", roles=_ALL, of="bf16"),
            "Q4_K_M": Form("q4_k_m", roles=("mlp",), of="bf16"),
            "int8": Form("int8", "orbax", _ALL, of="bf16"),
            "int4": Form("int4", "orbax", _ALL, of="bf16"),
        },
        1.1e9,
    ),
    "gpt-oss-20b, 4 layers": Model(
        "gpt_oss", {"Q8_0": Form("q8_0", roles=_DENSE), "bf16": Form(keeps=("experts",))}, 5.7e9, layers=4, vocab=8192
    ),
    "gpt-oss-20b": Model("gpt_oss", {"Q8_0": Form("q8_0", roles=_DENSE)}, 26e9, layers=24, vocab=201088),
}


def made(name: str, folder: Path, models: Path) -> dict[str, Path]:
    """Every form of a model under `folder`; those that are there already are taken as they are.

    Args:
        models: where real weights are.

    Raises:
        SystemExit: a run failed, with what it said.
    """
    model, place = MODELS[name], folder / name.replace(",", "").replace(" ", "-")
    scratch = place / "source"
    given = scratch if model.layers else TINY if name == "gpt-oss, embedded" else models.absolute() / SMOLLM2
    found: dict[str, Path] = {}
    for name_of_form, form in model.forms.items():
        run = place / name_of_form.replace(" ", "-")
        if not (run / "manifest.json").is_file():
            if model.layers and not scratch.exists():
                _write(model, scratch)
            _run("pipeline", *overrides(model, form, found.get(form.of, given)), f"paths.run={run}")
        found[name_of_form] = next(iter((run / "model").glob("*.gguf")), run / "model")
    shutil.rmtree(scratch, ignore_errors=True)  # as large as what was made of it
    return found


def _write(model: Model, to: Path) -> None:
    sizes = ["--layers", str(model.layers), "--vocab", str(model.vocab)]
    _run("tests.cases.big_gpt_oss", str(to), *sizes, "--mxfp4")


def overrides(model: Model, form: Form, source: Path) -> list[str]:
    """Of the run that makes a form."""
    given = {"quant": form.roles, "keep": form.keeps}
    rules = ", ".join(f"{{role: {role}, to: {to}}}" for to, roles in given.items() for role in roles)
    return [
        f"model={model.option}", f"model.source={source}", f"model.rules=[{rules}]", f"quant={form.quant}",
        f"export={form.export}", "flow=convert", "stages.quantize.measure=false", "digest_inputs=false",
        "progress=false",
    ]  # fmt: skip


def _run(module: str, *args: str) -> None:
    done = watch([sys.executable, "-m", module, *args], cwd=ROOT)
    if done.returncode:
        raise SystemExit(done.output)
