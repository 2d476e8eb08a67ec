"""Data sets to train on: texts, chats, tables and images, as nodes (`pipeline.training.Dataset`). NumPy only.

A file is read as a stream, and what is made of it (tokens, numbers) is kept in files that are mapped into memory, so
that data may be larger than memory. Nothing is downloaded.
"""

from pipeline.config.extend import extended

__path__ = extended(__name__, __path__)
