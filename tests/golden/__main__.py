"""`python -m tests.golden [CASE …]` writes digests.json, public.json and the tables of docs/kernels.md and
README.md anew, and says what changed.

Cases are those of `tests.golden.CASES`, `public`, `kernels` and `exports`; none named: all of them.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.golden import CASES, DIGESTS, digests, expected, exports, kernels, public

asked = sys.argv[1:] or ["public", "kernels", "exports", *CASES]
if unknown := set(asked) - {"public", "kernels", "exports", *CASES}:
    sys.exit(f"no such case: {', '.join(sorted(unknown))}; there are public, kernels, exports, {', '.join(CASES)}")
if "public" in asked:
    before, now = public.expected() if public.PUBLIC.exists() else {}, public.now()
    if gone := public.unexplained(before, now):
        sys.exit("public.json is as it was: pipeline/config/moved.py says nothing of\n  " + "\n  ".join(gone))
    public.PUBLIC.write_text(json.dumps(now, indent=1, ensure_ascii=False) + "\n")
    print(f"public: {'unchanged' if before == now else 'CHANGED'}")
if "kernels" in asked:
    text = kernels.PAGE.read_text()
    kernels.PAGE.write_text(kernels.page(text))
    print(f"kernels: {'unchanged' if kernels.page(text) == text else 'CHANGED'}")
if "exports" in asked:
    text = exports.PAGE.read_text()
    now_text = exports.page()
    exports.PAGE.write_text(now_text)
    print(f"exports: {'unchanged' if now_text == text else 'CHANGED'}")
held = expected() if DIGESTS.exists() else {}
for case in CASES:
    if case in asked:
        with TemporaryDirectory() as folder:
            found = digests(case, Path(folder))
        print(f"{case}: {'unchanged' if held.get(case) == found else 'CHANGED'}")
        held[case] = found
DIGESTS.write_text(json.dumps(held, indent=1, sort_keys=True) + "\n")
