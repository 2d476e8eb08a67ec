"""The run that tests stop in every way: a model of 86 MB becomes MXFP4 in chunks of a MiB."""

from tests.cases import big_gpt_oss
from tests.cli.run import QUIETLY

SIZES = big_gpt_oss.Sizes(
    layers=2, experts=6, hidden=1024, inter=1088, heads=8, kv_heads=2, head_dim=64, vocab=512
)  # 86 MB
HOW = ["quant=mxfp4", "dask.chunk=1MiB", "dask.workers=2"]
DISTRIBUTED = ["dask=distributed", "dask.dashboard=false"]


def command(source, run, *more):
    return [*QUIETLY, f"model.source={source}", f"paths.run={run}", *HOW, *more]


def partials(target):
    return list(target.parent.glob(f"{target.name}.*.partial"))
