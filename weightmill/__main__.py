"""`python -m weightmill`, and the command `weightmill`: `python -m pipeline`, in any folder."""

import gc
from typing import NoReturn


def main() -> NoReturn:
    """See `pipeline.__main__`."""
    gc.disable()  # what is imported and composed stays: looking through it for garbage takes a tenth of a start
    from pipeline.__main__ import main as pipelines

    pipelines()


if __name__ == "__main__":
    main()
