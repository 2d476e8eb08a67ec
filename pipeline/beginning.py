"""What a command of ours does before it imports what composes configs: `python -m pipeline` and `weightmill` alike.

Nothing is imported here before it is needed: a command may begin anew, or be about runs only.
"""

import gc
from collections.abc import Sequence

from pipeline import huge_pages


def begin(words: Sequence[str]) -> None:
    """Returns in this process if `words` are for Hydra; does what they ask for, and ends, if they are about runs."""
    huge_pages.begin_anew(words)
    if huge_pages.converts(words):
        from pipeline import arenas

        arenas.one_for_all()
    gc.disable()  # what is imported and composed stays: looking through it for garbage takes a tenth of a start
    from pipeline import importing

    importing.quickly()
    from pipeline.running import process

    process.commanded(words)
    with importing.without("attr"):  # classes of attrs are configs to OmegaConf, and none of ours
        import omegaconf  # noqa: F401
