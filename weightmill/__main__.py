"""`python -m weightmill`, and the command `weightmill`: `python -m pipeline`, in any folder."""

import gc
import sys
from typing import NoReturn


def main() -> NoReturn:
    """See `pipeline.__main__`."""
    from pipeline import huge_pages

    huge_pages.begin_anew(sys.argv[1:])
    gc.disable()  # what is imported and composed stays: looking through it for garbage takes a tenth of a start
    from pipeline.running import process

    process.commanded(sys.argv[1:])
    from pipeline.__main__ import main as pipelines

    pipelines()


if __name__ == "__main__":
    main()
