"""The grammar: config, plan, graph and runner; it imports no stage and no plugin.

`run`, `plan`, `sweep`, `runs` and `load_model` are the command line as functions; see `pipeline.api`.
"""

from pipeline.config import extend as extend  # isort: skip  # first of all: where `stages` and `plugins` come from
from pipeline import report
from pipeline.api import load_model, plan, run, runs, sweep

__all__ = ["load_model", "plan", "report", "run", "runs", "sweep"]
