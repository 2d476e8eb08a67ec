"""Contract suites for plugin authors, and the tools they are made of.

A suite is a class to subclass in a test file of one's own; pytest finds its tests by inheritance:

    from pipeline.testing.stage import StageContract, stage_of

    class TestPruneSmall(StageContract):
        def stage(self):
            return stage_of("prune_small", "threshold=0.01")

* `pipeline.testing.stage.StageContract`: what every stage promises, whichever of the three kinds it is.
* `pipeline.testing.container.ContainerContract`: bytes in files.
* `pipeline.testing.dialect.DialectContract`: naming and packing.
* `pipeline.testing.method.MethodContract`: quantization methods.
* `pipeline.testing.kernel.KernelContract`: every backend of a codec against its definition, bit for bit.
* `pipeline.testing.model_op.ModelOpContract`: every backend of a model op against its definition, to a few roundings,
  and its gradients against float64.
* `pipeline.testing.tracker.TrackerContract`: programs that collect runs, read back by their own library.
* `pipeline.testing.memory`: checkpoints in memory, random boxes, random tensors of any scheme.
* `pipeline.testing.peak`: peak memory of a command.

Tests import it, and the cases of ops (`plugins/kernels/<op>/cases.py`); only the suites need pytest.
"""

import sys

if "pytest" in sys.modules:
    import pytest

    for _suite in ("stage", "container", "dialect", "method", "kernel", "model_op", "tracker"):
        pytest.register_assert_rewrite(f"{__name__}.{_suite}")
