"""What the JSON files beside a vocabulary say: named special tokens, added tokens, what ends a generation.

Two generations of files say it. tokenizer_config.json has it all today; special_tokens_map.json and added_tokens.json
are what older checkpoints have, and are read for what it leaves unsaid.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.errors import SourceError
from pipeline.settings import Settings as Typed
from plugins.tokenizers.companions import Companions

MOST_IDS = 10_000_000  # the largest vocabularies have a fortieth; libraries make tables up to the largest id
ID = re.compile(r"0|[1-9][0-9]{0,9}")
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
        single_word: it is not found within a word.
        normalized: it is found in text as the tokenizer normalizes it; None: of a file that says no such things.
    """

    text: str
    id: int | None = None
    special: bool = True
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool | None = None


@dataclass(frozen=True)
class TokenizerSettings:
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
    def read(cls, files: Companions, config: Mapping[str, Any]) -> "TokenizerSettings":
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
            if not is_id(token) or not text:
                raise SourceError(f"{files.where(ADDED)}: {text!r:.80} should have an id, has {token!r:.80}")
            added.setdefault(token, Added(text, token))
        keys = ("extra_special_tokens", "additional_special_tokens")
        lists = [_values(d.get(k), f"{where}: {k}") for d in (about, older) for k in keys]
        extra = tuple(dict.fromkeys(_spelling(t, where) for found in lists for t in found))
        generation, inner = files.json(GENERATION), config.get("text_config")
        if not isinstance(inner, Mapping | None):
            raise SourceError(f"{files.origin or 'config'}: text_config is {inner!r:.80}; an object is expected")
        origin, size = files.origin or "config", config.get("vocab_size", (inner or {}).get("vocab_size"))
        known = size if is_id(size) else MOST_IDS
        # the last: models that do more than text
        first = files.where(GENERATION) if GENERATION in files else GENERATION
        said = [(first, generation), (origin, config), (origin, inner or {})]
        begin = [e for here, d in said for e in _ids(d.get("bos_token_id"), f"{here}: bos_token_id", known)]
        end = [e for here, d in said for e in _ids(d.get("eos_token_id"), f"{here}: eos_token_id", known)]
        begins, ends = next(iter(begin), None), tuple(dict.fromkeys(end))
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
    if not isinstance(text, str) or not text:
        raise SourceError(f"{where}: a token should be a string or an object with `content`, found {given!r:.200}")
    return text


def _values(found: Any, where: str) -> Iterable[Any]:
    if not isinstance(found, Mapping | list | None):
        raise SourceError(f"{where} is {found!r:.80}; a list of tokens, or an object of them, is expected")
    return found.values() if isinstance(found, Mapping) else found or ()


def _decoder(found: Any, where: str) -> list[Added]:
    """The tokens of `added_tokens_decoder`; ids are its keys, which JSON makes texts."""
    where = f"{where}: added_tokens_decoder"
    if not isinstance(found, Mapping):
        raise SourceError(f"{where} is {found!r:.80}; it should map ids to objects with `content`")
    tokens = []
    for key, token in found.items():
        if not ID.fullmatch(key) or not is_id(int(key)) or not isinstance(token, Mapping):
            raise SourceError(f"{where} should map ids to objects with `content`, has {key!r:.80}: {token!r:.80}")
        s = Typed(token, f"{where} {key} ")
        flags = {name: s.get(name, bool, False) for name in ("special", "lstrip", "rstrip", "single_word")}
        flags["normalized"] = s.get("normalized", bool, not flags["special"])
        if s.problems:
            raise SourceError(str(s.problems[0]))
        tokens.append(Added(_spelling(token, where), int(key), **flags))
    return tokens


def _ids(found: Any, where: str, known: int) -> tuple[int, ...]:
    """One id or a list of them; nothing for null.

    Args:
        known: how many tokens the model knows.
    """
    ids = () if found is None else tuple(found) if isinstance(found, list | tuple) else (found,)
    if bad := [i for i in ids if not is_id(i)]:
        raise SourceError(f"{where} should be ids, has {bad[0]!r:.80}")
    if beyond := [i for i in ids if i >= known]:
        text = f"{where} has {beyond[0]}, and the model knows {known:,} tokens (config.json vocab_size)"
        raise SourceError(f"{text}: ids from 0 to {known - 1:,}")
    return ids


def is_id(value: Any) -> bool:
    """Whether a JSON value can be the id of a token."""
    return type(value) is int and 0 <= value < MOST_IDS
