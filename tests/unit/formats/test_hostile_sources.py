"""Sources that are broken on purpose: each is a SourceError (or what is said), never a crash, a hang or all memory."""

import errno
import json
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import errors, files
from pipeline.errors import ConfigError, PlanError, SourceError, WeightmillError
from pipeline.stage import Checkpoint
from pipeline.strictjson import parse_object
from pipeline.tensors.spec import TensorSpec
from plugins.formats.hub.files import Address
from plugins.formats.safetensors.container import SafeTensors
from plugins.kernels.rope.frequencies import frequencies
from plugins.tokenizers.auto import Auto
from plugins.tokenizers.load import load_tokenizer
from tests.cases import tokenizers
from tests.fuzz import config_json, gguf
from tests.fuzz.driver import put
from tests.fuzz.loading import build, config, opened, used

TINY = Path(__file__).parents[3] / "plugins/models/gpt_oss/tiny"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return shutil.copytree(TINY, tmp_path / "tiny")


def refusal(call: Callable[[], Any], kind: type[WeightmillError] = SourceError) -> str:
    with pytest.raises(kind) as why:
        call()
    return str(why.value)


def made(kind: str) -> Callable[[Path], None]:
    """Puts something else in the place of a file."""

    def change(path: Path) -> None:
        path.unlink()
        if kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "nothing":
            path.symlink_to("nowhere")
        else:
            path.symlink_to(kind)

    return change


SAID = dict.fromkeys(("folder", "pipe", "/dev/zero"), "not a regular file") | {
    "nothing": "cannot be opened: No such file"
}


@pytest.mark.parametrize("kind", ["folder", "pipe", "/dev/zero", "nothing"])
@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "model.safetensors.index.json", "tokenizer.json"]
)
def test_what_is_no_file(kind: str, name: str, tiny: Path) -> None:
    made(kind)(tiny / name)
    said = refusal(lambda: opened(tiny))
    assert SAID[kind] in said
    assert name in said


def test_a_folder_that_is_in_no_files_place(tiny: Path) -> None:
    for name in ("tokenizer", "LICENSES", "vocab_v1.5"):  # as other libraries' checkpoints have them
        (tiny / name).mkdir()
    assert not {"tokenizer", "LICENSES", "vocab_v1.5"} & {*opened(tiny).files}


def test_files_are_read_up_to_a_bound(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.truncate(tiny / "config.json", 1 << 40)  # a hole
    assert "config.json: has 1,099,511,627,776 bytes; at most" in refusal(lambda: opened(tiny))
    os.truncate(tiny / "tokenizer.json", 1 << 40)
    assert "tokenizer.json: has 1,099,511,627,776 bytes" in refusal(
        lambda: load_tokenizer({"tokenizer.json": tiny / "tokenizer.json"}, {})
    )


def test_errors_of_the_disk(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What opening, listing and reading may say at any time is said of the source."""

    def broken(*args: Any, **options: Any) -> Any:
        raise OSError(errno.EIO, "Input/output error", str(tiny))

    for name in ("open", "preadv"):
        with monkeypatch.context() as m:
            m.setattr(os, name, broken)
            assert "Input/output error" in refusal(lambda: opened(tiny))
    with monkeypatch.context() as m:
        m.setattr(Path, "iterdir", broken)
        assert "Input/output error" in refusal(lambda: opened(tiny))
    (tiny / "blob").write_bytes(b"x")
    with monkeypatch.context() as m:
        m.setattr(os, "pread", broken)
        assert f"model.source='{tiny}/blob': Input/output error" in refusal(lambda: opened(tiny / "blob"))


@pytest.mark.parametrize("source", ["x" * 300, "/" + "/".join(["d" * 200] * 21), "a\0b", "~nobody.has.this/x"])
def test_paths_that_are_none(source: str) -> None:
    said = refusal(lambda: opened(Path(source)))
    assert len(said) < 700
    assert "\0" not in said


@pytest.mark.parametrize("path", ["x" * 300, "/" + "/".join(["d" * 200] * 21), "a\0b"])
def test_options_that_are_paths(path: str) -> None:
    assert "no such folder" in refusal(lambda: Auto(vocabulary=path), ConfigError)
    assert "no such file" in refusal(
        lambda: load_tokenizer({"tokenizer.json": tokenizers.tokenizer_json("byte_level")}, {}, chat_template=path),
        ConfigError,
    )


JSON = {
    "twice": (b'{"a": 1, "b": {"c": 1, "c": 2}}', "duplicate key 'c'"),
    "nan": (b'{"a": NaN}', "NaN is not JSON"),
    "infinity in digits": (b'{"a": 1e999}', "number '1e999' is out of range"),
    "a long number": (b'{"a": ' + b"9" * 5000 + b"}", "is out of range"),
    "surrogate": (b'{"a": "\\ud800"}', "lone surrogate"),
    "a key of a surrogate": (b'{"\\uDFFF": 1}', "lone surrogate"),
    "deep": (b'{"a": ' + b"[" * 200 + b"]" * 200 + b"}", "nested too deeply: at most 64"),
    "deeper": (b'{"a": ' * 100_000, "nested too deeply"),
    "no object": (b"[1]", "expected a JSON object, got list"),
    "two": (b"{}{}", "not JSON at character 2"),
    "no text": (b'{"a": "\xff"}', "not UTF-8 at byte 7"),
}


@pytest.mark.parametrize(("raw", "said"), JSON.values(), ids=JSON)
def test_json_from_outside_has_one_meaning(raw: bytes, said: str, tiny: Path) -> None:
    assert said in refusal(lambda: parse_object(raw, "x"))
    for name in ("config.json", "model.safetensors.index.json"):
        before = (tiny / name).read_bytes()
        (tiny / name).write_bytes(raw)
        assert f"{name}: " in refusal(lambda: opened(tiny))
        (tiny / name).write_bytes(before)
    own = {"tokenizer.json": tokenizers.tokenizer_json("byte_level"), "tokenizer_config.json": raw}
    assert said in refusal(lambda: load_tokenizer(own, {}))


def test_json_that_is_fine() -> None:
    """tokenizer_config.json of half the hub, an escaped pair of surrogates, and 60 levels."""
    raw = b'{"model_max_length": 1000000000000000019884624838656, "x": "\\ud83e\\udd99", "y": %s}'
    nested = b"[" * 60 + b"]" * 60
    assert parse_object(raw % nested, "x")["x"] == "🦙"


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "rope_parameters": ({"rope_parameters": "x"}, "rope_parameters"),
    "rope_scaling": ({"rope_scaling": [1]}, "rope_scaling"),
    "rope type": ({"rope_parameters": {"rope_type": ["yarn"]}}, "rope type"),
    "no head of so many dims": ({"head_dim": 2**31 - 2}, "65536"),
    "theta": ({"rope_parameters": {"rope_type": "default", "rope_theta": 0}}, "rope_theta"),
    "context": (
        {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}, "max_position_embeddings": [1]},
        "original_max",
    ),
    "hidden": ({"hidden_size": 2**62}, "hidden_size"),
    "mlp_only_layers": ({"mlp_only_layers": 5}, "mlp_only_layers"),
}


@pytest.mark.parametrize(("change", "said"), WRONG.values(), ids=WRONG)
def test_settings_of_the_wrong_type(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    """Every writer and the family refuse it or do without; the one that uses it names it."""
    given = {k: v for k, v in config("qwen3moe").items() if k not in ("rope_parameters", "rope_scaling")}
    put(
        {"model.safetensors": config_json.weights("qwen3moe"), "config.json": json.dumps({**given, **change}).encode()},
        tmp_path,
    )
    found = opened(tmp_path)
    used(found)
    assert said in refusal(lambda: build(found), WeightmillError)


@pytest.mark.parametrize("value", ["x", [1], {"a": 1}, None, -1, 1e30, True])
def test_metadata_of_the_wrong_type(value: Any, tmp_path: Path) -> None:
    """Every entry of a GGUF file once as something else."""
    kv, tensors = gguf.seed("gemma3")
    kind = {
        str: "string",
        list: "array:uint32",
        dict: "array:string",
        type(None): "bool",
        int: "int64",
        float: "float64",
        bool: "bool",
    }[type(value)]
    for key in kv:
        put({"m.gguf": gguf.file({**kv, key: (kind, value or 0)}, tensors)}, tmp_path)
        if key == "general.architecture":
            assert len(refusal(lambda: opened(tmp_path), WeightmillError)) < 1000
            continue
        with suppress(WeightmillError):
            used(opened(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("tokenizer_config.json", {"extra_special_tokens": 5}, "extra_special_tokens is 5"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"5": {"content": "x", "lstrip": "x"}}}, "lstrip: 'x' is"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"5": 5}}, "should map ids to objects"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"9" * 5000: {"content": "x"}}}, "should map ids"),
        ("tokenizer_config.json", {"added_tokens_decoder": [1]}, "should map ids to objects"),
        ("tokenizer_config.json", {"bos_token": 5}, "a token should be a string"),
        ("special_tokens_map.json", {"additional_special_tokens": "x"}, "additional_special_tokens is 'x'"),
        ("added_tokens.json", {"x": -1}, "should have an id, has -1"),
        ("generation_config.json", {"eos_token_id": [1, "x"]}, "eos_token_id should be ids, has 'x'"),
    ],
)  # fmt: skip
def test_tokens_of_the_wrong_type(name: str, content: Any, said: str) -> None:
    own = {"tokenizer.json": tokenizers.tokenizer_json("byte_level"), name: json.dumps(content).encode()}
    assert said in refusal(lambda: load_tokenizer(own, {}))


def test_ids_that_no_vocabulary_has() -> None:
    """The package makes a table of all ids up to the largest when it copies a tokenizer."""
    found = json.loads(tokenizers.tokenizer_json("byte_level"))
    found["model"]["vocab"]["far"] = 2**31
    said = refusal(lambda: load_tokenizer({"tokenizer.json": json.dumps(found).encode()}, {}))
    assert "a token has id 2,147,483,648; they have to be below 10,000,000" in said


def test_a_text_config_that_is_none() -> None:
    own = {"tokenizer.json": tokenizers.tokenizer_json("byte_level")}
    assert "text_config is 5" in refusal(lambda: load_tokenizer(own, {"text_config": 5}))


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../b", "a\\b", "a\0b", "", "..", "\ud800"])
def test_names_that_lead_elsewhere(name: str) -> None:
    assert not files.is_inner(name)
    if name and "/" not in name:
        assert "is not of the form" in refusal(lambda: Address.parse(f"hf://owner/{name}"))
        assert "is not of the form" in refusal(lambda: Address.parse(f"hf://owner/name/{name}/x"))


def test_names_that_do_not() -> None:
    assert all(map(files.is_inner, ["a", "a/b.safetensors", "..a", "a b", "é"]))


MANY = [10**9, 65_536]


@pytest.mark.parametrize("many", MANY)
@pytest.mark.parametrize("name", ["llama", "qwen3moe", "gpt-oss", "gemma3"])
def test_more_layers_and_experts_than_there_are_tensors(name: str, many: int, tmp_path: Path) -> None:
    """Refused before a table of them is made: in config.json, by every writer and by the family; and in a GGUF file."""
    keys = ["num_hidden_layers", *(k for k in ("num_experts", "num_local_experts") if k in config(name))]
    for key in keys:
        put(
            {
                "model.safetensors": config_json.weights(name),
                "config.json": json.dumps({**config(name), key: many}).encode(),
            },
            tmp_path,
        )

        def told() -> str:
            found = opened(tmp_path)
            used(found)
            return refusal(lambda: build(found), PlanError)

        if name == "gpt-oss" and key == "num_hidden_layers":
            assert f"{many:,}" in refusal(lambda: opened(tmp_path), PlanError)
        elif name != "gpt-oss":
            assert str(many) in told()
    kv, tensors = gguf.seed(name)
    for key in ("block_count", "expert_count"):
        if f"{name}.{key}" in kv:
            put({"m.gguf": gguf.file({**kv, f"{name}.{key}": ("uint32", many)}, tensors)}, tmp_path)
            said = refusal(lambda: opened(tmp_path), PlanError)
            assert f"{many:,}" in said or str(many) in said


def test_sizes_that_no_tensor_has(tmp_path: Path) -> None:
    """Of 10^9 each: an error that names the tensors, and nothing of that size is made."""
    for key in ("vocab_size", "intermediate_size", "hidden_size", "num_attention_heads", "num_key_value_heads"):
        put(
            {
                "model.safetensors": config_json.weights("llama"),
                "config.json": json.dumps({**config("llama"), key: 10**9}).encode(),
            },
            tmp_path,
        )
        found = opened(tmp_path)
        used(found)
        refusal(partial(build, found), WeightmillError)


def test_an_expert_of_a_high_number(tmp_path: Path) -> None:
    """What names say is no count either: `experts.999999999`."""
    specs = {
        f"model.layers.0.mlp.experts.{e}.down_proj.weight": TensorSpec((4, 4), "BF16")
        for e in ("0", "999999999", "9" * 30)
    }
    (plan,) = SafeTensors().layout(specs, {}, None).files
    settings = {"model_type": "gpt_oss", "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
    put(
        {
            "model.safetensors": plan.prefix + bytes(plan.nbytes - len(plan.prefix)),
            "config.json": json.dumps(settings).encode(),
        },
        tmp_path,
    )
    assert "of 1000000000 experts there is no 1.down_proj, 2.down_proj" in refusal(lambda: opened(tmp_path), PlanError)


def test_many_strange_tensors() -> None:
    """As many problems as there are, a few lines of them, and few looks for the nearest name."""
    looked = 0
    names = [f"model.strange.{i}.weight" for i in range(30_000)]

    class Known(dict[str, int]):
        def __iter__(self) -> Any:
            nonlocal looked
            looked += 1
            return super().__iter__()

    problems = list(errors.strangers(names, Known.fromkeys(names), "is unknown"))
    said = str(PlanError(problems))
    assert (len(problems), looked) == (30_000, errors.MOST_HINTS)
    assert said.count("\n") == errors.MOST_SHOWN
    assert said.endswith("and 29,980 more")
    assert PlanError(problems).problems == tuple(problems)
    assert "; did you mean 'model.strange.0.weight'" in said
    assert errors.did_you_mean("x" * 10**6, ["y" * 10**6] * 3) == f" (allowed: {'y' * 200}…)"
    assert len(str(errors.Problem("n" * 10**6, "m" * 10**6))) < 5000


def test_frequencies_are_finite() -> None:
    """Numbers that a config may have and that make none."""
    for rope in (
        {"rope_type": "yarn", "rope_theta": 1.0, "factor": 2.0},
        {"rope_type": "linear", "factor": 1e-45},
        {"rope_type": "yarn", "factor": 2.0, "beta_fast": "x"},
        {"rope_type": "yarn", "factor": 2.0, "truncate": 5},
        {"rope_type": "default", "partial_rotary_factor": "x"},
    ):
        refusal(lambda r=rope: frequencies({"rope_parameters": {"original_max_position_embeddings": 16, **r}}, 8))  # type: ignore[misc]
    assert np.isfinite(frequencies({}, 8)[0]).all()


def test_nothing_waits_for_a_pipe(tmp_path: Path) -> None:
    """Opening a pipe returns at once, whoever holds its other end."""
    os.mkfifo(tmp_path / "pipe")
    done = threading.Event()

    def look() -> None:
        refusal(lambda: files.read_whole(tmp_path / "pipe"))
        done.set()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(30)
    assert done.is_set()


def test_a_checkpoint_is_still_a_checkpoint() -> None:
    found = opened(TINY)
    assert isinstance(found, Checkpoint)
    assert {"tokenizer.json", "tokenizer_config.json", "generation_config.json"} <= set(found.files)


def test_heads_wider_than_any() -> None:
    """Rope factors of half a billion dims would take gigabytes; found by the fuzzer of config.json."""
    from plugins.formats.gguf.archs import ARCHS
    from plugins.formats.gguf.config import to_kv

    rope = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = {
        "model_type": "llama", "hidden_size": 1 << 30, "num_attention_heads": 2, "num_key_value_heads": 2,
        "num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 8, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 64, "rope_parameters": {**rope, "original_max_position_embeddings": 64},
    }  # fmt: skip
    _, _, [problem] = to_kv(ARCHS["llama"], config)
    assert f"{1 << 29} dims" in problem.message
