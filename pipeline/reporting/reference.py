"""What `explain` shows, and the pages of the configuration: options and settings, what is said alike said once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.config import reference
from pipeline.config.reference import Explained, Option, Setting
from pipeline.tables import table


@dataclass(frozen=True)
class Row:
    """A setting as it is shown: once for all options that say the same of it.

    Attributes:
        of: the options that have it, where others of the group have it otherwise or not at all.
    """

    key: str
    default: str
    allowed: str
    says: str
    of: str


def option_rows(group: str) -> list[tuple[str, str]]:
    """(name, what it says) of each option of `group`; that with which a run begins is marked."""
    first = reference.begins_with(group)
    mark = {first.name: " (the default)"} if first else {}
    return [(option.name, option.says + mark.get(option.name, "")) for option in reference.options(group)]


def setting_rows(group: str) -> list[Row]:
    """The settings of a group's options, or of every run where `group` is empty; without those that only hand on what
    is set elsewhere."""
    options = reference.options(group) if group else [reference.spine()]
    return rows([(option, setting) for option in options for setting in option.settings])


def rows(found: Sequence[tuple[Option, Setting]]) -> list[Row]:
    """`found`, in order of their keys; those that hand on what is set elsewhere (`${kernels.matmul}`) are left out."""
    kinds: dict[tuple[str, str, str, str], list[str]] = {}
    order: dict[str, None] = {}
    for option, setting in found:
        if setting.says or not setting.default.startswith("${"):
            order.setdefault(setting.key)
            kinds.setdefault((setting.key, setting.default, setting.allowed, setting.says), []).append(option.name)
    everyone = {option.name for option, _ in found}
    return [
        Row(*kind, "" if {*names} == everyone else ", ".join(dict.fromkeys(names)))
        for key in order
        for kind, names in kinds.items()
        if kind[0] == key
    ]


def groups_table() -> list[Any]:
    """Every group: what it decides, and the option with which a run begins."""
    found = []
    for group in reference.groups():
        first = reference.begins_with(group)
        names = ", ".join(option.name for option in reference.options(group))
        found.append((f"{group}=", first.name if first else "", (first.says if first else "") or names))
    said = "explain GROUP, explain GROUP=OPTION or explain GROUP.SETTING says more"
    return [table("Groups", ("group", "unless chosen", "what it decides"), found), said]


def explained_tables(found: Explained) -> list[Any]:
    """A group with its options, or settings with their defaults and what they may be."""
    groups = {o.group for o in found.options}
    if len(groups) > 1:
        return [table(found.key, ("option", "what it is"), [(o.typed, o.says) for o in found.options])]
    if found.options:
        first = found.chosen.name if found.chosen else None
        said = found.chosen.says if found.chosen else ""
        shown = [("→" if o.name == first else "", o.name, o.says) for o in found.options]
        group = found.options[0].group
        title = f"{group}={f': {said}' if said else ''}"
        arrow = [f"→ {group}={first} unless another is chosen"] if first else []
        return [table(title, ("", "option", "what it is"), shown), *arrow]
    settings = rows(found.settings)
    says = [f"{found.key}: {found.says}"] if found.says else []
    if not settings:
        return says or [f"{found.key}: without settings of its own"]
    keys, kinds = {row.key for row in settings}, {row.allowed for row in settings}
    alike = len(keys) == 1 and len(kinds) == 1  # one setting, said once and above
    title = f"{settings[0].key}: {settings[0].allowed}" if alike and settings[0].allowed else found.key
    columns = {
        "of": [row.of for row in settings],
        "setting": [] if keys == {found.key.lstrip("+~")} else [row.key for row in settings],
        "default": [row.default for row in settings],
        "what it says": [row.says for row in settings],
        "may be": [] if alike else [row.allowed for row in settings],
    }
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    return [*says, table(title, tuple(columns), zip(*columns.values(), strict=True), drop=["may be"])]
