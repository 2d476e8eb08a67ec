"""Which examples an update takes is a function of its number."""

import numpy as np
import pytest

from pipeline.training import indices, order


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 16, 17, 1000, 4097])
def test_an_epoch_has_every_example_once(n: int) -> None:
    np.testing.assert_array_equal(np.sort(order(0, 0, n)), np.arange(n))


def test_epochs_and_seeds_differ_and_repeat() -> None:
    base = order(0, 0, 100)
    np.testing.assert_array_equal(base, order(0, 0, 100))
    for other in (order(0, 1, 100), order(1, 0, 100)):
        assert (base != other).mean() > 0.9


def test_small_orders_come_about_equally_often() -> None:
    """All 24 orders of four examples: chi-squared with 23 degrees of freedom, 49.7 in one of a thousand seeds."""
    draws = 4800
    _, counts = np.unique([order(s, 0, 4) for s in range(draws)], axis=0, return_counts=True)
    assert len(counts) == 24
    assert ((counts - draws / 24) ** 2 / (draws / 24)).sum() < 49.7


def test_a_part_of_an_epoch_is_worked_out_alone() -> None:
    places = np.array([7, 0, 99, 3])
    np.testing.assert_array_equal(order(5, 2, 100, places), order(5, 2, 100)[places])
    far = order(0, 0, 10**15, np.array([0, 10**15 - 1]))  # nobody could hold all of these
    assert far.dtype == np.int64
    assert (far >= 0).all()
    assert (far < 10**15).all()


@pytest.mark.parametrize("batch", [1, 3, 7, 10, 23])
def test_updates_go_through_epochs_without_a_gap(batch: int) -> None:
    """Whatever the batch; also one that is larger than an epoch."""
    n, epochs = 10, 7
    taken = np.concatenate([indices(3, step, batch, n) for step in range(-(-n * epochs // batch))])
    np.testing.assert_array_equal(taken[: n * epochs], np.concatenate([order(3, e, n) for e in range(epochs)]))


def test_no_examples_are_no_order() -> None:
    with pytest.raises(ValueError, match="at least one"):
        order(0, 0, 0)
