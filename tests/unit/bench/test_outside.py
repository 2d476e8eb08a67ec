"""Time outside kernels: what no handler covers, however their calls overlap."""

import pytest

from plugins.bench.outside import outside_of


def event(start: float, seconds: float, name: str = "ffi_call.3") -> dict[str, object]:
    return {"ph": "X", "name": name, "ts": 1e6 * start, "dur": 1e6 * seconds}


def test_calls_that_overlap_count_once():
    """Of the last 10 seconds 7 are covered: 12-15, 14-17 on another thread, 18-20. A call before does not count."""
    events = [
        event(1, 5),
        event(12, 3),
        event(14, 3),
        event(18, 2),
        event(10, 10, "fusion"),
        {"ph": "M", "name": "ffi_call"},
    ]
    assert outside_of(events, 10.0, 2) == (pytest.approx(1.5), 1.5)


def test_a_call_that_began_before_counts_from_there():
    assert outside_of([event(0, 4), event(9, 1)], 8.0, 1) == (pytest.approx(5.0), 2.0)


def test_no_kernel_is_all_outside():
    assert outside_of([event(0, 4, "dot")], 8.0, 4) == (2.0, 0.0)
