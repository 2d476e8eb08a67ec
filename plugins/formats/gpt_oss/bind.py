"""Binding the gpt-oss table to concrete leaves: what both dialects share, in both directions.

A naming says where a tensor lies (`parts`); everything else (which leaves must exist, their shapes and dtypes, what is
left over, what cannot be expressed) follows from the table and is worked out here. Nothing is read.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Protocol

from pipeline.errors import MOST_HINTS, Problem, did_you_mean, strangers
from pipeline.tensors.binding import Bound, Part
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.views import stored_leaves
from plugins.facts.dtypes import TORCH
from plugins.formats.common.sizes import Sizes
from plugins.formats.gpt_oss.table import Entry, entries

PLAIN_DTYPES = tuple(TORCH)


class Naming(Protocol):
    """Where a tensor lies."""

    def parts(self, entry: Entry, scheme: Scheme | None) -> tuple[Part, ...]: ...


def bind(
    naming: Naming, sizes: Sizes, leaves: Mapping[str, TensorSpec], ignored: Mapping[str, str]
) -> tuple[dict[str, Bound], list[Problem]]:
    """The logical tensors that `leaves` hold, and everything that is wrong with the leaves.

    An expert matrix is taken for MXFP4 when any of its packed leaves is there, else for plain.
    """
    problems: list[Problem] = []
    tensors: dict[str, Bound] = {}
    for entry in entries(sizes):
        parts, scheme = naming.parts(entry, None), None
        if entry.packs:
            packed = naming.parts(entry, MXFP4)
            found = [p.leaf for p in packed if p.leaf in leaves]
            if found and parts[0].leaf in leaves:
                twice = f"stored twice, plain and as {', '.join(found)}; one of them must go"
                problems.append(Problem(parts[0].leaf, twice))
            if found and (reason := MXFP4.problem(entry.shape)):
                problems += [Problem(leaf, f"config.json does not allow MXFP4 here: {reason}") for leaf in found]
                continue
            if found:
                parts, scheme = packed, MXFP4
        leaf = leaves.get(parts[0].leaf)
        dtype = leaf.dtype if scheme is None and leaf is not None and leaf.dtype in PLAIN_DTYPES else "BF16"
        tensors[entry.logical] = Bound(TensorSpec(entry.shape, dtype, scheme), parts)

    wanted = stored_leaves(tensors)
    for name, want in wanted.items():
        problems += _leaf_problems(name, leaves.get(name), want)
    known = wanted.keys() | ignored.keys() | {p.where for p in problems}
    problems += _unknown(sizes, [n for n in leaves if n not in known], wanted, leaves)
    return tensors, problems


def express(
    naming: Naming, sizes: Sizes, specs: Mapping[str, TensorSpec]
) -> tuple[dict[str, Bound], dict[str, Scheme | None], list[Problem]]:
    """Parts for the logical `specs`, in the table's order; each expert matrix's scheme; what cannot be expressed."""
    problems: list[Problem] = []
    tensors: dict[str, Bound] = {}
    schemes: dict[str, Scheme | None] = {}
    table = list(entries(sizes))
    for entry in table:
        spec = specs.get(entry.logical)
        if spec is None:
            problems.append(Problem(entry.logical, f"missing; gpt-oss has it, of shape {list(entry.shape)}"))
            continue
        own = _spec_problems(entry, spec)
        problems += own
        if not own:
            tensors[entry.logical] = Bound(spec, naming.parts(entry, spec.scheme))
        if entry.packs:
            schemes[entry.logical] = spec.scheme
    names = dict.fromkeys(e.logical for e in table)
    problems += strangers((n for n in specs if n not in names), names, "gpt-oss has no such tensor")
    return tensors, schemes, problems


def _leaf_problems(name: str, given: TensorSpec | None, want: TensorSpec) -> Iterable[Problem]:
    """What is wrong with one leaf; `want` has the given dtype already when that is an allowed one."""
    if given is None:
        yield Problem(name, f"missing; expected {want.dtype} {list(want.shape)}")
        return
    if given.shape != want.shape:
        yield Problem(name, f"has shape {list(given.shape)}, config.json asks for {list(want.shape)}")
    if given.dtype != want.dtype:
        allowed = "U8" if want.dtype == "U8" else ", ".join(PLAIN_DTYPES)
        yield Problem(name, f"has dtype {given.dtype} (allowed: {allowed})")


def _unknown(
    sizes: Sizes, unknown: list[str], wanted: Mapping[str, TensorSpec], leaves: Mapping[str, TensorSpec]
) -> Iterable[Problem]:
    """Leaves that the table does not account for; a whole surplus of layers is one problem, not hundreds."""
    surplus = [
        n for n in unknown if (m := re.match(r"(?:model\.layers|block)\.(\d{1,9})\.", n)) and int(m[1]) >= sizes.layers
    ]
    if surplus:
        text = (
            f"num_hidden_layers is {sizes.layers}, but {len(surplus)} leaves are of later layers, such as {surplus[0]}"
        )
        yield Problem("config.json", text)
    missing = [n for n in wanted if n not in leaves]
    later = set(surplus)
    for i, name in enumerate(n for n in unknown if n not in later):
        hint = did_you_mean(name, missing or wanted) if i < MOST_HINTS else ""
        yield Problem(name, f"unknown leaf, {leaves[name].dtype} {list(leaves[name].shape)}{hint}")


def _spec_problems(entry: Entry, spec: TensorSpec) -> Iterable[Problem]:
    """What keeps one logical tensor from being written."""
    problems = []
    if spec.shape != entry.shape:
        text = f"has shape {list(spec.shape)}, config.json asks for {list(entry.shape)} ({entry.dims})"
        problems.append(Problem(entry.logical, text))
    if spec.scheme is None and spec.dtype not in PLAIN_DTYPES:
        problems.append(Problem(entry.logical, f"has dtype {spec.dtype} (allowed: {', '.join(PLAIN_DTYPES)})"))
    if spec.scheme is not None and not entry.packs:
        text = f"is quantized ({spec.encoding}); gpt-oss can only hold mlp.experts.gate_up_proj and down_proj packed"
        problems.append(Problem(entry.logical, text))
    elif spec.scheme is not None and spec.scheme != MXFP4:
        mxfp4 = TensorSpec(spec.shape, spec.dtype, MXFP4).encoding
        text = f"is quantized as {spec.encoding}; gpt-oss knows no packing but MXFP4 ({mxfp4})"
        problems.append(Problem(entry.logical, text))
    elif spec.scheme is not None and (reason := MXFP4.problem(spec.shape)):
        problems.append(Problem(entry.logical, f"cannot be MXFP4: {reason}"))
    return problems
