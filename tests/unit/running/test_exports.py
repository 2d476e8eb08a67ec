"""Exports that jobs of one sweep have in common: who holds their lock, and for how long."""

from contextlib import ExitStack

from pipeline.running.exports import Held


def test_a_lock_in_common_is_let_go_of_by_the_last() -> None:
    """A job that let go of it early would wait, when it notes what it made, for one that waits for it."""
    said: list[str] = []
    lock = ExitStack()
    lock.callback(said.append, "let go of")
    held = Held(lock, users=2)
    held.let_go()
    assert (held.users, said) == (1, [])
    held.let_go()
    assert (held.users, said) == (0, ["let go of"])
