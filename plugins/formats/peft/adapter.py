"""LoRA adapters in PEFT's files, both ways.

    adapter_config.json          r, lora_alpha, target_modules, target_parameters, …   (peft 0.21, LoraConfig)
    adapter_model.safetensors    base_model.model.<module>.lora_A.weight [r, in], ….lora_B.weight [out, r]

Experts are a parameter of a module and no module: `lora_A` is [E · r, in] and `lora_B` [out, r · E] (tuners/lora/
layer.py, ParamWrapper). Where two parameters of a module have one, the wrapper of the second is around that of the
first, which so goes by `<module>.base_layer`. transformers has the gate and up of Qwen's experts as rows of one
parameter, gate first: of rank 2 r there, whose a are both of theirs, and whose b is zero where they do not meet.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from pipeline.adapters import Layer
from pipeline.digest import InputFile, small_input, stamped
from pipeline.errors import PlanError, Problem, SourceError
from pipeline.files import write_json
from pipeline.strictjson import read_object
from pipeline.tensors.spec import FLOAT_DTYPES, TensorSpec
from plugins.facts.gpt_oss import TURNS
from plugins.formats.safetensors.container import SafeTensors

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
UNKNOWN: Final = ("use_dora", "use_qalora", "use_bdlora", "fan_in_fan_out", "lora_bias", "layer_replication")
_KEY = re.compile(re.escape(PREFIX) + r"(?P<module>.+?)(?P<inner>(?:\.base_layer)*)\.lora_(?P<part>[AB])\.weight")
_OF_EXPERT = re.compile(r"(?P<module>.*\.experts)\.\d+\.(?P<part>gate|up|down)_proj\.weight")
_STACK = re.compile(r"(?P<module>.*\.experts)\.(?P<part>gate_up|down)_proj")


@dataclass(frozen=True)
class Peft:
    """A `pipeline.adapters.AdapterFormat`.

    Attributes:
        base: what `base_model_name_or_path` is to say; null: nothing.
        container: of the weights.
    """

    base: str | None = None
    container: SafeTensors = field(default_factory=lambda: SafeTensors("adapter_model"))

    def problems(self, names: Iterable[tuple[str, ...]]) -> Iterator[Problem]:
        """See `AdapterFormat.problems`. Beside experts that files have one by one PEFT takes an adapter of a gate_proj,
        up_proj or down_proj that is no expert's for one of theirs (utils/transformers_weight_conversion.py)."""
        first = [of[0] for of in names]
        one_by_one = any(_OF_EXPERT.fullmatch(name) for name in first)
        for name in first:
            expert = _OF_EXPERT.fullmatch(name) or _STACK.fullmatch(name)
            if expert is None and not name.endswith(".weight"):
                yield Problem(name, "is a parameter that PEFT has no place for")
            elif expert is None and one_by_one and re.search(r"\.(gate|up|down)_proj\.weight$", name):
                yield Problem(name, "would be taken for an expert's by PEFT; leave it out of targets, or format=null")

    def write(self, folder: Path, layers: Sequence[Layer], *, dropout: float) -> None:
        """See `AdapterFormat.write`. Where experts have adapters the dropout is said to be 0: PEFT refuses others."""
        if problems := list(self.problems(layer.names for layer in layers)):
            raise PlanError(problems)
        parts = list(_parts(layers))
        tensors = {
            f"{PREFIX}{p.module}{'.base_layer' * p.inner}.lora_{which}.weight": np.ascontiguousarray(array, np.float32)
            for p in parts
            for which, array in (("A", p.a), ("B", p.b))
        }
        ranks, alphas = {p.path: p.rank for p in parts}, {p.path: p.alpha for p in parts}
        rank, alpha = _usual(ranks.values()), _usual(alphas.values())
        stacks = [p.path for p in parts if p.parameter]
        said = {
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": self.base, "bias": "none",
            "r": rank, "lora_alpha": alpha, "use_rslora": bool(layers) and layers[0].rslora, "inference_mode": True,
            "lora_dropout": 0.0 if stacks else dropout, "target_modules": [p.path for p in parts if not p.parameter],
            "target_parameters": stacks or None,
            "rank_pattern": {re.escape(n): r for n, r in ranks.items() if r != rank},
            "alpha_pattern": {re.escape(n): a for n, a in alphas.items() if a != alpha},
        }  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        specs = {name: TensorSpec(a.shape, "F32") for name, a in tensors.items()}
        layout = self.container.layout(specs, {}, None)
        self.container.begin(folder, layout)
        for name, array in tensors.items():
            self.container.write(folder, layout, name, (), array)
        self.container.verify(folder, layout)
        write_json(folder / CONFIG, said)

    def inputs(self, folder: Path) -> tuple[InputFile, ...]:
        """See `AdapterFormat.inputs`."""
        folder = _checked(folder)
        return small_input(folder / CONFIG), stamped(folder / WEIGHTS)

    def read(self, folder: Path, specs: Mapping[str, TensorSpec]) -> tuple[Layer, ...]:
        """See `AdapterFormat.read`."""
        config = read_object(_checked(folder) / CONFIG)
        problems = [Problem(f"{CONFIG} {name}", "is not understood") for name in UNKNOWN if config.get(name)]
        if config.get("peft_type") != "LORA":
            problems.append(Problem(f"{CONFIG} peft_type", f"{config.get('peft_type')!r:.80}: LORA is read"))
        if config.get("bias", "none") != "none":
            problems.append(Problem(f"{CONFIG} bias", f"{config['bias']!r:.80}: none is read"))
        store = self.container.open(folder / WEIGHTS)
        found: dict[tuple[str, int], dict[str, Any]] = {}
        for name in store.specs:
            if (match := _KEY.fullmatch(name)) is None:
                problems.append(Problem(name, "is no part of an adapter that is read"))
                continue
            key = match["module"], match["inner"].count(".base_layer")
            if len(store.specs[name].shape) != 2 or store.specs[name].dtype not in FLOAT_DTYPES:
                problems.append(Problem(name, f"{store.specs[name]}: a matrix of floats is needed"))
                continue
            found.setdefault(key, {})[match["part"]] = np.asarray(store.read(name)).astype(np.float32)
        layers: list[Layer] = []
        for (module, _), pair in found.items():
            if pair.keys() != {"A", "B"}:
                problems.append(Problem(module, f"has lora_{''.join(pair)} only"))
                continue
            try:
                layers += _layers(module, pair["A"], pair["B"], config, specs)
            except (ValueError, re.error) as why:
                problems.append(Problem(module, str(why)))
        if problems:
            raise PlanError(problems)
        return tuple(layers)


def _checked(folder: Path) -> Path:
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise SourceError(f"{folder}: has no {name}, so it is no adapter of PEFT's")
    return folder.absolute()


@dataclass(frozen=True, eq=False)
class _Part:
    """What is one wrapper to PEFT. `inner`: of how many others it is inside."""

    module: str
    path: str
    a: Any
    b: Any
    rank: int
    alpha: float
    parameter: bool = False
    inner: int = 0


def _parts(layers: Sequence[Layer]) -> Iterator[_Part]:
    stacks: dict[str, dict[str, Layer]] = {}
    for layer in layers:
        name = layer.names[0]
        if len(layer.a.shape) == 2:
            module = name.removesuffix(".weight")
            yield _Part(module, module, layer.a, layer.b, layer.rank, layer.alpha)
        elif (match := _OF_EXPERT.fullmatch(name) or _STACK.fullmatch(name)) is not None:
            stacks.setdefault(match["module"], {})[match["part"]] = layer
    for module, parts in stacks.items():
        whole = dict(parts)
        if "gate" in parts or "up" in parts:
            first = next(parts[n] for n in ("gate", "up") if n in parts)
            whole["gate_up"] = _fused(first, parts.get("gate"), parts.get("up"))
        order = [n for n in ("gate_up", "down") if n in whole]
        for at, name in enumerate(order):
            one = whole[name]
            experts, rank, _ = one.a.shape
            a, b = one.a.reshape(experts * rank, -1), one.b.reshape(one.b.shape[0], -1)
            path, inner = f"{module}.{name}_proj", len(order) - 1 - at
            yield _Part(module, path, a, b, rank, one.alpha, parameter=True, inner=inner)


def _fused(like: Layer, gate: Layer | None, up: Layer | None) -> Layer:
    """Rows of gate, then rows of up, as one parameter; of the rank of both, and of as large a factor."""
    given = [one for one in (gate, up) if one is not None]
    rows, ranks = like.b.shape[0], [one.rank for one in given]
    a = np.concatenate([one.a for one in given], axis=1)
    b = np.zeros((2 * rows, sum(ranks), like.a.shape[0]), np.float32)
    begin = 0
    for one in given:
        at = 0 if one is gate else rows
        b[at : at + rows, begin : begin + one.rank] = one.b * (one.scale / like.scale)
        begin += one.rank
    alpha = like.scale * (sum(ranks) ** 0.5 if like.rslora else sum(ranks))
    return Layer(like.names, a, b, alpha, like.rslora)


def _layers(module: str, a: Any, b: Any, config: Mapping[str, Any], specs: Mapping[str, TensorSpec]) -> Iterator[Layer]:
    """Raises ValueError: the checkpoint has no such tensor, or it is of another shape."""
    rslora = bool(config.get("use_rslora"))
    if (spec := specs.get(f"{module}.weight")) is not None:
        if (b.shape[0], a.shape[1]) != spec.shape or a.shape[0] != b.shape[1]:
            raise ValueError(f"b {b.shape} and a {a.shape} do not make {spec.shape}")
        yield Layer((f"{module}.weight",), a, b, _value("alpha_pattern", "lora_alpha", module, config), rslora)
        return
    path, tensors = _stacked(module, a.shape[1], b.shape[0], config, specs)
    first = specs[tensors[0][0]]
    experts = first.shape[0] if len(tensors[0]) == 1 else len(tensors[0])
    alpha = _value("alpha_pattern", "lora_alpha", path, config)
    a, b = a.reshape(experts, -1, a.shape[1]), b.reshape(b.shape[0], -1, experts)
    rows = b.shape[0] // len(tensors)
    for at, names in enumerate(tensors):
        yield Layer(names, a, np.ascontiguousarray(b[at * rows : (at + 1) * rows]), alpha, rslora)


def _stacked(
    module: str, n_in: int, n_out: int, config: Mapping[str, Any], specs: Mapping[str, TensorSpec]
) -> tuple[str, list[tuple[str, ...]]]:
    """The parameter of experts that an adapter of these dimensions is for, and the tensors that it is: one stack, or
    those of all experts; of a fused one first those of gate, then those of up."""
    given = config.get("target_parameters")
    targets = [t for t in given if isinstance(t, str)] if isinstance(given, list) else []
    for name, parts in TURNS.items():
        path = f"{module}.{name}"
        if not any(path.endswith(target) for target in targets):
            continue
        if path in specs:
            found: list[tuple[str, ...]] = [(path,)]
        else:
            found = [tuple(_of_experts(module, part, specs)) for part in parts]
        if all(found) and (specs[found[0][0]].shape[-2] * len(found), specs[found[0][0]].shape[-1]) == (n_out, n_in):
            return path, found
    raise ValueError(f"the checkpoint has no tensor for an adapter from {n_in} to {n_out}")


def _of_experts(module: str, part: str, specs: Mapping[str, TensorSpec]) -> Iterator[str]:
    at = 0
    while (name := f"{module}.{at}.{part}.weight") in specs:
        yield name
        at += 1


def _value(patterns: str, usual: str, path: str, config: Mapping[str, Any]) -> Any:
    """As PEFT looks it up (`get_pattern_key`): the first pattern that is the path's end, from a dot on."""
    value, given = config.get(usual), config.get(patterns) or {}
    for pattern, other in given.items() if isinstance(given, Mapping) else ():
        if re.match(rf"(.*\.)?({pattern})$", path):
            value = other
            break
    if not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError(f"{CONFIG} {usual} is {value!r:.80}; a number above 0 is needed")
    return value


def _usual(values: Any) -> Any:
    """The commonest of some values."""
    listed = list(values)
    return max(dict.fromkeys(listed), key=listed.count) if listed else 1
