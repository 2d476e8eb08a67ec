"""Checkpoints from a hub: which files are fetched, how often, and what is said when something is wrong."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from huggingface_hub.errors import HfHubHTTPError  # imported here: what it warns of is not the test's

from pipeline.errors import SourceError, StorageError
from pipeline.formats import Fetched
from pipeline.stage import Context
from plugins.formats.hub import remote as module
from plugins.formats.hub.files import Address, settings, weights
from plugins.formats.hub.preview import FIRST_NBYTES
from plugins.formats.hub.remote import Hub
from plugins.formats.safetensors.container import SafeTensors
from plugins.formats.safetensors.plain import Plain
from stages.load import Load
from tests.cases.hub_server import Handler, HubServer, Repo, files_of, serving

TINY = Path(__file__).parents[3] / "plugins" / "models" / "gpt_oss" / "tiny"
SHARDS = [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
ELSEWHERE = {
    "original/model.safetensors": b"o" * 20_000,
    "metal/model.bin": b"m" * 20_000,
    "pytorch_model.bin": b"p" * 20_000,
    "pytorch_model.bin.index.json": b"{}",
    "onnx/model.onnx": b"x" * 20_000,
    "consolidated.safetensors": b"c" * 20_000,
    "README.md": b"of no use here",
    "LICENSE": b"Apache-2.0",
}
MiB = 1 << 20


@pytest.fixture(autouse=True)
def _asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    module._fetch.cache_clear()


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return files_of(TINY) | ELSEWHERE


@pytest.fixture
def server(files: Mapping[str, bytes]) -> Iterator[HubServer]:
    with serving(org__tiny=Repo(files)) as hub:
        yield hub


@pytest.fixture
def hub(server: HubServer, tmp_path: Path) -> Hub:
    return Hub(endpoint=server.url, cache=str(tmp_path / "cache"))


def whole(hub: Hub, source: str = "hf://org/tiny") -> Fetched:
    return hub.fetch(source, whole=True)


def again(hub: Hub, source: str = "hf://org/tiny") -> Fetched:
    """As another process would ask."""
    module._fetch.cache_clear()
    return whole(hub, source)


# Addresses and names


def test_addresses() -> None:
    assert Address.parse("hf://org/name") == Address("org/name", None, "")
    assert Address.parse("hf://org/name@v1.0") == Address("org/name", "v1.0", "")
    assert Address.parse("hf://org/name@refs%2Fpr%2F3/") == Address("org/name", "refs/pr/3", "")
    assert Address.parse("hf://org/name/original") == Address("org/name", None, "original")
    assert Address.parse("hf://org/name@v1/q/x.gguf") == Address("org/name", "v1", "q/x.gguf")
    assert str(Address.parse("hf://org/name@v1/q/x.gguf")) == "hf://org/name@v1/q/x.gguf"
    for wrong in ("hf://org", "hf://", "hf:///org/name", "hf://org/name/../../etc", "hf://org/name@"):
        with pytest.raises(SourceError, match=r"is not of the form hf://owner/name"):
            Address.parse(wrong)


def test_settings_are_the_small_files_beside_the_weights(files: Mapping[str, bytes]) -> None:
    tiny = {"config.json", "generation_config.json", "model.safetensors.index.json", "tokenizer.json"}
    found = settings(Address("org/tiny", None, ""), files)
    assert {*found} == {*tiny, "tokenizer_config.json", "LICENSE"}
    assert settings(Address("o/n", None, "original"), ["original/config.json", "config.json", "original/a/b.json"]) == [
        "original/config.json"
    ]
    assert settings(Address("o/n", None, "x.gguf"), ["config.json", "x.gguf"]) == []


def test_weights(tmp_path: Path) -> None:
    top = Address("o/n", None, "")
    names = ["model.safetensors", "consolidated.safetensors", "original/a.safetensors"]
    assert weights(top, names, tmp_path) == ["model.safetensors"]
    assert weights(top, names[1:], tmp_path) == ["consolidated.safetensors"]
    assert weights(Address("o/n", None, "original"), names, tmp_path) == ["original/a.safetensors"]
    parts = ["x-00001-of-00002.gguf", "x-00002-of-00002.gguf", "x-00001-of-00003.gguf", "y.gguf"]
    assert weights(Address("o/n", None, parts[0]), parts, tmp_path) == parts[:2]
    assert weights(Address("o/n", None, "y.gguf"), parts, tmp_path) == ["y.gguf"]


@pytest.mark.parametrize(
    ("path", "names", "said"),
    [
        ("z.gguf", ["y.gguf", "model.bin"], r"o/n/z\.gguf: no such file.*'y\.gguf'"),
        ("", ["a.gguf"], r"no weights as safetensors; it has GGUF files, name one: hf://o/n/FILE \(a\.gguf\)"),
        ("", ["original/a.safetensors"], r"folders of it do, name one: hf://o/n/FOLDER \(original\)"),
        ("", ["pytorch_model.bin"], r"only pickles, which are not read"),
    ],
)
def test_no_weights(path: str, names: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=said):
        weights(Address("o/n", None, path), names, tmp_path)


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ({"weight_map": {"a": "gone.safetensors"}}, r"names 1 files that are not there, such as gone\.safetensors"),
        ({"weights": {}}, "is not an index"),
        ([], "is not an index"),
    ],
)
def test_a_wrong_index(index: Any, said: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(SourceError, match=said):
        weights(Address("o/n", None, ""), ["model.safetensors.index.json", "a.safetensors"], tmp_path)


# Downloads


def test_what_is_wanted_is_fetched_and_nothing_else(hub: Hub, server: HubServer, files: Mapping[str, bytes]) -> None:
    found = whole(hub)
    commit = server.repos["org/tiny"].commit
    assert found == Fetched(found.path, f"hf://org/tiny@{commit[:12]}")
    assert found.path.name == commit
    there = {p.name: p.read_bytes() for p in found.path.iterdir()}
    assert there == {n: files[n] for n in (*(p.name for p in TINY.iterdir() if p.name != "README.md"), "LICENSE")}
    assert sorted(server.bodies) == sorted(there), "each once"
    assert not any("original" in path or "consolidated" in path for _, path, _ in server.requests)
    assert len(SafeTensors().open(found.path).specs) == 71


def test_what_is_there_is_not_fetched_again(hub: Hub, server: HubServer) -> None:
    first = whole(hub)
    asked = len(server.requests)
    assert whole(hub) == first
    assert len(server.requests) == asked, "asked twice in one process"
    server.forget()
    assert again(hub) == first
    assert server.bodies == []
    assert all("/api/" in path for _, path, _ in server.requests)


def test_by_commit_branch_and_single_file(tmp_path: Path) -> None:
    single = {"model.safetensors": (TINY / SHARDS[0]).read_bytes(), "config.json": b'{"model_type": "x"}'}
    with serving(org__one=Repo(single, branch="v2"), org__gguf=Repo({"q/a.gguf": b"GGUF" + b"0" * 90_000})) as server:
        hub = Hub(server.url, str(tmp_path))
        found = whole(hub, "hf://org/one@v2")
        assert found.path.name == "model.safetensors", "the file itself: others may be in the cache beside it"
        assert again(hub, f"hf://org/one@{found.path.parent.name}") == found
        gguf = whole(hub, "hf://org/gguf/q/a.gguf").path
        assert gguf.read_bytes()[:4] == b"GGUF"
        assert gguf.parts[-2:] == ("q", "a.gguf")
        with pytest.raises(SourceError, match=r"has no folder 'original'"):
            whole(hub, "hf://org/one@v2/original")


def test_a_lost_connection_is_taken_up_where_it_broke(
    hub: Hub, server: HubServer, files: Mapping[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1 << 16)  # what is lost at most
    server.cut_after[SHARDS[1]] = 2 * MiB
    found = whole(hub)
    assert (found.path / SHARDS[1]).read_bytes() == files[SHARDS[1]]
    assert [r for _, path, r in server.requests if path.endswith(SHARDS[1]) and r] == [f"bytes={2 * MiB}-"]


def test_a_file_of_another_size_is_refused(
    hub: Hub, server: HubServer, files: Mapping[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.send[SHARDS[2]] = files[SHARDS[2]][:-10]
    with pytest.raises(SourceError, match=r"hf://org/tiny: cannot be read from .*Consistency check failed"):
        whole(hub)
    monkeypatch.setattr(Handler, "linked_size", lambda self, repo, file: len(self.hub.send.get(file, repo.files[file])))
    with pytest.raises(
        SourceError, match=r"0003\.safetensors has 3,042,590 bytes, not the 3,042,600 that the hub lists"
    ):
        whole(hub)
    server.send.clear()
    server.forget()
    assert (again(hub).path / SHARDS[2]).read_bytes() == files[SHARDS[2]]
    assert [n for n in server.bodies if n in SHARDS] == [SHARDS[2]], "the others were whole"


def test_the_token_of_the_environment_is_sent(hub: Hub, server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.fetch("hf://org/tiny", whole=False)
    assert server.tokens == ({"Bearer hf_secret"}, {None}), "and to the hub itself only"


def test_too_little_space(hub: Hub, server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 9 * MiB}))
    with pytest.raises(StorageError, match=r"has 9\.0 MiB free, the download is 3 files \(9\.7 MiB\); hub\.cache=DIR"):
        whole(hub)
    assert not {*server.bodies} & {*SHARDS}


# Refusals


@pytest.mark.parametrize(
    ("source", "refused", "said"),
    [
        ("hf://org/none", None, r"hf://org/none: .* has no such repository, or shows it only to some: HF_TOKEN"),
        ("hf://org/tiny", (401, "RepoNotFound"), r"has no such repository"),
        ("hf://org/tiny", (404, "RepoNotFound"), r"has no such repository"),
        ("hf://org/tiny", (403, "GatedRepo"), r"is gated: accept its terms on its page at http://.*/org/tiny, and set"),
        ("hf://org/tiny@v9", None, r"hf://org/tiny@v9: the repository has no revision 'v9'"),
        ("hf://org/tiny", (418, "Teapot"), r"cannot be read from http://.*418"),
        ("hf://org/ti ny", None, r"hf://org/ti ny: .*[Rr]epo"),
        ("hf://org/tiny/x.gguf", None, r"no such file in the repository"),
    ],
)
def test_refused(source: str, refused: Any, said: str, hub: Hub, server: HubServer) -> None:
    server.repos["org/tiny"].refused = refused
    with pytest.raises(SourceError, match=said) as why:
        whole(hub, source)
    assert "\n" not in str(why.value)


def test_no_server(tmp_path: Path) -> None:
    hub = Hub("http://127.0.0.1:9", str(tmp_path))
    with pytest.raises(SourceError, match=r"cannot be read from http://127\.0\.0\.1:9: .*hub\.offline=true uses what"):
        whole(hub)


def test_without_the_package(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(SourceError, match=r"needs the package huggingface_hub.*pip install huggingface_hub"):
        whole(hub)


# Offline


def test_offline_uses_what_is_there(hub: Hub, server: HubServer) -> None:
    first = whole(hub)
    server.forget()
    quiet = Hub(server.url, hub.cache, offline=True)
    assert whole(quiet) == first
    assert whole(quiet, f"hf://org/tiny@{first.path.name}") == first
    with pytest.raises(SourceError, match=r"hf://org/tiny@v2: is not in .*without hub\.offline=true it is downloaded"):
        whole(quiet, "hf://org/tiny@v2")
    assert server.requests == []


@pytest.mark.parametrize("name", [SHARDS[1], "tokenizer.json"])
def test_offline_and_not_all_there(name: str, hub: Hub, server: HubServer) -> None:
    (whole(hub).path / name).unlink()
    with pytest.raises(SourceError, match=rf"(?=.*{name}).*without hub\.offline=true"):
        whole(Hub(server.url, hub.cache, offline=True))


def test_offline_and_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"is not in .*cache"):
        whole(Hub(cache=str(tmp_path / "cache"), offline=True))


# Plans


@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "no ranges"])
def test_an_outline_for_planning(ranges: bool, hub: Hub, server: HubServer, files: Mapping[str, bytes]) -> None:
    server.ranges = ranges
    found = hub.fetch("hf://org/tiny", whole=False)
    assert not found.whole
    assert found.origin.endswith(", 3 files (9.7 MiB) to download")
    outlined = SafeTensors().open(found.path)
    assert {p.name: p.stat().st_size for p in outlined.paths} == {n: len(files[n]) for n in SHARDS}
    assert all(p.stat().st_blocks * 512 <= MiB for p in outlined.paths), "holes take no space"
    ranged = [r for _, path, r in server.requests if path.endswith(SHARDS[0])]
    assert {*ranged} == {f"bytes=0-{FIRST_NBYTES - 1}"}
    there = whole(hub)
    assert there.whole
    assert outlined.specs == SafeTensors().open(there.path).specs
    module._fetch.cache_clear()
    assert hub.fetch("hf://org/tiny", whole=False) == there, "what is there is planned itself"


def test_an_outline_of_a_long_header(tmp_path: Path) -> None:
    rows = {
        f"a tensor of a long name, number {n:05d}, and more of it": np.full(3, n % 256, np.uint8) for n in range(4000)
    }
    specs = {n: module_spec(a) for n, a in rows.items()}
    layout = SafeTensors().layout(specs, {}, None)
    SafeTensors().begin(tmp_path / "m", layout)
    for name, array in rows.items():
        SafeTensors().write(tmp_path / "m", layout, name, (), array)
    content = (tmp_path / "m" / "model.safetensors").read_bytes()
    assert len(layout.files[0].prefix) > FIRST_NBYTES
    with serving(o__long=Repo({"model.safetensors": content}), o__bad=Repo({"model.safetensors": b"\xff" * 99})) as at:
        hub = Hub(at.url, str(tmp_path / "cache"))
        assert {**SafeTensors().open(hub.fetch("hf://o/long", whole=False).path).specs} == specs
        with pytest.raises(SourceError, match=r"model\.safetensors: begins with no header of a safetensors file of 99"):
            hub.fetch("hf://o/bad", whole=False)


def module_spec(array: np.ndarray) -> Any:
    from pipeline.tensors.spec import TensorSpec

    return TensorSpec(array.shape, "U8")


def test_a_gguf_file_is_planned_when_it_is_there(tmp_path: Path) -> None:
    with serving(o__n=Repo({"a.gguf": b"GGUF" + b"0" * 90_000})) as server:
        hub = Hub(server.url, str(tmp_path))
        with pytest.raises(SourceError, match=r"1 file \(87\.9 KiB\), which have to be there.*stages=\[load\]"):
            hub.fetch("hf://o/n/a.gguf", whole=False)
        assert "a.gguf" not in server.bodies
        path = whole(hub, "hf://o/n/a.gguf").path
        assert hub.fetch("hf://o/n/a.gguf", whole=False).path == path


@dataclass(frozen=True)
class Near:
    """A remote that only has an outline."""

    scheme: ClassVar[str] = "near://"

    def fetch(self, source: str, *, whole: bool) -> Fetched:
        return Fetched(TINY, "near://x@1", whole)


@dataclass(frozen=True, slots=True)
class Peeking(Plain):
    peeks: ClassVar[tuple[str, ...]] = ("*.sinks",)


def test_values_of_an_outline_are_never_read(tmp_path: Path) -> None:
    load = Load("near://x", (SafeTensors(),), (Peeking(),), remotes=(Near(),))
    with pytest.raises(
        SourceError, match=r"near://x@1: .*Peeking has to read model\.layers\.0\.self_attn\.sinks before"
    ):
        load.run(Context(tmp_path, fetch=False))
    found = load.run(Context(tmp_path))
    assert found.origin.startswith("near://x@1 · SafeTensors · ")
    with pytest.raises(SourceError, match=r"nothing here fetches from far://.*near://"):
        Load("far://x", (SafeTensors(),), (Plain(),), remotes=(Near(),)).run(Context(tmp_path))


def test_errors_of_the_http_client_are_caught_by_their_base() -> None:
    """What `_asked` counts on, whichever HTTP client huggingface_hub uses."""
    assert OSError in HfHubHTTPError.__bases__
    assert any(base.__module__.startswith("httpx") for base in HfHubHTTPError.__bases__)
