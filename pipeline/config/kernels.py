"""`kernels` in a config: a short map from op to backends, of which `${kernels.OP}` makes a `Kernel`."""

from collections.abc import Collection, Mapping
from typing import Any

from pipeline import backends
from pipeline.config import moved
from pipeline.errors import ConfigError, Problem, did_you_mean


def nodes(given: Any, packages: Collection[str]) -> tuple[dict[str, Any], list[Problem]]:
    """`kernels` as what a reference to it is to find, fields of `pipeline.ops.Kernel`; and a problem for each bad line.

    Args:
        given: op → names of backends, or one name.
        packages: that dotted names of backends may begin with.
    """
    if not isinstance(given, Mapping):
        return {}, [Problem("kernels", f"a map from op to backends is expected, got {given!r}")]
    found, problems = {}, []
    for op, names in given.items():
        try:
            chosen = _checked(str(op), [names] if isinstance(names, str) else names, packages)
        except ConfigError as why:
            problems.append(Problem(f"kernels.{op}", str(why)))
            chosen = [backends.DEFINITION]  # so that nothing else is said about it
        found[str(op)] = {"op": str(op), "backends": chosen}
    return found, problems


def _checked(op: str, names: Any, packages: Collection[str]) -> list[str]:
    if isinstance(names, Mapping):
        raise ConfigError(moved.kernel(op, ", ".join(map(str, names.get("backends") or ["…"]))))
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise ConfigError(f"a list of backends is expected, such as [xla, reference], got {names!r}")
    for name in names:
        top = name.partition(".")[0]
        if "." in name and top not in packages:
            raise ConfigError(f"{name!r} is outside the packages a config may name{did_you_mean(top, packages)}")
    backends.check(op, tuple(names))
    return names
