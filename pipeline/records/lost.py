"""What quantizing lost, as a manifest tells it, in figures."""

from collections.abc import Mapping
from typing import Any

from pipeline.figures import Figure
from pipeline.tensors.stats import ErrorStats


def stats_of(row: Mapping[str, Any]) -> ErrorStats:
    """Of a tensor or a group, a row of a manifest."""
    return ErrorStats(row["count"], row["max_abs"], row["sq_error"], row["sq_signal"])


def total(manifest: Mapping[str, Any]) -> ErrorStats:
    """Of all tensors that were measured."""
    rows = [row for row in manifest.get("tensors") or () if isinstance(row, Mapping)]
    return sum((stats_of(row) for row in rows), ErrorStats())


def error_figures(lost: ErrorStats) -> dict[str, Figure]:
    """For lists and comparisons."""
    return {
        "max abs": Figure(lost.max_abs, form=".3g", better="lower"),
        "RMSE": Figure(lost.rmse, form=".3g", better="lower"),
        "SQNR": Figure(lost.sqnr_db, "dB", ".2f", better="higher"),
    }
