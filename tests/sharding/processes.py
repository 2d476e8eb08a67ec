"""One of two processes with two devices each: `python -m tests.sharding.processes RANK PORT FOLDER`.

Loads a toy over all four devices, and writes its part of every export; the first process prepares and finishes them.
What is found goes to FOLDER/RANK.json.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from jax.experimental.multihost_utils import sync_global_devices

from pipeline.errors import StageError
from pipeline.planning.reading import bytes_read
from pipeline.stage import Checkpoint
from plugins.engine.load import device_nbytes, on_devices
from plugins.formats.gguf.file import GgufContainer
from plugins.formats.gguf.model import GgufDialect
from plugins.formats.orbax.container import Orbax
from plugins.formats.orbax.pytree import Pytree
from plugins.formats.orbax.tree import describe
from plugins.formats.safetensors.container import SafeTensors
from plugins.formats.safetensors.plain import Plain
from tests.cases import model_runs
from tests.sharding import toys

MESH = "fsdp_tensor"
EXPORTS: dict[str, tuple[Any, ...]] = {
    "orbax": (Pytree(), Orbax()),
    "gguf": (GgufDialect(), GgufContainer()),
    "safetensors": (Plain(), SafeTensors(), "bf16"),
}
QUANT, RULES = "q8_0", "[{match: '*_proj.weight', to: quant}]"


def main(rank: int, port: int, folder: Path) -> None:
    address = f"127.0.0.1:{port}"
    jax.distributed.initialize(address, 2, rank, coordinator_bind_address=address if rank == 0 else None)
    mesh = toys.mesh(MESH)
    given = model_runs.checkpoint(folder / "toy", quant=QUANT, rules=RULES)
    store, read = toys.counted(given.store)
    model = toys.load(replace(given, store=store), mesh)
    mine = [n for n, device in enumerate(jax.devices()) if device.process_index == rank]
    layouts = toys.layouts_of(mesh, given)
    found: dict[str, Any] = {
        "read": sum(read.values()),
        "planned": bytes_read(given.store, mesh, toys.parameters_of(given.config), layouts, [mine])[0],
        "device_nbytes": device_nbytes(model),
    }
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
    (folder / f"{rank}.json").write_text(json.dumps(found))


def export(given: Checkpoint, target: Path, name: str, rank: int) -> list[int]:
    """Bytes of each of this process's chunks."""
    work = toys.export(given, target, *EXPORTS[name])
    if rank == 0:
        work.begin(fresh=True)
    sync_global_devices(f"{name} begun")
    mine = [chunk for chunk in work.chunks if chunk.process == rank]
    records = {str(chunk): {"digest": work.do(chunk)} for chunk in mine}
    (target.parent / f"{name}.{rank}").write_text(json.dumps(records))
    sync_global_devices(f"{name} written")
    if rank == 0:
        all_of = {k: v for r in (0, 1) for k, v in json.loads((target.parent / f"{name}.{r}").read_text()).items()}
        work.finish([all_of[str(chunk)] for chunk in work.chunks])
    return [chunk.nbytes_out for chunk in mine]


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
