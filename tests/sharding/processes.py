"""What each of two processes with two devices does, in a gang that one test module starts once: it loads, writes its
part of every export, and does with a model what the stages do. The first gives what it found, the other writes it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import psutil  # type: ignore[import-untyped]
from jax.experimental.multihost_utils import sync_global_devices

from pipeline.adapters import MergedStore
from pipeline.api import quant_method
from pipeline.engine import Windows
from pipeline.errors import PlanError, StageError
from pipeline.mesh import Mesh
from pipeline.planning.reading import bytes_read
from pipeline.records.points import METRICS
from pipeline.rules import Rule
from pipeline.running import member, peak
from pipeline.running.results import Results
from pipeline.stage import Checkpoint, Context, Exported
from pipeline.tensors.spec import TensorSpec
from pipeline.training import Splits
from plugins.engine.engine import Engine
from plugins.engine.load import device_nbytes, on_devices
from plugins.engine.options import Sampling
from plugins.formats.gguf.file import GgufContainer
from plugins.formats.gguf.model import GgufDialect
from plugins.formats.orbax.container import Orbax
from plugins.formats.orbax.pytree import Pytree
from plugins.formats.orbax.tree import describe
from plugins.formats.safetensors.container import SafeTensors
from plugins.formats.safetensors.hugging_face import HuggingFaceDialect
from plugins.formats.safetensors.plain import Plain
from plugins.mesh.processes import join as join_jax
from plugins.train.lora import Lora
from plugins.train.objectives import CausalLM
from plugins.train.optimizers import SGD
from plugins.train.options import Looking, Saving
from plugins.train.packing import Packing
from plugins.train.trainer import Trainer
from stages.evaluate import Evaluate
from stages.generate import Generate
from stages.parity import Parity
from stages.sensitivity import Sensitivity
from tests.cases import model_runs
from tests.cases.toy_rows import Rows
from tests.sharding import models, toys

MESH = "fsdp_tensor"
EXPORTS: dict[str, tuple[Any, ...]] = {
    "orbax": (Pytree(), Orbax()),
    "gguf": (GgufDialect(), GgufContainer()),
    "safetensors": (Plain(), SafeTensors(), "bf16"),
}
QUANT, RULES = "q8_0", "[{match: '*_proj.weight', to: quant}]"
LARGE = {
    **toys.CONFIGS["llama"], "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 2,
    "vocab_size": 64 << 10, "tie_word_embeddings": True,
}  # fmt: skip
PROMPTS = ("5 17 3", "40 2 2 8 90", "7")
WARM = Sampling(max_tokens=6, temperature=0.8, top_p=0.9, repetition_penalty=1.2)
CUT = Windows(16, batch=4)


def divided(name: str = MESH, **axes: int) -> Mesh:
    """A mesh among both processes."""
    return replace(toys.mesh(name, **axes), processes=2)


def join(rank: int, address: str, *, alone: bool) -> None:
    join_jax(divided(), rank, address, "cpu", alone=alone)


@dataclass(frozen=True)
class Numbers:
    """A tokenizer whose texts are token ids."""

    eos: tuple[int, ...] = ()
    bos: int | None = None
    has_chat_template: bool = False

    def check(self, checkpoint: Checkpoint) -> None:
        pass

    def inputs(self, checkpoint: Checkpoint) -> tuple[Any, ...]:
        return ()

    def exists(self, checkpoint: Checkpoint) -> bool:
        return True

    def load(self, checkpoint: Checkpoint) -> "Numbers":
        return self

    def ends(self, checkpoint: Checkpoint) -> tuple[int, ...]:
        return ()

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(map(str, tokens))

    def stream(self) -> "Numbers":
        return self

    def push(self, token: int) -> str:
        return f"{token} "

    def end(self) -> str:
        return ""


@dataclass(frozen=True)
class Told:
    """A reference that has found what a file says."""

    def taps(self, folder: Path, ids: Sequence[int]) -> Mapping[str, Any]:
        assert member.first(), "of several processes the first runs the reference"
        return dict(np.load(folder / "taps.npz"))


def engine(mesh: Mesh | None) -> Engine:
    found = replace(models.engine(), tokenizer=Numbers())
    return found if mesh is None else replace(found, mesh=mesh)


def used(folder: Path, mesh: Mesh | None) -> dict[str, Any]:
    """What the stages that run a model find with it. One device also writes what the reference of others says."""
    run_dir = folder / ("one" if mesh is None else "several")
    run_dir.mkdir(exist_ok=True)
    text = folder / "text.txt"
    plain, packed = models.checkpoint("llama", layers=1), models.packed("llama", 0, layers=1)
    some = sorted(n for n in packed.store.specs if "down_proj" in n or "k_proj" in n)
    changed = replace(packed, store=Mixed(plain.store, packed.store, tuple(some)))
    results: Any = Results(run_dir)
    ctx = Context(run_dir, results=member.Together(results) if member.inside() else results, recipe="x")
    made = Generate(engine(mesh), WARM, PROMPTS).run(ctx, plain)
    scored = Evaluate(engine(mesh), (str(text),), CUT).run(ctx, changed, plain)
    ranked = Sensitivity(engine(mesh), str(text), CUT, by="tensor").run(ctx, changed, plain)
    if mesh is None:
        taps = ctx.models.load(engine(mesh), plain, plain=True).taps(Numbers().encode(text.read_text())[:9])
        np.savez(folder / "taps.npz", **taps)
    same = Parity(engine(mesh), Told(), str(text), 9, 1e-5).run(ctx, plain, Exported(folder, ()))
    ctx.models.release()
    return {
        "tokens": made.tokens, "perplexity": {n: r["perplexity"] for n, r in scored.texts.items()},
        "kl": {n: r["kl"] for n, r in scored.texts.items()}, "groups": {n: g["kl"] for n, g in ranked.groups.items()},
        "same": same.same, "layers": len(same.layers), "left": sorted(p.name for p in run_dir.iterdir()),
    }  # fmt: skip


def adapted(folder: Path, mesh: Mesh | None) -> dict[str, Any]:
    """What a training of adapters beside packed weights finds, and how many examples this process has asked for."""
    run_dir, rows = folder / f"adapted {jax.process_index()} of {1 if mesh is None else 2}", Rows(16)
    run_dir.mkdir()
    how = Trainer(
        engine(mesh), CausalLM(), SGD(rate=0.3, clip=None), steps=2, batch=4, save=Saving(seconds=None),
        transform=Lora(rank=2, packing=Packing(quant_method("q8_0"), (Rule(match="*_proj.weight"),))),
        look=Looking(prompts=PROMPTS[:1], tokens=2),
    )  # fmt: skip
    found = how.train(Context(run_dir), models.checkpoint("llama", layers=1), Splits(rows), Numbers(), 0, None)
    assert isinstance(found.store, MergedStore)
    each = {layer.names[0]: [float(np.abs(x).sum()) for x in (layer.a, layer.b)] for layer in found.store.layers}
    kept = run_dir / METRICS
    said = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    return {
        "loss": found.report["loss"], "tokens": found.report["amount"], "layers": each, "asked": sum(rows.asked),
        "texts": [r["text"] for r in said if r["kind"] == "sample"],
    }  # fmt: skip


@dataclass(frozen=True)
class Mixed:
    """A store of plain tensors with `some` of another."""

    plain: Any
    packed: Any
    some: tuple[str, ...]

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        return {n: (self.packed if n in self.some else self.plain).specs[n] for n in self.plain.specs}

    @property
    def metadata(self) -> Mapping[str, Any]:
        return {}

    def read(self, name: str, index: Any = ()) -> Any:
        return (self.packed if name in self.some else self.plain).read(name, index)


def work(folder: Path) -> dict[str, Any]:
    """Of this process, and on all four devices."""
    rank, mesh = jax.process_index(), divided()
    given = model_runs.checkpoint(folder / "toy", quant=QUANT, rules=RULES)
    store, read = toys.counted(given.store)
    model = toys.load(replace(given, store=store), mesh)
    layouts = toys.layouts_of(mesh, given)
    planned = bytes_read(given.store, mesh, toys.parameters_of(given.config), layouts, mesh.hosts)
    found: dict[str, Any] = {
        "read": sum(read.values()), "planned": planned[rank], "device_nbytes": device_nbytes(model)
    }  # fmt: skip
    held = on_devices(model, given.store.specs)
    elsewhere = [(n, box) for n in held.specs for box, process in held.shares(n) or () if process != rank]
    try:
        held.read(*elsewhere[0])
    except StageError as why:
        found["elsewhere"] = str(why)
    for name in EXPORTS:
        found[name] = export(replace(given, store=held, stored={}), folder / name, name, rank)
    tree = {name: one.value for name, one in held.tensors.items()}
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "theirs", tree, custom_metadata=describe(tree))
    found["large"] = large(folder, rank)
    found["used"] = used(folder, mesh)
    found["adapted"] = adapted(folder, mesh)
    try:
        engine(replace(mesh, processes=4)).load(models.checkpoint("llama"))
    except PlanError as why:
        found["refused"] = str(why)
    elsewhere_too = toys.mesh("multihost", host=2, fsdp=2)
    turned = replace(elsewhere_too, axes={"fsdp": 2, "host": 2}, processes=2)
    where = engine(turned).load(models.checkpoint("llama")).runtime.spread.devices
    found["hosts"] = [[device.process_index for device in row] for row in where.devices.tolist()]
    (folder / f"{rank}.json").write_text(json.dumps(found))
    return found


def export(given: Checkpoint, target: Path, name: str, rank: int, chunk_nbytes: int = 1 << 16) -> list[int]:
    """Bytes of each of this process's chunks; the first process prepares and finishes."""
    work = toys.export(given, target, *EXPORTS[name], chunk_nbytes=chunk_nbytes)
    if rank == 0:
        work.begin(fresh=True)
    sync_global_devices(f"{target} begun")
    mine = [chunk for chunk in work.chunks if chunk.process == rank]
    records = {str(chunk): {"digest": work.do(chunk)} for chunk in mine}
    (target.parent / f"{target.name}.{rank}").write_text(json.dumps(records))
    sync_global_devices(f"{target} written")
    if rank == 0:
        each = [json.loads((target.parent / f"{target.name}.{r}").read_text()) for r in (0, 1)]
        all_of = {k: v for records in each for k, v in records.items()}
        work.finish([all_of[str(chunk)] for chunk in work.chunks])
    sync_global_devices(f"{target} finished")
    return [chunk.nbytes_out for chunk in mine]


def write_large(folder: Path) -> Path:
    """A checkpoint of zeros, which takes no room on the disk."""
    folder.mkdir()
    specs = {p.names[0]: TensorSpec(p.shape, "BF16") for p in toys.parameters_of(LARGE)}
    layout = SafeTensors().layout(HuggingFaceDialect().encode(specs, LARGE).leaves, {"format": "pt"}, None)
    SafeTensors().begin(folder, layout)
    (folder / "config.json").write_text(json.dumps(LARGE))
    return folder


def resident() -> int:
    """Bytes of memory that this process has now."""
    return int(psutil.Process().memory_info().rss)


def large(folder: Path, rank: int) -> dict[str, int]:
    """Bytes of memory that loading a large checkpoint takes, and exporting it, beside what lies on the devices."""
    given, mesh = model_runs.checkpoint(folder / "large"), divided("fsdp", fsdp=4)
    toys.layouts_of(mesh, given)
    peak.begin()
    before = resident()
    model = toys.load(given, mesh)
    arrays = [p.get_value() for p in toys.parameters(model)]
    jax.block_until_ready(arrays)
    live = sum(shard.data.nbytes for a in arrays for shard in a.addressable_shards)
    found = {"live": live, "loading": peak.nbytes() - before - live}
    held = replace(given, store=on_devices(model, given.store.specs), stored={})
    for name in EXPORTS:
        peak.begin()
        before = resident()
        written = export(held, folder / f"large-{name}", name, rank, 8 << 20)
        found |= {name: peak.nbytes() - before, f"{name} written": sum(written)}
    return found
