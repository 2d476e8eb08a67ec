"""Models on packed weights: every quant option in every kind of layer computes what its decoded weights compute, and
the bytes on the device are the bytes of the checkpoint."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.ops import Kernel
from pipeline.stage import Checkpoint
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.store import TensorStore
from pipeline.testing.memory import MemoryStore
from plugins.engine.load import parameters
from plugins.models.device import device_spec
from tests.cases import model_runs, toy_gpt_oss
from tests.cases.toy_models import KINDS, LAYERS, toy
from tests.oracle.test_model_parity import apart, straight

DEQUANTIZE = Kernel("dequantize", ("numpy",))

OPTIONS = model_runs.QUANTIZING
TINY = Path(model_runs.__file__).parents[2] / "plugins/models/gpt_oss/tiny"
# Of a layer; all experts of a layer take the same option.
MATRICES = {
    "smollm2": [f"self_attn.{x}_proj.weight" for x in "qkvo"]
    + [f"mlp.{x}_proj.weight" for x in ("gate", "up", "down")],
    "gpt-oss": [f"self_attn.{x}_proj.weight" for x in "qkvo"] + [f"mlp.experts.{x}_proj" for x in ("gate_up", "down")],
    "qwen3-moe": [f"self_attn.{x}_proj.weight" for x in "qkvo"]
    + [f"mlp.experts.*.{x}_proj.weight" for x in ("gate", "up", "down")],
}
MATRICES["gemma3"] = MATRICES["smollm2"]
ENDS = {"smollm2": 1, "gemma3": 1, "gpt-oss": 2, "qwen3-moe": 2}  # embedding and head; or one for both


STEPS = {"smollm2": 0, "gemma3": 5, "gpt-oss": 2, "qwen3-moe": 6}  # in three turns, all options come to experts


def dealt(name: str, turn: int) -> dict[str, str]:
    """Every matrix of the toy `name` → its quant option, each time another; `turn` deals them out differently."""
    dense = KINDS[name].options.get("mlp_only_layers", [])
    patterns = ["model.embed_tokens.weight", "lm_head.weight"][: ENDS[name]]
    for i in range(LAYERS):
        here = [m.replace("experts.*.", "") if i in dense else m for m in MATRICES[name]]
        patterns += [f"model.layers.{i}.{m}" for m in here]
    return {p: OPTIONS[(i + STEPS[name] * turn) % len(OPTIONS)] for i, p in enumerate(patterns)}


def rules(name: str, turn: int) -> str:
    """The same as rules."""
    each = [f"{{match: '{pattern}', to: {option}}}" for pattern, option in dealt(name, turn).items()]
    return "[" + ", ".join([*each, "{match: '*', to: keep}"]) + "]"


def values(store: TensorStore) -> Iterator[tuple[str, Any]]:
    """Every tensor in float32, packed ones decoded."""
    for name in store.specs:
        value = store.read(name)
        yield name, (DEQUANTIZE(value, "F32") if isinstance(value, QTensor) else value.astype(np.float32))


def held(runtime: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Names and value of every parameter on the device."""
    for param in parameters(runtime._model(runtime._leaves)):
        yield param.names, param.get_value()


def assert_bytes_of(runtime: Any, store: TensorStore) -> None:
    """What lies on the device is what the store gives, bit for bit."""
    for names, value in held(runtime):
        want = [store.read(n) for n in names]
        for part in value.components if isinstance(value, QTensor) else ("",):
            got = np.asarray(value.components[part] if part else value)
            arrays = [w.components[part] if part else w for w in want]
            expected = np.stack(arrays) if len(arrays) > 1 else arrays[0]
            assert (got.shape, got.dtype) == (expected.shape, expected.dtype), names
            assert got.tobytes() == expected.tobytes(), names


def assert_planned(runtime: Any, checkpoint: Checkpoint) -> None:
    """Plan, specs and device agree to the byte."""
    specs = checkpoint.store.specs
    complete = replace(checkpoint, files={"tokenizer.json": TINY / "tokenizer.json"})  # which running asks for
    assert runtime.device_nbytes == model_runs.engine().plan(complete).device_nbytes
    assert runtime.device_nbytes == sum(device_spec(s).nbytes for s in specs.values())


@pytest.mark.oracle
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("name", "turn"),
    [("smollm2", 0), ("gemma3", 1), *(("gpt-oss", i) for i in range(3)), *(("qwen3-moe", i) for i in range(3))],
)
@pytest.mark.brief("smollm2-0", "gpt-oss-1")
def test_packed_weights_compute_what_they_decode_to(name: str, turn: int) -> None:
    t = toy(name)
    checkpoint = model_runs.checkpoint(t.folder, rules=rules(name, turn))
    packed = {s.scheme for s in checkpoint.store.specs.values() if s.scheme is not None}
    assert len(packed) >= len(OPTIONS), "int4 has narrower groups where rows are narrow"
    store = MemoryStore({n: checkpoint.store.read(n) for n in checkpoint.store.specs})
    runtime = model_runs.engine().load(replace(checkpoint, store=store)).runtime
    decoded = model_runs.engine().load(replace(checkpoint, store=MemoryStore(dict(values(store))))).runtime
    assert_bytes_of(runtime, store)
    assert_planned(runtime, checkpoint)
    assert decoded.device_nbytes > 3 * runtime.device_nbytes
    ids = t.ids[:2, :13]
    with model_runs.quick_compilation():
        got, want = (np.asarray(r.forward(ids, straight(ids))) for r in (runtime, decoded))
    assert apart(got, want) <= 1e-4 * np.abs(want).max()
    assert apart(want, t.logits[:2, :13]) > 0.1  # something was lost: they are not the original weights


@pytest.mark.parametrize("name", ["gpt-oss", "qwen3-moe"])
def test_every_option_comes_to_experts(name: str) -> None:
    assert {o for turn in range(3) for p, o in dealt(name, turn).items() if "experts" in p} == set(OPTIONS)
    assert {o for turn in range(3) for p, o in dealt(name, turn).items() if "self_attn" in p} == set(OPTIONS)


@pytest.mark.oracle
@pytest.mark.filterwarnings("default")
def test_double_quantization() -> None:
    """Scales that are coded over the whole tensor lie on the device as the float32 scales they stand for."""
    t = toy("gpt-oss")
    everything = "[{match: '*_proj*[tj]', to: quant}, {match: '*', to: keep}]"
    twice = ("quant.scale=dynamic8", "quant.second=dynamic8")
    checkpoint = model_runs.checkpoint(t.folder, *twice, quant="nf4", rules=everything)
    assert any(s.scheme is not None and s.scheme.second == "dynamic8" for s in checkpoint.store.specs.values())
    runtime = model_runs.engine().load(checkpoint).runtime
    assert_planned(runtime, checkpoint)
    decoded = model_runs.engine().load(replace(checkpoint, store=MemoryStore(dict(values(checkpoint.store))))).runtime
    ids = t.ids[:2, :13]
    with model_runs.quick_compilation():
        got, want = (np.asarray(r.forward(ids, straight(ids))) for r in (runtime, decoded))
    assert apart(got, want) <= 1e-4 * np.abs(want).max()


def mxfp4_toy(folder: Path) -> tuple[Path, Mapping[str, Any]]:
    made = toy_gpt_oss.make(experts="mxfp4")
    return toy_gpt_oss.write(folder, made), made.logical


def test_mxfp4_goes_from_the_file_to_the_device_bit_for_bit(tmp_path: Path) -> None:
    """Every byte value is among the codes; the file was written by hand."""
    folder, logical = mxfp4_toy(tmp_path)
    checkpoint = model_runs.checkpoint(folder, "stages=[load]")
    runtime = model_runs.engine().load(checkpoint).runtime
    seen = 0
    for (name,), value in held(runtime):
        if isinstance(value, QTensor):
            codes, scales = logical[name]
            assert np.asarray(value.codes).tobytes() == codes.tobytes()
            assert np.asarray(value.scales).tobytes() == scales.tobytes()
            seen += 1
        else:
            assert np.asarray(value).tobytes() == logical[name].tobytes()
    assert seen == 2 * toy_gpt_oss.LAYERS
    assert_planned(runtime, checkpoint)
    stored = sum(p.stat().st_size for p in folder.glob("*.safetensors"))
    assert 0 < stored - runtime.device_nbytes < 16384  # the header


def test_nibbles_the_other_way_round_are_caught(tmp_path: Path, thorough: bool) -> None:
    folder, _ = mxfp4_toy(tmp_path)
    checkpoint = model_runs.checkpoint(folder, "stages=[load]")
    decoded = replace(checkpoint, store=MemoryStore(dict(values(checkpoint.store))))
    engine, ids = model_runs.engine(), np.arange(26, dtype=np.int32).reshape(2, 13)

    def high_first(w: QTensor) -> QTensor:
        return replace(w, codes=w.codes >> 4 | w.codes << 4)

    class Swapped(Kernel):
        def __call__(self, *args: Any, **options: Any) -> Any:
            x, chosen, weights, w_in, b_in, w_out, b_out = args
            swapped = tuple(high_first(w) for w in w_in)
            return super().__call__(x, chosen, weights, swapped, b_in, high_first(w_out), b_out, **options)

    wrong = replace(engine, ops=replace(engine.ops, moe=Swapped("moe", ("xla",))))
    with model_runs.quick_compilation():
        right, caught, *more = (
            np.asarray(e.load(c).runtime.forward(ids, straight(ids)))
            for e, c in ((engine, checkpoint), (wrong, checkpoint), *([(engine, decoded)] if thorough else []))
        )
    for want in more:
        assert apart(right, want) <= 1e-4 * np.abs(want).max()
    assert apart(caught, right) > 0.01 * np.abs(right).max()
