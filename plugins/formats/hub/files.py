"""Which files of a repository on the hub are wanted: addresses (`hf://…`) and names only, nothing is fetched here.

A published repository often holds the same weights several times (safetensors and pickles, ONNX, the original release
in a folder of its own), so taking all of it would download some models three times.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import unquote

from pipeline.errors import SourceError, did_you_mean, some
from pipeline.files import is_inner
from pipeline.strictjson import read_object
from plugins.formats.gguf.file import SHARD as GGUF_SHARD
from plugins.formats.gguf.file import SUFFIX as GGUF
from plugins.formats.safetensors.container import INDEX_SUFFIX, SUFFIX

SCHEME = "hf://"
FORM = f"{SCHEME}owner/name, {SCHEME}owner/name@revision, and after either /folder or /file{GGUF}"
# Settings, tokenizers, chat templates, and the terms they come under; all of them small.
SETTINGS = (
    "*.json",
    "*.jinja",
    "*.txt",
    "*.model",
    "*.tiktoken",
    "tokenizer*",
    "LICENSE*",
    "NOTICE*",
    "USAGE_POLICY*",
    "USE_POLICY*",
)
UNWANTED = ("pytorch_model*", "tf_model*", "flax_model*", "*.onnx*", "*.bin", "*.pth", "*.pt", "*.ot", "*.h5")
SINGLE = f"model{SUFFIX}"


@dataclass(frozen=True, slots=True)
class Address:
    """A place on the hub.

    Attributes:
        repo: `owner/name`.
        revision: branch, tag or commit; None for the repository's main branch.
        path: inside the repository: a GGUF file, a folder, or "" for the repository itself.
    """

    repo: str
    revision: str | None
    path: str

    @classmethod
    def parse(cls, source: str) -> "Address":
        """`hf://owner/name@refs%2Fpr%2F1/folder`; a revision's own slashes are written %2F.

        Raises:
            SourceError: of another form.
        """
        match = re.fullmatch(rf"{SCHEME}([^/@]+/[^/@]+)(?:@([^/@]+))?(?:/+(.*))?", source)
        path = (match[3] or "").strip("/") if match else ""
        parts = [match[1], unquote(match[2] or "main"), path or "folder"] if match else [""]
        if not match or not all(map(is_inner, parts)) or not all(p.isprintable() for p in parts):
            raise SourceError(f"model.source={source!r:.300}: is not of the form {FORM}")
        return cls(match[1], unquote(match[2]) if match[2] else None, path)

    @property
    def is_file(self) -> bool:
        return self.path.endswith(GGUF)

    @property
    def prefix(self) -> str:
        """What the names of this folder's files begin with."""
        return f"{self.path}/" if self.path else ""

    def at(self, commit: str) -> str:
        """The address of one commit, for people and records."""
        return f"{SCHEME}{self.repo}@{commit[:12]}{f'/{self.path}' if self.path else ''}"

    def __str__(self) -> str:
        return (
            f"{SCHEME}{self.repo}{f'@{self.revision}' if self.revision else ''}{f'/{self.path}' if self.path else ''}"
        )


def settings(address: Address, names: Iterable[str]) -> list[str]:
    """The small files that lie beside the weights; none for a GGUF file, which holds them itself."""
    if address.is_file:
        return []
    own = [n for n in _inside(address, names) if any(fnmatchcase(_base(n), p) for p in SETTINGS)]
    return [n for n in own if not any(fnmatchcase(_base(n), p) for p in UNWANTED)]


def weights(address: Address, names: Iterable[str], folder: Path) -> list[str]:
    """The files of weights, by `names` and by the index among the settings, which `folder` holds already.

    An index decides; without one `model.safetensors` does, and otherwise every safetensors file of the folder.

    Raises:
        SourceError: there are none, or the index is malformed or names files that are not there.
    """
    names = list(names)
    if address.is_file:
        return _gguf(address, names)
    here = _inside(address, names)
    indexes = [n for n in here if n.endswith(INDEX_SUFFIX)]
    index = next((n for n in indexes if _base(n) == f"model{INDEX_SUFFIX}"), indexes[0] if len(indexes) == 1 else None)
    if index is not None:
        shards = [f"{address.prefix}{n}" for n in _shards(address, folder / index)]
        if lacking := [n for n in shards if n not in names]:
            raise SourceError(f"{address}: {index} names {len(lacking)} files that are not there, such as {lacking[0]}")
        return shards
    single = f"{address.prefix}{SINGLE}"
    found = [single] if single in here else [n for n in here if n.endswith(SUFFIX)]
    if not found:
        raise SourceError(f"{address}: holds no weights as safetensors{_instead(address, names)}")
    return found


def _gguf(address: Address, names: list[str]) -> list[str]:
    if address.path not in names:
        near = did_you_mean(address.path, [n for n in names if n.endswith(GGUF)])
        raise SourceError(f"{address}: no such file in the repository{near}")
    match = GGUF_SHARD.fullmatch(address.path)
    if match is None:
        return [address.path]
    return [n for n in names if (m := GGUF_SHARD.fullmatch(n)) and (m[1], m[3]) == (match[1], match[3])]


def _inside(address: Address, names: Iterable[str]) -> list[str]:
    """Of `names` those that lie in the address's folder itself, not in folders of it."""
    prefix = address.prefix
    return [n for n in names if n.startswith(prefix) and "/" not in n.removeprefix(prefix)]


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _shards(address: Address, index: Path) -> list[str]:
    try:
        table = read_object(index).get("weight_map")
    except SourceError as why:
        raise SourceError(f"{address}: {index.name} is not an index of safetensors files ({why})") from None
    if not isinstance(table, dict) or not all(isinstance(file, str) and is_inner(file) for file in table.values()):
        raise SourceError(f"{address}: {index.name} is not an index of safetensors files: weight_map must name them")
    return sorted(set(table.values()))


def _instead(address: Address, names: list[str]) -> str:
    """What there is: GGUF files to name, or folders that hold safetensors, or pickles that are not read."""
    if ggufs := [n for n in names if n.endswith(GGUF)]:
        return f"; it has GGUF files, name one: {SCHEME}{address.repo}/FILE ({some(ggufs)})"
    if folders := sorted({n.rpartition("/")[0] for n in names if n.endswith(SUFFIX)}):
        return f"; folders of it do, name one: {SCHEME}{address.repo}/FOLDER ({some(folders)})"
    if any(fnmatchcase(_base(n), "*.bin") or fnmatchcase(_base(n), "*.pt*") for n in names):
        return ", only pickles, which are not read: they can run code"
    return ""
