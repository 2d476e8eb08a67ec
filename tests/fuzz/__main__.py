"""`python -m tests.fuzz [--minutes M | --inputs N] [--begin B] [TARGET…]`: `make fuzz`."""

import argparse
import os
import sys
from pathlib import Path

from tests.fuzz.driver import TARGETS, fuzz, serve


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        serve(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", default=[], metavar="TARGET", help=f"of {', '.join(TARGETS)}; all")
    parser.add_argument("--minutes", type=float, default=1.0, help="for each target (1)")
    parser.add_argument("--inputs", type=int, help="of each target, however long they take")
    parser.add_argument("--begin", type=int, default=0, help="number of the first input (0)")
    parser.add_argument(
        "--saved", type=Path, default=Path("fuzz-findings"), help="folder for inputs that find something"
    )
    args = parser.parse_args()
    if wrong := [t for t in args.targets if t not in TARGETS]:
        parser.error(f"{wrong[0]!r} is no target of {', '.join(TARGETS)}")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    seconds = float("inf") if args.inputs else args.minutes * 60
    found = 0
    for name in args.targets or TARGETS:
        result = fuzz(name, args.inputs, seconds, args.begin, args.saved, lambda line: print(line, flush=True))
        print(result, flush=True)
        found += len(result.findings)
    if found:
        print(f"{found} findings; their inputs are in {args.saved}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
