"""Programs that collect runs, each by its own client. What they are told and when, `pipeline.running.tracking` says."""

from pipeline.config.extend import extended

__path__ = extended(__name__, __path__)
