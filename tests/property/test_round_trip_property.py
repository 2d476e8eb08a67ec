"""Round trips are the identity: quantized tensors through every dialect and container that can hold them, and on.

On disk and read as a run would read it. Shapes, blocks, schemes, shards and the way through the formats are drawn.
"""

import json
import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipeline.config.resolve import Resolver
from pipeline.formats import Container, Dialect
from pipeline.stage import Checkpoint, Context
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.testing.memory import same, spec_of
from plugins.formats.bitsandbytes.dialect import BitsAndBytes
from plugins.formats.compressed_tensors.dialect import CompressedTensors
from plugins.formats.gguf.file import GgufContainer as GgufFile
from plugins.formats.gguf.model import GgufDialect
from plugins.formats.gguf.types import SCHEMES
from plugins.formats.gpt_oss.dialect import GptOss, Original
from plugins.formats.modelopt.dialect import ModelOpt
from plugins.formats.npy.container import Npy
from plugins.formats.orbax.container import Orbax
from plugins.formats.orbax.pytree import Pytree
from plugins.formats.safetensors.container import SafeTensors
from plugins.formats.safetensors.plain import Plain
from stages.load import Load
from tests.cases import toy_gpt_oss, toy_llama
from tests.cases.quantized import leaves_of, quantized
from tests.property.test_codec_property import methods
from tests.unit.formats import test_compressed_tensors

BF16 = ml_dtypes.bfloat16
LOADER = Path(__file__).parents[2] / "conf" / "stages" / "load.yaml"


@dataclass(frozen=True)
class Form:
    """A dialect in a container; whether it keeps the dtype of plain tensors."""

    dialect: Dialect
    container: Container
    widens: bool = False


FORMS = {
    "hf": Form(GptOss(), SafeTensors()),
    "original": Form(Original(), SafeTensors()),
    "compressed-tensors": Form(CompressedTensors(), SafeTensors()),
    "gguf": Form(GgufDialect(), GgufFile(), widens=True),
    "orbax": Form(Pytree(), Orbax(chunk_nbytes=1 << 12)),
    "bitsandbytes": Form(BitsAndBytes(), SafeTensors()),
    "modelopt": Form(ModelOpt(), SafeTensors()),
    "plain": Form(Plain(), SafeTensors()),
    "numpy": Form(Plain(), Npy()),
}


def loader(source: Path) -> Load:
    """Load with the containers and dialects of conf/."""
    node = yaml.safe_load(LOADER.read_text())
    resolver = Resolver()
    own = {k: v for k, v in node.items() if not str(v).startswith("${")}
    load = resolver.build({**own, "source": str(source), "remotes": []}, "stages.load")
    assert not resolver.problems
    return load


def written(folder: Path, form: Form, tensors: dict[str, Any], config: dict[str, Any], shard: int | None) -> None:
    """What an export writes, in one piece a leaf."""
    binding = form.dialect.encode({n: spec_of(v) for n, v in tensors.items()}, config)
    layout = form.container.layout(binding.leaves, {"format": "pt", **binding.metadata}, shard)
    folder.mkdir()
    form.container.begin(folder, layout)
    for leaf, array in leaves_of(binding, tensors).items():
        form.container.write(folder, layout, leaf, (), array)
    (folder / "config.json").write_text(json.dumps(binding.config))
    for name, content in {**layout.extra, **binding.files}.items():
        (folder / name).write_bytes(content)


def through(folder: Path, form: Form, tensors: dict[str, Any], config: dict[str, Any], shard: int | None) -> Checkpoint:
    """The checkpoint that is found in what was written: the same tensors, bit for bit."""
    written(folder, form, tensors, config, shard)
    found = loader(folder).run(Context(folder))
    assert set(found.store.specs) == set(tensors)
    for name, value in tensors.items():
        got = found.store.read(name)
        if form.widens and not isinstance(value, QTensor):
            assert np.array_equal(got.astype(np.float32), value.astype(np.float32)), name
            got = got.astype(value.dtype)
        if form.widens and isinstance(value, QTensor):  # its dtype is F32 wherever a file does not say it
            assert all(same(got.component(c), a) for c, a in value.components.items()), name
            continue
        assert same(got, value), name
    return found


def gpt_oss(
    experts: int, hidden: int, inter: int, seed: int, packed: bool = True
) -> tuple[dict[str, Any], dict[str, Any]]:
    """One layer of gpt-oss with these sizes, experts in MXFP4 or plain, and its config."""
    rng = np.random.default_rng(seed)
    toy = toy_gpt_oss
    config = toy.make("hf").config
    config = {**config, "hidden_size": hidden, "intermediate_size": inter, "num_local_experts": experts}
    config |= {"num_hidden_layers": 1, "layer_types": config["layer_types"][:1]}

    def plain(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(BF16)

    def matrix(rows: int, columns: int) -> Any:
        shape = (experts, rows, columns)
        return quantized(MXFP4, shape, int(rng.integers(1 << 20))) if packed else plain(*shape)

    sizes = {toy.HIDDEN: hidden, toy.INTER: inter, 2 * toy.INTER: 2 * inter, toy.EXPERTS: experts}
    tensors = {}
    for name, value in toy.make("hf").logical.items():
        if ".layers." in name and ".layers.0." not in name:
            continue
        shape = tuple(sizes.get(n, n) for n in value.shape)
        tensors[name] = matrix(*shape[1:]) if len(shape) == 3 else plain(*shape)
    return tensors, config


@settings(max_examples=7)
@given(
    st.permutations(["hf", "original", "compressed-tensors", "gguf", "orbax"]),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(0, 1 << 20),
    st.sampled_from([None, 4000, 20000]),
)
def test_gpt_oss_goes_from_dialect_to_dialect(
    way: list[str], experts: int, hidden: int, inter: int, seed: int, shard: int | None
) -> None:
    """MXFP4 → gpt-oss ↔ original ↔ compressed-tensors ↔ GGUF ↔ Orbax, in any order: no bit changes on the way."""
    tensors, config = gpt_oss(experts, 32 * hidden, 32 * inter, seed)
    first = dict(tensors)
    with tempfile.TemporaryDirectory() as folder:
        for i, name in enumerate(way):
            found = through(Path(folder) / str(i), FORMS[name], tensors, dict(config), shard)
            config = dict(found.config)
            tensors = {n: found.store.read(n) for n in found.store.specs}
    for name, value in first.items():
        got = tensors[name]
        if isinstance(value, QTensor):
            assert all(same(got.component(c), a) for c, a in value.components.items()), name
        else:
            assert same(got.astype(BF16), value), name


def holders() -> dict[str, tuple[str, Scheme]]:
    """Which form holds which schemes."""
    known = test_compressed_tensors.CASES.items()
    found = {f"compressed-tensors {n}": ("compressed-tensors", s) for n, (d, s, _) in known if d == CompressedTensors()}
    found |= {f"gguf {n}": ("gguf", s) for n, s in SCHEMES.items()}
    found["modelopt"] = ("modelopt", Scheme("e2m1", 16, "e4m3", second="f32"))
    for n in (64, 128):
        found[f"bitsandbytes {n}"] = ("bitsandbytes", Scheme("nf4", n, "f32"))
    found["bitsandbytes twice"] = ("bitsandbytes", Scheme("nf4", 64, "dynamic8", second="dynamic8"))
    return found


HOLDERS = holders()


@settings(max_examples=30)
@given(
    st.sampled_from(sorted(HOLDERS)),
    st.sampled_from([8, 16, 24, 32, 64]),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 1 << 20),
    st.sampled_from([None, 5000]),
)
def test_llama_through_whatever_holds_the_scheme(
    case: str, block: int, hidden: int, inter: int, seed: int, shard: int | None
) -> None:
    """Attention and MLP quantized, all else plain; a width of its own for each dimension."""
    form, scheme = HOLDERS[case]
    if form == "compressed-tensors" and scheme.block_elems and scheme.scale in ("bf16", "f16", "f32"):
        scheme = Scheme(scheme.element, block, scheme.scale, scheme.block_rows, scheme.zero, scheme.second)
    unit = max(scheme.block_elems or 8, 8)
    if scheme == SCHEMES["NVFP4"] and form == "gguf":
        unit = 64
    heads = toy_llama.HEADS * toy_llama.HEAD_DIM
    wide = {toy_llama.HIDDEN: 2 * unit * hidden, toy_llama.INTER: 2 * unit * (hidden + inter)}
    assume(heads % unit == 0 or form == "bitsandbytes")
    config = {**toy_llama.CONFIG, "hidden_size": wide[toy_llama.HIDDEN], "intermediate_size": wide[toy_llama.INTER]}
    config |= {"num_hidden_layers": 1}
    rng = np.random.default_rng(seed)
    tensors: dict[str, Any] = {}
    for name, value in toy_llama.weights().items():
        if ".layers." in name and ".layers.0." not in name:
            continue
        shape = tuple(wide.get(n, n) for n in value.shape)
        fits = "_proj" in name and scheme.problem(shape) is None
        tensors[name] = quantized(scheme, shape, int(rng.integers(1 << 20))) if fits else (
            rng.standard_normal(shape).astype(value.dtype)
        )  # fmt: skip
    assert sum(isinstance(v, QTensor) for v in tensors.values()) >= 4
    with tempfile.TemporaryDirectory() as folder:
        through(Path(folder) / "model", FORMS[form], tensors, config, shard)


@settings(max_examples=20)
@given(
    methods(), st.lists(st.integers(1, 3), max_size=2), st.integers(1, 9), st.integers(1, 3), st.integers(0, 1 << 20)
)
def test_any_scheme_through_orbax(method: Any, lead: list[int], rows: int, blocks: int, seed: int) -> None:
    scheme = method.scheme
    fills = math.lcm(scheme.block_elems or 1, 8 // math.gcd(8, scheme.element_bits))  # whole blocks and whole bytes
    shape = (*lead, rows, blocks * fills)
    tensors = {"w": quantized(scheme, shape, seed), "norm": np.arange(7, dtype=np.float32)}
    with tempfile.TemporaryDirectory() as folder:
        through(Path(folder) / "model", FORMS["orbax"], tensors, {"model_type": "any"}, None)


@settings(max_examples=10)
@given(
    st.sampled_from(["plain", "numpy", "orbax"]),
    st.lists(st.lists(st.integers(0, 5), max_size=4).map(tuple), min_size=1, max_size=5),
    st.sampled_from([BF16, np.float16, np.float32]),
    st.sampled_from([None, 300]),
)
def test_plain_arrays(form: str, shapes: list[tuple[int, ...]], dtype: Any, shard: int | None) -> None:
    tensors = {f"t.{i}": np.full(s, i + 0.5, dtype) for i, s in enumerate(shapes)}
    with tempfile.TemporaryDirectory() as folder:
        through(Path(folder) / "model", FORMS[form], tensors, {"model_type": "any"}, shard)
