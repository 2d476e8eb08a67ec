"""What the JSON files beside a vocabulary say: named special tokens, added tokens, what ends a generation.

Two generations of files say it. tokenizer_config.json has it all today; special_tokens_map.json and added_tokens.json
are what older checkpoints have, and are read for what it leaves unsaid.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.errors import SourceError
from plugins.tokenizers.companions import Companions

CONFIG, MAP, ADDED, GENERATION = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
)
# transformers' PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES: a chat template sees them under these names
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class Added:
    """A token beside the vocabulary proper, found in text before anything else is.

    Attributes:
        text: how it is spelled.
        id: its id; None where only the tokenizer knows.
        special: left out by `skip_special`.
        lstrip, rstrip: it takes along the white space before it, after it.
    """

    text: str
    id: int | None = None
    special: bool = True
    lstrip: bool = False
    rstrip: bool = False


@dataclass(frozen=True)
class Settings:
    """What the files say.

    Attributes:
        about: tokenizer_config.json.
        named: special tokens by the names of `NAMED`; only those that are set.
        added: added tokens with ids, by id.
        extra: spellings of further special tokens.
        ends: ids that end a generation, of generation_config.json, then config.json.
        begins: the id that begins a text by the same files.
        where: tokenizer_config.json as an error should name it.
    """

    about: Mapping[str, Any]
    named: Mapping[str, str]
    added: tuple[Added, ...]
    extra: tuple[str, ...]
    ends: tuple[int, ...]
    begins: int | None
    where: str

    @classmethod
    def read(cls, files: Companions, config: Mapping[str, Any]) -> "Settings":
        """Raises SourceError if a file says something of the wrong type."""
        where = files.where(CONFIG) if CONFIG in files else f"{files.origin or 'the checkpoint'} (no {CONFIG})"
        about, older = files.json(CONFIG), files.json(MAP)
        named = {}
        for name in NAMED:
            given = about[name] if name in about else older.get(name)
            if given is not None:
                named[name] = _spelling(given, f"{where}: {name}")
        added = {a.id: a for a in _decoder(about.get("added_tokens_decoder") or {}, where)}
        for text, token in files.json(ADDED).items():
            if not isinstance(token, int):
                raise SourceError(f"{files.where(ADDED)}: {text!r} should have an id, has {token!r}")
            added.setdefault(token, Added(text, token))
        lists = [d.get(k) or () for d in (about, older) for k in ("extra_special_tokens", "additional_special_tokens")]
        extra = tuple(dict.fromkeys(_spelling(t, where) for found in lists for t in _values(found)))
        generation = files.json(GENERATION)
        said = [generation, config, config.get("text_config") or {}]  # the last: models that do more than text
        begins = next((d["bos_token_id"] for d in said if isinstance(d.get("bos_token_id"), int)), None)
        ends = tuple(dict.fromkeys(e for d in said for e in _ids(d.get("eos_token_id"), "eos_token_id", files.origin)))
        by_id = tuple(sorted(added.values(), key=lambda a: a.id or 0))
        return cls(about, named, by_id, extra, ends, begins, where)

    def bos(self, id_of: Callable[[str], int | None]) -> int | None:
        """tokenizer_config.json decides if it says anything: Qwen, without BOS, has a bos_token_id in config.json.

        Raises:
            SourceError: a bos_token that the vocabulary does not have.
        """
        if "bos_token" in self.named:
            return self._id("bos_token", id_of)
        return None if "bos_token" in self.about else self.begins

    def eos(self, id_of: Callable[[str], int | None], more: Iterable[int] = ()) -> tuple[int, ...]:
        """See `Tokenizer.eos`; `more` are what a vocabulary of a known kind ends with, last.

        Raises:
            SourceError: an eos_token that the vocabulary does not have.
        """
        own = (self._id("eos_token", id_of),) if "eos_token" in self.named else ()
        return tuple(dict.fromkeys((*self.ends, *own, *more)))

    def _id(self, name: str, id_of: Callable[[str], int | None]) -> int:
        found = id_of(self.named[name])
        if found is None:
            raise SourceError(f"{self.where}: {name} is {self.named[name]!r}, which the vocabulary does not have")
        return found


def _spelling(given: Any, where: str) -> str:
    """A token is written as a string, or as an object with its `content`."""
    text = given.get("content") if isinstance(given, Mapping) else given
    if not isinstance(text, str):
        raise SourceError(f"{where}: a token should be a string or an object with `content`, found {given!r}")
    return text


def _values(found: Any) -> Iterable[Any]:
    return found.values() if isinstance(found, Mapping) else found


def _decoder(found: Mapping[str, Any], where: str) -> list[Added]:
    try:
        return [
            Added(_spelling(t, where), int(i), t.get("special", False), t.get("lstrip", False), t.get("rstrip", False))
            for i, t in found.items()
        ]
    except (AttributeError, ValueError):
        raise SourceError(f"{where}: added_tokens_decoder should map ids to objects with `content`") from None


def _ids(found: Any, key: str, origin: str) -> tuple[int, ...]:
    """One id or a list of them; nothing for null."""
    ids = () if found is None else tuple(found) if isinstance(found, list | tuple) else (found,)
    if bad := [i for i in ids if not isinstance(i, int) or isinstance(i, bool)]:
        raise SourceError(f"{origin or 'config'}: {key} should be ids, has {bad[0]!r}")
    return ids
