"""Engines that `flow=bench` measures, each by its own package. What they are asked and when, `stages.bench` says."""

from pipeline.config.extend import extended

__path__ = extended(__name__, __path__)
