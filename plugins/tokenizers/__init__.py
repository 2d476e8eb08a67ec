"""Tokenizers: text to ids and back, chats to prompts, by the files that came with a checkpoint."""

from pipeline.config.extend import extended

__path__ = extended(__name__, __path__)
