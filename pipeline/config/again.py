"""A run's config once more, from the `config.yaml` that it left: no defaults and no folders of YAML are asked, so what
is built is what was, whatever they say by now.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from pipeline import redact
from pipeline.config.options import allowed_packages
from pipeline.config.resolve import Resolver
from pipeline.config.spine import RunConfig, Spine
from pipeline.errors import ConfigError, PlanError, Problem

_BY_NAME = re.compile(r"\$\{oc\.env:([^{},]+)(?:,([^{}]*))?\}")


Change = Callable[[str, str], str]
"""(dotted place, text) → text."""


def again(
    tree: Mapping[str, Any], changed: Callable[[str], str] = lambda text: text,
    literal: Callable[[str, str], bool] = lambda where, text: False,
) -> RunConfig:  # fmt: skip
    """The run of a resolved config; nobody is told of it (`tracker`).

    Args:
        changed: what a text of it is to be, as places that are others now.
        literal: whether the text at a dotted place, `stages.generate.prompt`, is what was typed, whatever is in it.

    Raises:
        ConfigError: what it says by name is not set, or was left out of it, or it is of an earlier version.
    """
    given = _each(
        {key: tree[key] for key in tree if key in (*Spine.__dataclass_fields__, "stages")},
        lambda where, text: changed(text),
    )
    if not isinstance(given.get("stages"), Mapping) or not given["stages"]:
        raise ConfigError("config.yaml: has no stages")
    problems: list[Problem] = []

    def checked(where: str, text: str) -> str:
        if not literal(where, text) and (why := _lost(text)):
            problems.append(Problem(where, why))
        return text

    _each(given, checked)
    if problems:
        raise PlanError(problems, exit_code=ConfigError.exit_code)
    learned: dict[str, str] = {}
    values = _each(given, lambda where, text: text if literal(where, text) else _followed(text, learned))
    redact.learn(learned)
    resolver = Resolver(allowed_packages())
    spine = resolver.typed({k: v for k, v in values.items() if k != "stages"}, Spine, "config")
    stages = {name: resolver.build(node, f"stages.{name}") for name, node in values["stages"].items()}
    if resolver.problems:
        raise PlanError(resolver.problems, exit_code=ConfigError.exit_code)
    nodes = {name: redact.identified(given["stages"][name], node) for name, node in values["stages"].items()}
    return RunConfig(spine, stages, nodes, {**tree, **given})


def _lost(text: str) -> str:
    """Why a text of a record is not what was used; empty where it is."""
    if redact.HIDDEN in text and "://" in text:
        return f"{text}: has credentials that records leave out; given as ${{oc.env:NAME}} they can be found again"
    if "${" in _BY_NAME.sub("", text):
        return f"{text}: was computed with what came from the environment, and its record does not say what it came to"
    return ""


def _followed(text: str, learned: dict[str, str]) -> str:
    """The text with variables in the places of their names.

    Raises:
        ConfigError: one is not set.
    """

    def value(match: re.Match[str]) -> str:
        name, default = match[1].strip(), match[2]
        try:
            found = oc.env(name) if default is None else oc.env(name, default)
        except (KeyError, OmegaConfBaseException):
            raise ConfigError(f"the run took {name} from the environment, and it is not set") from None
        learned[name] = str(found)
        return str(found)

    return _BY_NAME.sub(value, text)


def _each(value: Any, change: Change, at: str = "") -> Any:
    if isinstance(value, str):
        return change(at, value)
    if isinstance(value, Mapping):
        return {key: _each(item, change, f"{at}.{key}".lstrip(".")) for key, item in value.items()}
    return [_each(item, change, f"{at}[{i}]") for i, item in enumerate(value)] if isinstance(value, list) else value
