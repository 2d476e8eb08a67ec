"""The grammar: config, plan, graph and run; it imports no stage and no plugin."""

from pipeline import extend as extend  # first of all: it settles where `stages` and `plugins` come from
