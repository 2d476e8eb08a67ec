"""The jobs of a sweep: lists of values that were typed, combined or in step."""

from collections.abc import Sequence
from itertools import product
from typing import Any

from hydra.core.override_parser.types import Override

from pipeline.errors import ConfigError, did_you_mean

ZIP = "zip"  # the setting that names lists which go together


def combined(overrides: Sequence[Override]) -> list[list[str]]:
    """The overrides of every job, in the order in which they were typed; the last list varies fastest.

    Raises:
        ConfigError: a list that cannot be told one by one; `zip` names what has no list, or lists of unequal lengths.
    """
    values: dict[str, list[str]] = {}
    together: list[list[str]] = []
    for override in overrides:
        key = override.get_key_element()
        if key.lstrip("+") == ZIP:
            together += _named_together(override)
        elif not override.is_sweep_override():
            values[key] = [f"{key}={override.get_value_element_as_str()}"]
        elif override.is_discrete_sweep():
            values[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        else:
            raise ConfigError(f"{override.input_line}: lists, range(…), choice(…) and glob(…) are swept")
    lists = {key.lstrip("+"): key for key, several in values.items() if len(several) > 1}
    axes: dict[str, list[dict[str, str]]] = {}
    for names in together:
        for name in names:
            if name not in lists:
                raise ConfigError(
                    f"{ZIP}: {name!r} has no list of values here, or goes with others{did_you_mean(name, lists)}"
                )
        keys = [lists.pop(name) for name in names]
        if len({len(values[k]) for k in keys}) > 1:
            lengths = ", ".join(f"{name} has {len(values[k])} values" for name, k in zip(names, keys, strict=True))
            raise ConfigError(f"{ZIP}: {lengths}; what goes together has equally many")
        steps = zip(*(values[k] for k in keys), strict=True)
        axes |= {keys[0]: [dict(zip(keys, step, strict=True)) for step in steps]} | {k: [{}] for k in keys[1:]}
    choices = [axes.get(key, [{key: value} for value in several]) for key, several in values.items()]
    jobs = [{k: v for part in job for k, v in part.items()} for job in product(*choices)]
    return [[job[key] for key in values] for job in jobs]


def _named_together(override: Override) -> list[list[str]]:
    """What `zip=[a,b]`, or `zip=[[a,b],[c,d]]`, names."""
    given: Any = override.value()
    lists = given if isinstance(given, list) and given and all(isinstance(g, list) for g in given) else [given]
    for names in lists:
        if not isinstance(names, list) or len(names) < 2 or not all(isinstance(n, str) for n in names):
            raise ConfigError(
                f"{override.input_line}: names of at least two lists are expected, such as {ZIP}=[quant,export]"
            )
    return [[n.lstrip("+") for n in names] for names in lists]
