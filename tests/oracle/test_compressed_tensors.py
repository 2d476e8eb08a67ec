"""What the compressed-tensors dialect writes, as the library itself and transformers read it."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme
from plugins.formats.compressed_tensors.dialect import CompressedTensors
from plugins.formats.compressed_tensors.schemes import NVFP4
from tests.cases.quantized import leaves_of, quant_method, quantized, write_folder
from tests.oracles.blocks_by_hand import E2M1, codes, dequantize
from tests.unit.formats.test_compressed_tensors import CASES, CONFIG, model, specs_of

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(find_spec("compressed_tensors") is None, reason="compressed-tensors is not installed"),
]
torch = pytest.importorskip("torch")
NAME = "model.layers.0.mlp.up_proj"
BF16 = ml_dtypes.bfloat16
EXOTIC = (torch.bfloat16, torch.float8_e4m3fn)


def to_torch(array: np.ndarray) -> Any:
    kinds = {"bfloat16": (np.int16, torch.bfloat16), "float8_e4m3fn": (np.int8, torch.float8_e4m3fn)}
    array = np.array(array)
    if array.dtype.name not in kinds:
        return torch.from_numpy(array)
    carrier, dtype = kinds[array.dtype.name]
    return torch.from_numpy(array.view(carrier)).view(dtype)


def library(dialect: CompressedTensors, q: QTensor) -> tuple[Any, Any, dict[str, Any]]:
    """The library's compressor and scheme for what we write of `q`, and our leaves by parameter name."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig

    tensors = {f"{NAME}.weight": q}
    binding = dialect.encode(specs_of(tensors), CONFIG)
    config = QuantizationConfig.model_validate(binding.config["quantization_config"])
    leaves = {n.removeprefix(f"{NAME}."): to_torch(a) for n, a in leaves_of(binding, tensors).items()}
    scheme = config.config_groups["group_0"]
    return BaseCompressor.get_value_from_registry(config.format), scheme, leaves


def expected(q: QTensor, rounded_to: Any) -> Any:
    """Values with the one rounding that the library makes, in the scale's dtype; for NVFP4 three."""
    if q.scheme != NVFP4:
        return dequantize(q).astype(rounded_to).astype(np.float32)
    scale = np.repeat(q.scales.astype(np.float32) / q.second, 16, axis=-1)
    found = codes(q)
    values = np.array(E2M1, np.float32)[found & 7] * np.where(found & 8, -1, 1).astype(np.float32)
    return (values * scale).astype(rounded_to).astype(np.float32)


@pytest.mark.parametrize("case", CASES)
def test_the_library_decompresses_our_leaves(case: str) -> None:
    dialect, scheme, _ = CASES[case]
    q = quantized(scheme, (40, 96))
    compressor, its_scheme, leaves = library(dialect, q)
    assert set(leaves) == set(compressor.compression_param_names(its_scheme))
    weight = compressor.decompress(leaves, its_scheme)["weight"]
    wide = {"f32": np.float32, "f16": np.float16}.get(scheme.scale, BF16)
    want = expected(q, wide)
    assert np.array_equal(weight.float().numpy().view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("case", [c for c in CASES if "mx" not in c])
def test_the_library_compresses_to_our_leaves(case: str) -> None:
    """Quantized again with our scales, the decoded weight gives our bytes; −0 aside."""
    dialect, scheme, _ = CASES[case]
    q = quantized(scheme, (40, 96))
    if scheme.element == "e2m1":
        for nibble in (0x0F, 0xF0):
            q.codes[q.codes & nibble == 0x88 & nibble] &= 0xFF ^ nibble
    compressor, its_scheme, leaves = library(dialect, q)
    state: dict[str, Any] = {"weight": torch.from_numpy(dequantize(q).astype(np.float32))}
    scales = to_torch(q.scales.reshape(-1) if (scheme.block_rows, scheme.block_elems) == (0, 0) else q.scales)
    state["weight_scale"] = scales.float()
    if scheme.second is not None:
        state["weight_global_scale"] = torch.from_numpy(q.second.reshape(1))
    if scheme.zero is not None:
        zeros = q.zeros.astype(np.int16) - (1 << scheme.element_bits - 1)
        state["weight_zero_point"] = torch.from_numpy(zeros.astype(np.int8))
    found = compressor.compress(state, its_scheme)
    if scheme.scale in ("bf16", "f16"):
        found["weight_scale"] = found["weight_scale"].to(leaves["weight_scale"].dtype)
    assert found.keys() == leaves.keys()
    for name, ours in leaves.items():
        theirs = found[name]
        assert theirs.dtype == ours.dtype, name
        assert theirs.shape == ours.shape, name
        exact = theirs.float() if theirs.dtype in EXOTIC else theirs
        assert exact.numpy().tobytes() == (ours.float() if ours.dtype in EXOTIC else ours).numpy().tobytes(), name


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("columns", [8, 16, 40, 72, 96])
def test_words_are_those_of_pack_to_int32(bits: int, columns: int) -> None:
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    for signed in (True, False):
        scheme = Scheme(f"int{bits}" if signed else f"uint{bits}", 8, "bf16", zero=None if signed else "int")
        q = quantized(scheme, (27, columns), seed=bits)
        half = 1 << bits - 1
        found = codes(q)
        values = np.where(found >= half, found - 2 * half, found) if signed else found - half
        leaves = library(CompressedTensors(), q)[2]
        packed = pack_to_int32(torch.from_numpy(values.astype(np.int8)), bits)
        assert torch.equal(packed, leaves["weight_packed"])
        if not signed:
            zeros = torch.from_numpy((q.zeros.astype(np.int16) - half).astype(np.int8))
            assert torch.equal(pack_to_int32(zeros, bits, packed_dim=0), leaves["weight_zero_point"])


@pytest.mark.parametrize("name", ["int8", "fp8_e4m3", "mxfp8_e4m3", "mxfp4"])
def test_arguments_of_activations_are_what_the_library_serializes(name: str) -> None:
    from compressed_tensors.quantization import QuantizationConfig

    method = quant_method(name)
    config = CompressedTensors(activations=method).encode(specs_of(model(method.scheme)), CONFIG).config
    [group] = QuantizationConfig.model_validate(config["quantization_config"]).config_groups.values()
    dumped = group.input_activations.model_dump(mode="json")
    [written] = config["quantization_config"]["config_groups"].values()
    assert {k: v for k, v in dumped.items() if k in written["input_activations"]} == written["input_activations"]
    assert dumped["dynamic"] is True


@pytest.mark.parametrize("case", [*CASES, "mixed"])
def test_config_is_what_the_library_serializes(case: str) -> None:
    from compressed_tensors.quantization import QuantizationConfig

    if case == "mixed":
        tensors: dict[str, Any] = {
            f"a.{i}.weight": quantized(s, (40, 96)) for i, (d, s, _) in enumerate(CASES.values())
        }
        dialect = CompressedTensors()
    else:
        dialect, scheme, _ = CASES[case]
        tensors = model(scheme)
    config = dialect.encode(specs_of(tensors), CONFIG).config["quantization_config"]
    parsed = QuantizationConfig.model_validate(config)
    dumped = parsed.model_dump(mode="json")
    for group in dumped["config_groups"].values():
        assert group["weights"].pop("observer", None) in (None, "memoryless_minmax", "minmax")
    assert dumped == config


HIDDEN, INTER, HEADS, KV, DIM, LAYERS, VOCAB = 128, 192, 4, 2, 24, 3, 101


@pytest.fixture(scope="module")
def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=INTER, num_attention_heads=HEADS, num_key_value_heads=KV, head_dim=DIM,
        num_hidden_layers=LAYERS, vocab_size=VOCAB, max_position_embeddings=64, tie_word_embeddings=False,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def rounded(values: np.ndarray, scheme: Scheme) -> QTensor:
    """Round to nearest, one block at a time: no more than is needed to have a model that runs."""
    q = quantized(scheme, values.shape)
    rows, columns = values.shape
    top = {"e2m1": 6.0, "e2m3": 7.5, "e4m3": 448.0}.get(scheme.element) or 2.0 ** (scheme.element_bits - 1) - 1
    height, width = scheme.block_rows or rows, scheme.block_elems or columns
    stored = np.zeros(values.shape)
    for r, c in np.ndindex(*q.scales.shape):
        block = np.s_[r * height : (r + 1) * height, c * width : (c + 1) * width]
        amax = float(np.abs(values[block]).max())
        if scheme.scale == "e8m0":
            exponent = int(np.ceil(np.log2(amax / top)))
            q.scales[r, c], step = exponent + 127, 2.0**exponent
        else:
            q.second is not None and q.second.fill(64.0)
            outer = 64.0 if q.second is not None else 1.0
            q.scales[r, c] = amax / top * outer
            step = float(q.scales[r, c]) / outer
        if q.zeros is not None:
            q.zeros[r, c] = 1 << scheme.element_bits - 1
        stored[block] = values[block] / step
    q.codes[...] = encode(np.clip(stored, -top, top), scheme)
    return q


def encode(values: np.ndarray, scheme: Scheme) -> np.ndarray:
    """Codes of values in units of their scale."""
    bits = scheme.element_bits
    if scheme.element == "e4m3":
        return values.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    if scheme.element == "e2m3":
        found = values.astype(ml_dtypes.float6_e2m3fn).view(np.uint8)
    elif scheme.element == "e2m1":
        found = np.abs(np.abs(values)[..., None] - np.array(E2M1)).argmin(-1) | np.where(values < 0, 8, 0)
    else:
        whole = np.rint(values).astype(int)
        found = (whole + (1 << bits - 1) if scheme.zero else whole) & ((1 << bits) - 1)
    stream = (found[..., None] >> np.arange(bits) & 1).astype(np.uint8).reshape(len(found), -1)
    return np.packbits(stream, axis=-1, bitorder="little")


def loads() -> list[Any]:
    """Every case, kept packed and decoded on loading."""
    why = "compressed-tensors 0.20 compresses meta modules without packing their zero points, so that none fit"
    found: list[Any] = []
    for case, (_, scheme, fmt) in CASES.items():
        broken = (pytest.mark.xfail(reason=why, strict=True),) if fmt == "pack-quantized" and scheme.zero else ()
        found += [pytest.param(case, False, marks=broken), (case, True)]
    return found


@pytest.mark.parametrize(("case", "dequantize_on_load"), loads())
@pytest.mark.brief(each=("case",))
def test_transformers_loads_and_runs(case: str, dequantize_on_load: bool, llama: Any, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM
    from transformers.utils.quantization_config import CompressedTensorsConfig

    dialect, scheme, _ = CASES[case]
    dtype = {"f32": torch.float32, "f16": torch.float16}.get(scheme.scale, torch.bfloat16)
    plain = {torch.float32: np.float32, torch.float16: np.float16}.get(dtype, BF16)
    tensors: dict[str, Any] = {}
    for name, value in llama.state_dict().items():
        array = value.numpy()
        linear = name.endswith("_proj.weight") and not ("layers.1" in name and "v_proj" in name)
        tensors[name] = rounded(array, scheme) if linear else array.astype(plain)
    config = {**llama.config.to_dict(), "dtype": str(dtype).removeprefix("torch.")}
    write_folder(tmp_path, dialect, tensors, config)
    how = {"quantization_config": CompressedTensorsConfig(dequantize=True)} if dequantize_on_load else {}
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype, output_loading_info=True, **how)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    with torch.no_grad():
        logits = loaded(torch.tensor([[5, 100, 0, 17, 3, 42]])).logits.float()
    modules = dict(loaded.named_modules())
    wide = {"f32": np.float32, "f16": np.float16}.get(scheme.scale, BF16)
    for name, value in tensors.items():
        want = expected(value, wide) if isinstance(value, QTensor) else value.astype(np.float32)
        got = modules[name.removesuffix(".weight")].weight.detach().float().numpy()
        assert np.array_equal(got.view(np.uint32), want.view(np.uint32)), name
    reference = AutoModelForCausalLM.from_config(llama.config, dtype=dtype)
    state = {n: expected(v, wide) if isinstance(v, QTensor) else v.astype(np.float32) for n, v in tensors.items()}
    reference.load_state_dict({n: torch.from_numpy(a).to(dtype) for n, a in state.items()})
    with torch.no_grad():
        want_logits = reference(torch.tensor([[5, 100, 0, 17, 3, 42]])).logits.float()
    assert torch.equal(logits, want_logits)
    assert torch.isfinite(logits).all()
