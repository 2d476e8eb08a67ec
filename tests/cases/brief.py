"""Which cases of a grid `make test` runs: the others say again what these say, and are for `make test-all`.

A test that repeats altogether has `@pytest.mark.repeats`. A grid has `@pytest.mark.brief(…)`, which leaves in

* `brief()`: every value of every parameter, in as few cases as that takes;
* `brief(n)`: the first `n` cases;
* `brief("id", …)`: those by their ids, what stands in the brackets;
* `brief(each=("isa", "scheme"))`: every pair (triple, …) of values of these parameters once, and of the others another
  value each time; or whatever a function makes of all parameters, as `each=lambda call: call["case"].name`, once;
* `brief(when=lambda scheme, rows: …)`: those of which it is so; more than one of these: what any leaves in.

All others become `repeats`. Where pytest is called by itself, all of them run. Tests that make their cases as they run
ask the fixture `thorough`. A marker that has gone stale is an error: one that names a case or a parameter that there is
none of, asks for more cases than there are, leaves none in, or is of a test without cases.
"""

import inspect
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

import pytest

from pipeline.errors import did_you_mean

ARGUMENTS = {"each", "when"}


def mark(items: Iterable[pytest.Item]) -> None:
    """Make `repeats` of what `brief` leaves out.

    Raises:
        pytest.UsageError: a marker names cases or parameters that there are none of.
    """
    grids: dict[tuple[str, str], list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("brief"):
            if not hasattr(item, "callspec"):
                raise pytest.UsageError(f"{_name(item)}: brief chooses among cases, of which this has none")
            assert item.parent is not None
            grids[item.parent.nodeid, item.originalname].append(item)
    for cases in grids.values():
        asked, *more = cases[0].iter_markers("brief")
        if more:
            raise pytest.UsageError(f"{_name(cases[0])}: brief is there twice; one with all its arguments says it")
        left_in = _left_in(cases, asked)
        for at, item in enumerate(cases):
            if at not in left_in:
                item.add_marker("repeats")


def _name(case: pytest.Function) -> str:
    return f"{case.location[0]}::{case.originalname}"


def _left_in(cases: Sequence[pytest.Function], asked: pytest.Mark) -> set[int]:
    where = f"{_name(cases[0])}: brief"
    chosen = any(arg.endswith("]") for arg in cases[0].config.args)  # on the command line, and the others are not here
    if unknown := set(asked.kwargs) - ARGUMENTS:
        raise pytest.UsageError(f"{where} knows {', '.join(sorted(ARGUMENTS))}, and no {', '.join(sorted(unknown))}")
    if not asked.args and not asked.kwargs:
        return _every_value([_values(case) for case in cases])
    found: set[int] = set()
    if numbers := [a for a in asked.args if isinstance(a, int)]:
        if max(numbers) > len(cases) and not chosen:
            raise pytest.UsageError(f"{where}({max(numbers)}) asks for more than the {len(cases)} cases that there are")
        found |= set(range(max(numbers)))
    if ids := {a for a in asked.args if isinstance(a, str)}:
        found |= {at for at, case in enumerate(cases) if case.callspec.id in ids}
        known = [case.callspec.id for case in cases]
        if (missing := sorted(ids - {*known})) and not chosen:
            near = did_you_mean(missing[0], known)
            raise pytest.UsageError(f"{where} names {', '.join(missing)}, of which there is no case{near}")
    if names := asked.kwargs.get("each"):
        found |= _each(cases, names, where)
    if when := asked.kwargs.get("when"):
        found |= {at for at, case in enumerate(cases) if _asked(when, case.callspec.params, where)}
    if not found and not chosen:
        raise pytest.UsageError(f"{where} leaves in none of {len(cases)} cases; what repeats altogether is `repeats`")
    return found


def _values(case: pytest.Function) -> dict[str, Hashable]:
    """The value of each parameter; what cannot be hashed is known by where it is."""
    return {name: v if isinstance(v, Hashable) else id(v) for name, v in case.callspec.params.items()}


def _every_value(cases: Sequence[Mapping[str, Hashable]]) -> set[int]:
    missing = {pair for case in cases for pair in case.items()}
    found = set()
    while missing:
        best = max(range(len(cases)), key=lambda at: (len(missing & set(cases[at].items())), -at))
        found.add(best)
        missing -= set(cases[best].items())
    return found


def _each(
    cases: Sequence[pytest.Function], asked: Sequence[str] | Callable[[Mapping[str, object]], Hashable], where: str
) -> set[int]:
    alike: dict[Hashable, list[int]] = defaultdict(list)
    for at, case in enumerate(cases):
        if callable(asked):
            alike[asked(case.callspec.params)].append(at)
            continue
        values = _values(case)
        if not (present := [name for name in asked if name in values]):
            raise pytest.UsageError(f"{where}(each=…): parameters are {', '.join(values)}, none of {', '.join(asked)}")
        alike[tuple(values[name] for name in present)].append(at)
    return {some[turn % len(some)] for turn, some in enumerate(alike.values())}


def _asked(when: Callable[..., bool], params: Mapping[str, object], where: str) -> bool:
    names = list(inspect.signature(when).parameters)
    if lacking := [name for name in names if name not in params]:
        raise pytest.UsageError(f"{where}(when=…): parameters are {', '.join(params)}, not {', '.join(lacking)}")
    return bool(when(**{name: params[name] for name in names}))
