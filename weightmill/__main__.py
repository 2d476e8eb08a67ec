"""`python -m weightmill`, and the command `weightmill`: `python -m pipeline`, in any folder."""

import sys
from typing import NoReturn


def main() -> NoReturn:
    """See `pipeline.__main__`."""
    from pipeline.beginning import begin

    begin(sys.argv[1:])
    from pipeline.__main__ import main as pipelines

    pipelines()


if __name__ == "__main__":
    main()
