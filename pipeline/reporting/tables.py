"""What is shown of a run: tables for the console, made of its record."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.errors import short, shown
from pipeline.figures import Figure, cell
from pipeline.records.gains import ends, mean_shares, steps_of, worst_first
from pipeline.records.lost import stats_of
from pipeline.reporting import unused
from pipeline.reporting.manifest import Report
from pipeline.reporting.sizes import against_bf16, against_source
from pipeline.tables import table, unbroken
from pipeline.tensors.spec import group_of
from pipeline.terminal import line, safe
from pipeline.units import show_bytes, show_seconds

AS_NUMBER = re.compile(r"[+−-]?\d[\d,.]*(e[+-]?\d+)?×?( ?[KMGT]?i?B|%| %)?( ± [\d.,]+ ?%?)?\*?|–?")
FEW = 4  # tensors whose outputs lose most
MOST_SHOWN, WIDEST = 12, 100  # lines and characters of one result on the console; the manifest has all


def tables(report: Report, *, seen: bool = False) -> list[Any]:
    """What `console.out` takes: stages, errors by group, results, and one line of summary. Where a result has its own,
    that was asked for, and not what each stage took.

    Args:
        seen: what stages stream stands there already, above.
    """
    stages = []
    for row in report.stages:
        taken, given, seconds = row["nbytes_in"] or row["nbytes_out"], row["nbytes_out"], row["seconds"]
        rate = f"{show_bytes(max(taken, given) / seconds)}/s" if seconds > 1e-6 and given else "–"
        sizes = (show_bytes(n) if given else "–" for n in (taken, given))  # a model that runs passes nothing on
        stages.append((line(row["name"]), row["tensors"], *sizes, f"{seconds:.2f} s", rate))
    verdicts = [str(v["summary"]) for v in report.results.values() if isinstance(v, Mapping) and "summary" in v]
    columns: tuple[str, ...] = ("stage", "tensors", "in", "out", "time", "rate")
    found: list[Any] = [] if verdicts else [table("Stages", columns, stages, right=range(1, 6))]
    if report.errors:
        errors: list[Sequence[str]] = []
        for row in report.errors:
            sqnr = "exact" if row["sq_error"] == 0 else f"{stats_of(row).sqnr_db:.2f} dB"
            figures = (f"×{row['tensors']}", f"{row['max_abs']:.3g}", f"{row['rmse']:.3g}", sqnr)
            errors.append((line(row["name"]), line(row.get("encoding", "")), *figures))
        title = "Difference" if verdicts else "Quantization error"
        columns = ("tensors", "as", "", "max abs", "RMSE", "SQNR")
        mixed = len({name for name, *_ in errors}) < len(errors)  # else a scheme is plain from the group
        if not mixed:
            columns, errors = (columns[0], *columns[2:]), [(name, *figures) for name, _, *figures in errors]
        drop = ["max abs", "RMSE"] if mixed else []
        found.append(table(title, columns, errors, right=range(1 + mixed, len(columns)), drop=drop))
    found += _gained_table(report.gains)
    found += [*_nonfinite_table(report.nonfinite), *ignored_table(report.ignored), *_declined_table(report.declined)]
    for name, value in report.results.items():
        came = seen and name not in report.found and not report.reused
        found += _tables_of(value, but_streamed=came) or [_result_table(name, value)]
    found += predicted_table(report.predicted)
    found += unused.lines(report.unused)
    found += _tracked(report.tracked)
    if verdicts:
        return [*found, *verdicts]
    found += [f"{name}: {text}" for name, text in report.chosen.items()]
    found += [f"{name}: from an earlier run: {unbroken(where)}" for name, where in report.found.items()]
    reused, chunks = report.chunks["reused"], report.chunks["all"]
    again = f", {reused} of {chunks} chunks from before" if reused else ""
    against = against_source(report.nbytes_source, report.nbytes_bf16, report.nbytes_out)
    change = against or against_bf16(report.ratio)
    source = f"{show_bytes(report.nbytes_source)} in the source, " if against else ""
    found.append(
        f"{source}{show_bytes(report.nbytes_bf16)} as bf16 → {show_bytes(report.nbytes_out)} ({change}, "
        f"{report.bits_per_weight:.3f} bits a weight), "
        f"{report.seconds:.2f} s{again}"
    )
    return found


def _gained_table(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """What is lost of outputs after each step: of the tensors that lose most in the end, and on average."""
    if not rows:
        return []
    steps, mean = steps_of(rows), mean_shares(rows)
    lines = []
    for row, gain in worst_first(rows)[:FEW]:
        shares = gain.shares
        cells = (_percent(shares[step]) if step in shares else "–" for step in steps)
        lines.append((line(row["name"]), *cells, _change(*ends(gain))))
    each = [*mean.values()]
    lines.append((f"mean of {len(rows)}", *map(_percent, each), _change(each[0], each[-1])))
    columns = ("tensor", *map(line, steps), "change")
    return [table("Lost of outputs, step by step", columns, lines, right=range(1, len(columns)))]


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _change(first: float, last: float) -> str:
    return f"{100 * (last / first - 1):+z.0f} %" if first else "–"


def _tracked(said: Mapping[str, str]) -> list[str]:
    """Where a tracker was told of the run, and how much of it."""
    if "place" not in said:
        return []
    told = said.get("told") or ("" if said.get("run") else "nothing")
    missing = f"; not told: {said['missing']}; the same command tells it later" if "missing" in said else ""
    return [f"tracked: {said['place']}{': ' * bool(told)}{told}{missing}"]


def predicted_table(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """How far off the plan was."""
    lines = []
    for row in rows:
        show = show_bytes if row["unit"] == "bytes" else show_seconds
        planned = show(row["planned"]) if row["planned"] is not None else "no rate measured yet"
        off = f"{100 * (row['measured'] / row['planned'] - 1):+z.0f} %" if row["planned"] else "–"
        lines.append((row["what"], planned, show(row["measured"]), off))
    return [table("Planned and measured", ("", "planned", "measured", "off"), lines, right=(1, 2, 3))] if lines else []


def ignored_table(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """What was left out and why: the same of many layers as one line, and not more lines than can be read."""
    groups = Counter((r["stage"], group_of(r["tensor"]), r["reason"]) for r in rows)
    lines = [(stage, tensor, f"×{n}", reason) for (stage, tensor, reason), n in groups.items()]
    return _capped_table("Left out", ("by", "tensors", "", "because"), lines)


def _nonfinite_table(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """What no model computes with, and was in the source, or was asked for."""
    lines = [(r["name"], r["encoding"], f"{r['count']:,}") for r in rows]
    return _capped_table("Warning: NaN or infinities, written as they are", ("tensor", "as", ""), lines)


def _declined_table(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """What chosen backends could not do."""
    lines = [(r["op"], r["backend"], f"×{r['times']}", r["reason"], r["ran"]) for r in rows]
    return _capped_table("Kernels that declined", ("op", "backend", "", "because", "ran instead"), lines)


def _capped_table(title: str, columns: Sequence[str], lines: Sequence[tuple[str, ...]]) -> list[Any]:
    if not lines:
        return []
    rows: list[Sequence[str]] = [tuple(map(line, row)) for row in lines[:MOST_SHOWN]]
    rows += [(rest,) for rest in shown([], len(lines), MOST_SHOWN)]
    return [table(title, columns, rows, right=[i for i, c in enumerate(columns) if not c])]


def _tables_of(value: Any, *, but_streamed: bool = False) -> list[Any]:
    """The tables that a result brings along; one of names and paths as lines, in which paths are whole."""
    found: list[Any] = []
    for given in value.get("tables", ()) if isinstance(value, Mapping) else ():
        if isinstance(given, Mapping) and {"title", "columns", "rows"} <= set(given):
            columns, rows = [str(c) for c in given["columns"]], [[cell(c) for c in row] for row in given["rows"]]
            if but_streamed and given.get("streamed"):
                continue
            if not columns:  # lines; one in quotes is to be copied, and stays whole
                found += [unbroken(row[0]) if str(row[0]).startswith("'") else str(row[0]) for row in rows]
                continue
            if not any(columns) and all(str(row[-1]).startswith("/") for row in rows):
                found += [f"{row[0]}: {unbroken(row[-1])}" for row in rows]
                continue
            numeric = [i for i in range(len(columns)) if columns[i] and _are_numbers([row[i] for row in rows])]
            found.append(table(str(given["title"]), columns, rows, right=numeric))
    return found


def _are_numbers(given: Sequence[Any]) -> bool:
    """Whether a column has figures, or what reads as one: `3.54`, `0.1 ± 5%`, `21*`, `90.6 MiB`, `–` where there is
    none."""
    said = [c for c in given if isinstance(c, Figure) or c not in ("", "–")]
    return bool(said) and all(isinstance(c, Figure) or AS_NUMBER.fullmatch(str(c)) for c in said)


def _result_table(name: str, value: Any) -> Any:
    """A stage's result: a line for each of its fields or items, but for its summary, which ends what is shown."""
    if isinstance(value, dict):
        value = {k: v for k, v in value.items() if k != "summary"}
    rows = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else [("", value)]
    pairs = list(rows)
    lines = []
    for key, item in pairs[:MOST_SHOWN]:
        text = safe(item if isinstance(item, str) else json.dumps(item, ensure_ascii=False))
        lines.append((line(str(key)), short(text, WIDEST)))
    lines += [(rest, "in manifest.json") for rest in shown([], len(pairs), MOST_SHOWN)]
    return table(f"Result of {name}", ("", ""), lines)
