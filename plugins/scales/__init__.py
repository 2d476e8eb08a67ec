"""Things whose cost is held against their size (`flow=bench_scale`). What they are asked and when, `stages.bench_scale`
says."""

from pipeline.config.extend import extended

__path__ = extended(__name__, __path__)
