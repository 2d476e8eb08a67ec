"""Vocabularies of byte strings with ranks, run by the `tiktoken` package.

Three files hold them: `*.tiktoken` and Llama 3's tokenizer.model are lines of base64 and rank; Mistral's tekken.json is
a JSON object that has the splitting pattern and the special tokens too. gpt-oss's original release has no such file at
all, because its vocabulary is one that tiktoken knows by name: `vocabulary` says where a copy of it lies. Nothing is
ever downloaded here.
"""

import base64
import binascii
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from pipeline.errors import ConfigError, SourceError, did_you_mean
from pipeline.files import read_whole
from pipeline.settings import Settings as Typed
from plugins.tokenizers.companions import Companions
from plugins.tokenizers.encodings import (
    ENCODINGS,
    HARMONY_CACHED,
    HARMONY_SHA256,
    HARMONY_VOCABULARY,
    Encoding,
)
from plugins.tokenizers.patience import no_panic, patiently
from plugins.tokenizers.settings import TokenizerSettings, is_id
from plugins.tokenizers.streams import ByteStream
from plugins.tokenizers.tokenizer import Stream

LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} [0-9]+\r?\n")
TEKKEN = "tekken.json"
RANK = re.compile(rb"[0-9]{1,9}")
MOST_SPECIAL = 100_000  # the published ones have 1000; a token is made for each
# The variables by which openai-harmony and tiktoken find a local copy; in this order.
VARIABLES = ("TIKTOKEN_ENCODINGS_BASE", "TIKTOKEN_CACHE_DIR")


def is_ranks(head: bytes) -> bool:
    """Whether a file that begins so is lines of base64 and rank (a sentencepiece model is binary)."""
    return LINE.match(head) is not None


class Ranks:
    """See `loaded.Backend`."""

    def __init__(self, name: str, where: str, ranks: Mapping[bytes, int], known: Encoding, settings: TokenizerSettings):
        """
        Args:
            name: for people.
            where: the file, for errors.
            ranks: the byte strings and their ids.
            known: splitting, special tokens, what begins and ends.
            settings: tokens of tokenizer_config.json take the places of `known`'s.

        Raises:
            SourceError: ranks or pattern are none.
        """
        import tiktoken

        special = {t: i for t, i in known.special.items() if i not in {a.id for a in settings.added}}
        special |= {a.text: a.id for a in settings.added if a.id is not None}
        self._where = where
        try:
            with no_panic(where):
                self._encoding = tiktoken.Encoding(
                    name, pat_str=known.pattern, mergeable_ranks=dict(ranks), special_tokens=special
                )
        except (AssertionError, ValueError, OverflowError) as why:
            raise SourceError(f"{where}: not a vocabulary: {type(why).__name__}: {why}") from None
        self._special_ids = special
        kept = {a.id for a in settings.added if not a.special}
        self.special = frozenset(special.values()) - kept
        self._bytes = {i: b for b, i in ranks.items()} | {i: t.encode() for t, i in special.items()}
        self.vocab_size = 1 + max(self._bytes)
        self.ends = tuple(special[t] for t in known.ends if t in special)
        named = settings.named.get("bos_token", None if "bos_token" in settings.about else known.bos)
        self.bos = special.get(named) if named is not None else None
        self._before = (
            [self.bos] if settings.about.get("add_bos_token", known.adds_bos) and self.bos is not None else []
        )
        end = self.id_of(settings.named.get("eos_token", ""))
        self._after = [end] if settings.about.get("add_eos_token") and end is not None else []

    def encode_batch(self, texts: Sequence[str], special: bool, plain: bool) -> list[list[int]]:
        encode = self._encoding.encode_ordinary if plain else partial(self._encoding.encode, allowed_special="all")
        found = patiently(self._where, sum(map(len, texts)), lambda: [list(encode(text)) for text in texts])
        return [[*self._before, *ids, *self._after] for ids in found] if special else found

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        return b"".join(self._bytes_of(i, skip_special) for i in ids).decode("utf-8", errors="replace")

    def stream(self, skip_special: bool) -> Stream:
        return ByteStream(lambda token: self._bytes_of(token, skip_special))

    def id_of(self, token: str) -> int | None:
        if token in self._special_ids:
            return self._special_ids[token]
        try:
            return int(self._encoding.encode_single_token(token))
        except KeyError:
            return None

    def _bytes_of(self, token: int, skip_special: bool) -> bytes:
        return b"" if skip_special and token in self.special else self._bytes.get(token, b"")


def from_lines(files: Companions, name: str, settings: TokenizerSettings, encoding: str | None) -> Ranks:
    """Lines of base64 and rank.

    Args:
        encoding: one of `ENCODINGS`; None: by the number of ranks.

    Raises:
        SourceError: a malformed line, or as many ranks as no encoding has.
        ConfigError: there is no such encoding.
    """
    where = files.where(name)
    return _ranks(where, files.read(name), settings, encoding)


def harmony(settings: TokenizerSettings, vocabulary: str | None, looked_for: str) -> Ranks:
    """o200k_harmony from the folder `vocabulary`, or from that of the first of `VARIABLES` that is set.

    Raises:
        SourceError: no folder is given, the file is not there, or its SHA-256 is not that of the vocabulary.
    """
    folder = _harmony_folder(vocabulary)
    if folder is None:
        raise SourceError(
            f"{looked_for}; gpt-oss's original release needs the vocabulary o200k_harmony beside it: let "
            f"tokenizer.vocabulary (or {' or '.join(VARIABLES)}) name a folder with {HARMONY_VOCABULARY}"
        )
    option, at = folder
    path = harmony_file(vocabulary)
    if path is None:
        raise SourceError(f"{option}={at}: holds neither {HARMONY_VOCABULARY} nor {HARMONY_CACHED} (tiktoken's cache)")
    raw = read_whole(path)
    if (found := hashlib.sha256(raw).hexdigest()) != HARMONY_SHA256:
        raise SourceError(f"{path}: not the vocabulary of o200k_harmony: SHA-256 is {found}, not {HARMONY_SHA256}")
    return _ranks(str(path), raw, settings, "o200k_harmony")


def harmony_file(vocabulary: str | None) -> Path | None:
    """The file that `harmony` reads; None when there is none."""
    folder = _harmony_folder(vocabulary)
    names = (HARMONY_VOCABULARY, HARMONY_CACHED) if folder else ()
    return next((p for n in names if folder and (p := folder[1] / n).is_file()), None)


def _harmony_folder(vocabulary: str | None) -> tuple[str, Path] | None:
    """(what names it, the folder)."""
    given = [("tokenizer.vocabulary", vocabulary), *((v, os.environ.get(v)) for v in VARIABLES)]
    return next(((n, Path(os.path.expanduser(f))) for n, f in given if f), None)


def _ranks(where: str, raw: bytes, settings: TokenizerSettings, encoding: str | None) -> Ranks:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(raw.splitlines(), 1):
        if not line:
            continue
        try:
            spelled, rank = line.split()
            if not RANK.fullmatch(rank):
                raise ValueError
            ranks[base64.b64decode(spelled, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise SourceError(f"{where}, line {number}: base64 and a rank are expected, found {line[:40]!r}") from None
    if encoding is None:
        encoding = next((n for n, e in ENCODINGS.items() if e.ranks == len(ranks)), None)
        if encoding is None:
            counts = ", ".join(f"{n} {e.ranks}" for n, e in ENCODINGS.items())
            raise SourceError(
                f"{where}: has {len(ranks)} ranks, as no known encoding does ({counts}); tokenizer.encoding=NAME says "
                "which of them splits its text"
            )
    elif encoding not in ENCODINGS:
        raise ConfigError(f"tokenizer.encoding={encoding!r}: no such encoding{did_you_mean(encoding, ENCODINGS)}")
    _check(where, ranks)
    return Ranks(encoding, where, ranks, _moved(ENCODINGS[encoding], len(ranks)), settings)


def _check(where: str, ranks: Mapping[bytes, int]) -> None:
    """What tiktoken takes for granted.

    Raises:
        SourceError: no ranks, two strings of one rank, or the empty string.
    """
    if not ranks:
        raise SourceError(f"{where}: holds no ranks")
    if len(set(ranks.values())) < len(ranks):
        seen: dict[int, bytes] = {}
        for string, rank in ranks.items():
            if (other := seen.setdefault(rank, string)) != string:
                raise SourceError(f"{where}: {other[:40]!r} and {string[:40]!r} both have rank {rank}")
    if b"" in ranks:
        raise SourceError(f"{where}: the empty string has a rank")


def _moved(known: Encoding, ranks: int) -> Encoding:
    """Special tokens follow the ranks, however many there are: another project's vocabulary split in a known way."""
    by = ranks - known.ranks
    special = {t: i + by for t, i in known.special.items()}
    return Encoding(known.pattern, ranks, special, known.bos, known.adds_bos, known.ends)


def from_tekken(files: Companions, settings: TokenizerSettings) -> Ranks:
    """Mistral's tekken.json (mistral-common, tokens/tokenizers/tekken.py): special tokens first, then as many of the
    byte strings as fit into `default_vocab_size`.

    Raises:
        SourceError: a field is missing or of the wrong type.
    """
    where, found = files.where(TEKKEN), files.json(TEKKEN)
    s = Typed(found, f"{where} ")
    config = Typed(s.object("config"), f"{where} config.")
    first = config.count("default_num_special_tokens", most=MOST_SPECIAL)
    count = config.count("default_vocab_size") - first
    pattern = config.get("pattern", str)
    if problems := [*s.problems, *config.problems]:
        raise SourceError(f"{where}: not a tekken vocabulary: {problems[0].where} {problems[0].message}")
    try:
        ranks = {base64.b64decode(e["token_bytes"], validate=True): first + e["rank"] for e in found["vocab"][:count]}
        listed = found.get("special_tokens")
        special = {e["token_str"]: e["rank"] for e in listed} if listed else dict(_TEKKEN_SPECIAL)
    except (AttributeError, KeyError, TypeError, ValueError) as why:
        raise SourceError(f"{where}: not a tekken vocabulary: {type(why).__name__} {why}") from None
    if bad := [i for i in (*ranks.values(), *special.values()) if not is_id(i)]:
        raise SourceError(f"{where}: not a tekken vocabulary: rank {bad[0]!r:.80}")
    if bad := [t for t in special if not isinstance(t, str) or not t]:  # tiktoken looks for "" for ever
        raise SourceError(f"{where}: not a tekken vocabulary: special token {bad[0]!r:.80}")
    _check(where, ranks)
    taken = set(special.values())
    special |= {f"<SPECIAL_{i}>": i for i in range(first) if i not in taken}
    known = Encoding(pattern, len(ranks), special, "<s>", True, ("</s>",))
    return Ranks(TEKKEN, where, ranks, known, settings)


# The special tokens of a tekken.json that lists none: mistral-common, tokens/tokenizers/tekken.py.
_TEKKEN_SPECIAL = {
    token: rank
    for rank, token in enumerate(
        (
            *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
            *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]"),
            *("[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
        )
    )
}
