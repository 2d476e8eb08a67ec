"""What a mesh holds is written as if it came from files: byte for byte, in every container, a chunk at a time."""

import math
import pickle
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from pipeline.formats import Container, Dialect
from pipeline.stage import Checkpoint
from pipeline.tensors.blocks import read_nbytes_of
from pipeline.tensors.views import JoinedStore
from pipeline.testing.memory import same
from plugins.engine.load import on_devices
from plugins.formats.compressed_tensors.dialect import CompressedTensors
from plugins.formats.gguf.file import GgufContainer
from plugins.formats.gguf.model import GgufDialect
from plugins.formats.gpt_oss.dialect import GptOss
from plugins.formats.orbax.container import Orbax
from plugins.formats.orbax.pytree import Pytree
from plugins.formats.orbax.tree import abstract, describe
from plugins.formats.safetensors.container import SafeTensors
from plugins.formats.safetensors.hugging_face import HuggingFaceDialect
from plugins.mesh import store
from plugins.mesh.store import DeviceStore, Held, held_spec
from tests.cases import model_runs
from tests.sharding import models, toys
from tests.sharding.test_load import MESHES, checkpoint, folder

CASES: dict[str, tuple[str, str, str, Dialect, Container]] = {
    "safetensors": ("qwen3_moe", "none", "", HuggingFaceDialect(), SafeTensors()),
    "gpt-oss": ("gpt_oss", "mxfp4", "*experts.*_proj", GptOss(), SafeTensors()),
    "compressed tensors": ("llama", "fp8_e4m3", "*layers.*_proj.weight", CompressedTensors(), SafeTensors()),
    "gguf": ("llama", "q8_0", "*_proj.weight", GgufDialect(), GgufContainer()),
    "gguf of experts": ("qwen3_moe", "q4_0", "*.experts.*", GgufDialect(), GgufContainer()),
}


def write(
    given: Checkpoint, target: Path, dialect: Dialect, container: Container, dtype: Any = "keep"
) -> dict[str, bytes]:
    """What the files hold but for the marker, which names the run."""
    work = toys.export(given, target, dialect, container, dtype)
    work.begin(fresh=True)
    records = [{"digest": work.do(chunk)} for chunk in work.chunks]
    work.finish(records)
    found = (p for p in target.rglob("*") if p.is_file() and not p.name.startswith("."))
    return {p.relative_to(target).as_posix(): p.read_bytes() for p in found}


def on_mesh(given: Checkpoint, name: str) -> Checkpoint:
    """What a mesh holds of it."""
    return replace(given, store=on_devices(toys.load(given, MESHES[name]), given.store.specs), stored={})


@pytest.mark.parametrize("name", CASES)
def test_files_are_the_same_as_without_a_mesh(name: str, tmp_path: Path) -> None:
    kind, quant, pattern, dialect, container = CASES[name]
    rules = f"[{{match: '{pattern}', to: quant}}]" if pattern else model_runs.KEEP
    given = model_runs.checkpoint(folder(kind), quant=quant, rules=rules)
    want = write(given, tmp_path / "files", dialect, container)
    got = write(on_mesh(given, "fsdp_tensor"), tmp_path / "mesh", dialect, container)
    assert list(got) == list(want)
    assert all(got[file] == want[file] for file in want)


@pytest.mark.parametrize("kind", ["qwen3_moe", "gpt_oss"])
@pytest.mark.brief("gpt_oss")
def test_orbax_in_every_scheme_and_on_other_meshes(kind: str, tmp_path: Path) -> None:
    """Written from one mesh by us; restored by Orbax, and read by us, on others."""
    given = checkpoint(kind, 1)
    want = write(given, tmp_path / "files", Pytree(), Orbax())
    got = write(on_mesh(given, "fsdp_tensor"), tmp_path / "mesh", Pytree(), Orbax())
    assert got == want
    restored = ocp.StandardCheckpointer().restore(tmp_path / "mesh", abstract(tmp_path / "mesh", lies))
    back = of_tree(restored)
    for name, held in back.tensors.items():
        assert all(a.sharding == lies(name, a.shape) for a in held.components.values())
        assert same(back.read(name), given.store.read(name)), name


def lies(name: str, shape: tuple[int, ...]) -> NamedSharding:
    """Some way to lie over four devices: along the last dimension that they divide."""
    dim = next((d for d in reversed(range(len(shape))) if shape[d] % 4 == 0), None)
    devices = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("x",))
    return NamedSharding(devices, PartitionSpec(*("x" if d == dim else None for d in range(len(shape)))))


def tensors_of(store: DeviceStore) -> dict[str, Any]:
    """A flat tree of what a model holds, as a JAX program has it."""
    assert all(held.at is None for held in store.tensors.values())
    return {name: held.value for name, held in store.tensors.items()}


def of_tree(tree: Mapping[str, Any]) -> DeviceStore:
    """The other way round."""
    return DeviceStore({name: Held(held_spec(value), value) for name, value in tree.items()})


def test_orbax_saves_what_a_mesh_holds_and_we_read_it_on_another(tmp_path: Path) -> None:
    given = checkpoint("gpt_oss", 1)
    model = toys.load(given, MESHES["expert"])
    tree = tensors_of(on_devices(model))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "theirs", tree, custom_metadata=describe(tree))
    opened = Orbax().open(tmp_path / "theirs")
    binding = Pytree().decode(opened.specs, opened.config())
    again = replace(given, store=JoinedStore(opened, binding))
    experts = "model.layers.0.mlp.experts.gate_up_proj.codes"
    one = tuple(n if d else 1 for d, n in enumerate(opened.specs[experts].shape))  # a chunk for each device
    part = (slice(1, 2), slice(0, one[1] // 2), slice(0, one[2]))
    assert read_nbytes_of(opened, experts, [part, part]) == 2 * math.prod(one)
    assert dict(again.store.specs) == {n: replace(s, dtype="BF16") for n, s in given.store.specs.items()}
    for name in ("tensor", "fsdp_tensor"):
        for param, arrays in toys.held(toys.load(again, MESHES[name])).items():
            assert all(map(same, arrays, toys.held(model)[param])), param
    restored = ocp.StandardCheckpointer().restore(tmp_path / "theirs", abstract(tmp_path / "theirs", lies))
    assert restored.keys() == tree.keys()
    back, kept = of_tree(restored), of_tree(tree)
    assert all(same(back.read(name), kept.read(name)) for name in tree)


def test_a_model_gives_back_the_checkpoint_that_it_was_loaded_from() -> None:
    given = models.checkpoint("qwen3_moe")
    held = models.model("qwen3_moe", models.MESHES["expert_tensor"]).held
    assert dict(held.store.specs) == dict(given.store.specs)
    assert list(held.store.specs) == list(given.store.specs)
    name = "model.layers.0.mlp.experts.7.down_proj.weight"
    assert all(same(held.store.read(n), given.store.read(n)) for n in given.store.specs)
    box = (slice(3, 40), slice(60, 70))
    assert same(held.store.read(name, box), given.store.read(name, box))
    with pytest.raises(KeyError, match=r"no tensor .*dwn_proj\.weight"):
        held.store.read(name.replace("down", "dwn"))
    with pytest.raises(TypeError, match="does not travel"):
        pickle.dumps(held.store)


def test_devices_with_memory_of_their_own_give_no_more_than_the_box() -> None:
    data = jax.device_put(np.arange(60, dtype=np.int16).reshape(6, 10), jax.devices()[1])
    box = (slice(2, 5), slice(1, 4))
    assert same(store._sliced(data, box), np.asarray(data)[box].copy())
