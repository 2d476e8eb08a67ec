"""`python -m tests.golden` writes digests.json anew, and says which cases changed."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.golden import CASES, DIGESTS, digests, expected

before = expected() if DIGESTS.exists() else {}
now = {}
for case in CASES:
    with TemporaryDirectory() as folder:
        now[case] = digests(case, Path(folder))
    print(f"{case}: {'unchanged' if before.get(case) == now[case] else 'CHANGED'}")
DIGESTS.write_text(json.dumps(now, indent=1, sort_keys=True) + "\n")
