"""Things that grow, in a folder of a user's own: one is linear, and one, which looks at all pairs, is not."""

from pathlib import Path

MODULE = """
import time
from dataclasses import dataclass, field

SIZES = (200, 400, 800, 1600)


@dataclass(frozen=True)
class Fake:
    expected: dict = field(default_factory=lambda: {"cost": 1})
    pairs: bool = False
    dies: int = 0
    disk: int = 0
    slow_s: float = 0.0
    more: str = ""

    label = "things"
    points = SIZES
    units = {"cost": "s"}

    def show(self, size):
        return f"{size:,}"

    def host_nbytes(self, size):
        return 64 << 20

    def disk_nbytes(self, size):
        return self.disk

    def prepare(self, size, folder):
        (folder / "things").write_text("x" * size)

    def measure(self, size, folder, threads):
        if size == self.dies:
            raise MemoryError("no more")
        time.sleep(self.slow_s)
        things = (folder / "things").read_text()
        # Counted, as a clock tells how busy the machine is.
        looked = sum(len(things if self.pairs else range(1000)) for _ in things)
        return {"cost": looked / 1e9, **({self.more: 1.0} if self.more else {})}
"""
TARGET = "plugins.scales.fake.Fake"
FIELDS = {
    "linear": "pairs: false\nslow_s: 0.0", "pairs": "pairs: true", "dies": "dies: 1600",
    "large": "disk: 1000000000000000", "more": "more: heat",
}  # fmt: skip


def written(folder: Path) -> Path:
    """The YAML of all of them in `folder`; their module is `{"plugins.scales.fake": MODULE}` of a guest."""
    (folder / "scales").mkdir(parents=True)
    for name, fields in FIELDS.items():
        text = f"# @package scales.{name}\n# Something that grows.\n_target_: {TARGET}\n{fields}\n"
        (folder / "scales" / f"{name}.yaml").write_text(text)
    return folder
