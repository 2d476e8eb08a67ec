"""From the files of a checkpoint to its tokenizer: which kind it is shows in which files there are."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from pipeline.digest import digest, digest_file, identity
from pipeline.errors import ConfigError, SourceError, did_you_mean
from plugins.tokenizers import chat, huggingface, ranks
from plugins.tokenizers.chat_harmony import HarmonyChat
from plugins.tokenizers.companions import Companions
from plugins.tokenizers.loaded import Backend, Chat, Loaded
from plugins.tokenizers.sentencepieces import SentencePiece
from plugins.tokenizers.settings import TokenizerSettings
from plugins.tokenizers.tokenizer import Tokenizer

Kind = Literal["auto", "tokenizers", "tiktoken", "sentencepiece"]
MODELS = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model.v*")
RANKS = ("*.tiktoken", "tiktoken.model", "tokenizer.model")
# In the order of preference: tokenizer.json says more than the others, how text is split for one.
LOOKED_FOR: dict[str, tuple[str, ...]] = {
    "tokenizers": (huggingface.FILE,),
    "tiktoken": (*RANKS, ranks.TEKKEN),
    "sentencepiece": MODELS,
}


def load_tokenizer(
    files: Mapping[str, Path | bytes],
    config: Mapping[str, Any],
    origin: str = "",
    *,
    kind: Kind = "auto",
    encoding: str | None = None,
    vocabulary: str | None = None,
    chat_template: str | None = None,
) -> Tokenizer:
    """The tokenizer of a checkpoint.

    Args:
        files: `Checkpoint.files`: companion name → path or content.
        config: config.json.
        origin: the checkpoint, for errors.
        kind: which library, where there are files for several; `auto`: tokenizers, tiktoken, sentencepiece.
        encoding: which encoding lines of ranks belong to, where their number does not say (`encodings.ENCODINGS`).
        vocabulary: folder with o200k_base.tiktoken, for gpt-oss's original release. Nothing is downloaded.
        chat_template: a file with a template to use instead of the checkpoint's, or the name of one of its own.

    Raises:
        SourceError: there are no such files, or they are malformed; the files looked for are named.
        ConfigError: an option that does not exist.
    """
    if kind not in get_args(Kind):
        raise ConfigError(f"tokenizer.kind={kind!r}: no such kind{did_you_mean(kind, get_args(Kind))}")
    found = Companions(files, origin)
    settings = TokenizerSettings.read(found, config)
    backend = _backend(found, config, settings, kind, encoding, vocabulary)
    bos = settings.bos(backend.id_of)
    if bos is None and "bos_token" not in settings.about and settings.begins is None:
        bos = backend.bos
    eos = settings.eos(backend.id_of, backend.ends)
    tokens = dict(settings.named)
    for name, token in (("bos_token", bos), ("eos_token", backend.ends[0] if backend.ends else None)):
        if token is not None and name not in settings.about:
            tokens.setdefault(name, backend.decode([token], skip_special=False))
    chats = _chats(found, tokens, backend, chat_template)
    beyond = outside(files, kind=kind, vocabulary=vocabulary, chat_template=chat_template)
    read = {**{name: digest(found.read(name)) for name in files}, **{str(p): digest_file(p).xxh3_128 for p in beyond}}
    said = [config.get(key) for key in ("model_type", "bos_token_id", "eos_token_id", "text_config")]
    known_by = identity([kind, encoding, chat_template, said, read])
    return Loaded(backend, bos, eos, chats, known_by)


def outside(
    files: Mapping[str, Path | bytes], *, kind: Kind, vocabulary: str | None, chat_template: str | None
) -> list[Path]:
    """The files that are no companions of the checkpoint and that `load_tokenizer` reads for these options."""
    kinds = tuple(LOOKED_FOR) if kind == "auto" else (kind,)
    own = any(Companions(files).match(LOOKED_FOR[one]) for one in kinds)
    template = Path(os.path.expanduser(chat_template)) if chat_template is not None else None
    ranked = None if own or "tiktoken" not in kinds else ranks.harmony_file(vocabulary)
    return [p.absolute() for p in (template, ranked) if p is not None and p.is_file()]


def _backend(
    files: Companions,
    config: Mapping[str, Any],
    settings: TokenizerSettings,
    kind: Kind,
    encoding: str | None,
    vocabulary: str | None,
) -> Backend:
    kinds = tuple(LOOKED_FOR) if kind == "auto" else (kind,)
    for one in kinds:
        for name in files.match(LOOKED_FOR[one]):
            if one == "tokenizers":
                return huggingface.HuggingFaceTokenizer(files, settings)
            if name == ranks.TEKKEN:
                return ranks.from_tekken(files, settings)
            if one == "tiktoken" and ranks.is_ranks(files.read(name)[:512]):
                return ranks.from_lines(files, name, settings, encoding)
            if one == "sentencepiece":
                return SentencePiece(files, name, settings)
    looked = ", ".join(dict.fromkeys(n for one in kinds for n in LOOKED_FOR[one]))
    missing = f"{files.origin or 'the checkpoint'}: has no tokenizer (looked for: {looked}"
    if "tiktoken" in kinds and (config.get("model_type") == "gpt_oss" or encoding == "o200k_harmony"):
        return ranks.harmony(settings, vocabulary, missing + ")")
    others = f"; found: {', '.join(sorted(files.files))}" if files.files else ""
    split = "; vocab.json and merges.txt do not say how text is split" if "merges.txt" in files else ""
    raise SourceError(f"{missing}{others}){split}")


def _chats(files: Companions, tokens: Mapping[str, str], backend: Backend, given: str | None) -> Chat:
    path = Path(os.path.expanduser(given)) if given is not None else None
    if path is not None and os.path.isfile(path):
        own = Companions({path.name: path})
        return chat.Templates({"default": chat.Template(own.text(path.name), str(path))}, tokens, files.origin)
    templates = chat.Templates(chat.read_templates(files), tokens, files.origin or "the checkpoint", given)
    if given is not None and not templates.exists:  # which would leave it unused, and prompts as they are
        raise ConfigError(
            f"tokenizer.chat_template={given!r:.300}: no such file, "
            f"and {files.origin or 'the checkpoint'} has no templates"
        )
    if not templates.exists and HarmonyChat.fits(backend.id_of):
        return HarmonyChat()
    return templates
