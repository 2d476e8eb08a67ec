"""The node `tokenizer` of the config: which tokenizer a run uses."""

import os
from dataclasses import dataclass

from pipeline.digest import InputFile, small_input
from pipeline.errors import ConfigError, did_you_mean
from pipeline.stage import Checkpoint
from plugins.tokenizers.companions import Companions
from plugins.tokenizers.encodings import ENCODINGS
from plugins.tokenizers.load import LOOKED_FOR, Kind, load_tokenizer, outside
from plugins.tokenizers.ranks import VARIABLES
from plugins.tokenizers.settings import TokenizerSettings
from plugins.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class Auto:
    """The tokenizer that came with the checkpoint.

    Attributes:
        kind: the library to use: auto (by the files), tokenizers, tiktoken or sentencepiece.
        encoding: for lines of ranks whose number does not tell: o200k_harmony, llama3 or qwen.
        vocabulary: folder with o200k_base.tiktoken, which gpt-oss's original release needs; null: the folder that
            TIKTOKEN_ENCODINGS_BASE or TIKTOKEN_CACHE_DIR names.
        chat_template: a file to use instead of the checkpoint's template, or the name of one of its own; null: its
            default.
    """

    kind: Kind = "auto"
    encoding: str | None = None
    vocabulary: str | None = None
    chat_template: str | None = None

    def __post_init__(self) -> None:
        if self.encoding is not None and self.encoding not in ENCODINGS:
            near = did_you_mean(self.encoding, ENCODINGS)
            raise ConfigError(f"tokenizer.encoding={self.encoding!r}: no such encoding{near}")
        if self.vocabulary is not None and not os.path.isdir(os.path.expanduser(self.vocabulary)):
            raise ConfigError(f"tokenizer.vocabulary={self.vocabulary!r:.300}: no such folder")

    def check(self, checkpoint: Checkpoint) -> None:
        """See that there is something to load, and what the files beside it say, without loading it.

        Raises:
            SourceError: there is not; the files looked for are named. Or as `ends`.
        """
        self.ends(checkpoint)
        if not self._files(checkpoint):
            self.load(checkpoint)

    def inputs(self, checkpoint: Checkpoint) -> tuple[InputFile, ...]:
        """The files that `load` reads beside those of the checkpoint."""
        paths = outside(checkpoint.files, kind=self.kind, vocabulary=self.vocabulary, chat_template=self.chat_template)
        return tuple(map(small_input, paths))

    def exists(self, checkpoint: Checkpoint) -> bool:
        """Whether there is one, whole or broken: files of it, or a folder with gpt-oss's vocabulary is named."""
        harmony = checkpoint.config.get("model_type") == "gpt_oss" or self.encoding == "o200k_harmony"
        named = [self.vocabulary, *map(os.environ.get, VARIABLES)] if self.kind in ("auto", "tiktoken") else []
        return self._files(checkpoint) or (harmony and any(named))

    def ends(self, checkpoint: Checkpoint) -> tuple[int, ...]:
        """Ids that end a generation by generation_config.json and config.json: what is known without a tokenizer.

        Raises:
            SourceError: they say something else than ids, or ids that the model does not know.
        """
        return TokenizerSettings.read(Companions(checkpoint.files, checkpoint.origin), checkpoint.config).ends

    def _files(self, checkpoint: Checkpoint) -> bool:
        kinds = tuple(LOOKED_FOR) if self.kind == "auto" else (self.kind,)
        return any(Companions(checkpoint.files).match(LOOKED_FOR[kind]) for kind in kinds)

    def load(self, checkpoint: Checkpoint) -> Tokenizer:
        """
        Raises:
            SourceError: the checkpoint has no tokenizer, or a malformed one; files are named.
            ConfigError: an option that does not exist.
        """
        folder = checkpoint.inputs[0].path.parent if checkpoint.inputs else None
        origin = f"{folder} ({checkpoint.origin})" if folder else checkpoint.origin
        return load_tokenizer(
            checkpoint.files,
            checkpoint.config,
            origin,
            kind=self.kind,
            encoding=self.encoding,
            vocabulary=self.vocabulary,
            chat_template=self.chat_template,
        )
