"""Training for a quantized export: what the model computes with is what the export will decode to, bit for bit.

Weights are rounded to the dtype that they will be written in, quantized by the rules and methods of the run, and
decoded; gradients go straight through to the float32 masters (Bengio et al., arXiv 1308.3432).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

from pipeline.errors import Problem
from pipeline.hooks import optional
from pipeline.mesh import Layout, Parameter
from pipeline.method import Method, MethodHooks
from pipeline.ops import Kernel
from pipeline.planning.layout import divided_input
from pipeline.tensors.blocks import block_grain
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import TensorSpec
from plugins.train.packing import Packing


@dataclass(frozen=True, kw_only=True)
class Qat:
    """A `plugins.train.transform.Transform`.

    Attributes:
        packing: what the export will be like.
        activations: what the inputs of packed weights are rounded to, as a method whose scales are of one row; null:
            they stay as they are.
        on_host: weights whose method no compiled program knows (scales that are searched for, double quantization,
            methods without a recipe) are rounded by the method itself, on the host, in every micro-batch; false: they
            are refused.
        kernel: the op that quantizes and decodes inside compiled programs.
    """

    packing: Packing
    activations: Method | None = None
    on_host: bool = False
    kernel: Kernel = field(default_factory=partial(Kernel, "quantize_dequantize", ("xla",)))

    freezes: ClassVar[bool] = False

    def problems(self, parameters: Sequence[Parameter], specs: Mapping[str, TensorSpec]) -> Iterator[Problem]:
        """Rules that do not fit, methods that no compiled program knows, stacks of tensors that rules take apart."""
        methods, problems = self.packing.chosen(specs)
        yield from problems
        for name, method in methods.items():
            if optional(method, MethodHooks, "needs_place"):
                yield Problem(
                    name, "cannot be trained for: what is rounded at random has no gradient that goes through"
                )
            elif not self.on_host and (why := self._obstacle(method, specs[name])):
                yield Problem(name, f"{why}; train.transform.on_host=true rounds it on the host, which takes longer")
        for p in parameters:
            if len({_encoding(methods.get(n)) for n in p.names}) > 1:
                yield Problem(p.name, f"{len(p.names)} tensors are computed with as one, and rules pack them unlike")
        if self.activations is not None:
            scheme = self.activations.scheme
            if scheme is None or scheme.block_rows != 1 or scheme.second is not None:
                yield Problem("activations", "scales that are of one row alone are needed")
            elif why := self._obstacle(self.activations, TensorSpec((1, scheme.block_elems or 8), "F32")):
                yield Problem("activations", why)
            else:
                for name in methods:
                    if why := scheme.problem(specs[name].shape):
                        yield Problem(name, f"its input as {_encoding(self.activations)}: {why}")

    def uncut(self, parameters: Sequence[Parameter], specs: Mapping[str, TensorSpec]) -> tuple[Parameter, ...]:
        """See `Transform.uncut`: each device rounds what lies there, so all that shares a scale has to lie together."""
        methods, _ = self.packing.chosen(specs)
        schemes = {p.name: None if (m := methods.get(p.name)) is None else m.scheme for p in parameters}
        return tuple(_together(p, s) if (s := schemes[p.name]) is not None else p for p in parameters)

    def mesh_problems(
        self, parameters: Sequence[Parameter], specs: Mapping[str, TensorSpec], layouts: Mapping[str, Layout],
        ways: Callable[[Sequence[str]], int],
    ) -> Iterator[Problem]:  # fmt: skip
        """See `Transform.mesh_problems`: inputs are rounded where they are, so nothing that shares a scale may be
        divided; and the host rounds for one device."""
        if self.on_host:
            yield Problem("train.transform.on_host", "true is for one device so far; false, or mesh=single")
        if self.activations is None or (scheme := self.activations.scheme) is None:
            return
        methods, _ = self.packing.chosen(specs)
        for p in parameters:
            if p.name in methods and (why := divided_input(p, layouts[p.name], scheme, ways)):
                yield Problem(p.name, f"{why}; or train.transform.activations=null")

    def _obstacle(self, method: Method, spec: TensorSpec) -> str | None:
        recipe = optional(method, MethodHooks, "recipe")
        if recipe is None:
            return f"{type(method).__name__} does not say its recipe, so no compiled program can do as it does"
        given = {"x": TensorSpec(spec.shape, "F32"), "scheme": method.scheme, **asdict(recipe)}
        choice = self.kernel.choose(given)
        return None if choice.backend else f"cannot be trained for ({choice.reasons})"

    def ops(self, ops: Any) -> Any:
        """See `Transform.ops`."""
        from plugins.train.adapters import adapting

        return ops if self.activations is None else adapting(ops)

    def leaves(
        self, bound: Any, parameters: Sequence[Parameter], specs: Mapping[str, TensorSpec]
    ) -> Callable[..., Any]:
        """See `Transform.leaves`."""
        from plugins.models.common.rounding import Rounder
        from plugins.train.rounding import Hosted, Rounding, as_written, through_host

        methods, _ = self.packing.chosen(specs)
        of = {p.name: (specs[p.names[0]].dtype, methods.get(p.names[0])) for p in parameters}
        hosted = {
            p.name: Hosted(method, p.stack)
            for p in parameters
            if (method := of[p.name][1]) is not None and self._obstacle(method, specs[p.names[0]]) is not None
        }
        x = self.activations
        rounder: Any = None if x is None else Rounder(self.kernel, x.scheme, optional(x, MethodHooks, "recipe"))  # type: ignore[arg-type]

        def leaves(trained: Mapping[str, Any], frozen: Mapping[str, Any], key: Any) -> dict[str, Any]:
            seen = {name: as_written(w, of[name][0]) for name, w in trained.items()}
            for name, (_, method) in of.items():
                if name in hosted:
                    seen[name] = through_host(seen[name], hosted[name])
                elif method is not None:
                    recipe = asdict(optional(method, MethodHooks, "recipe"))
                    seen[name] = self.kernel(seen[name], method.scheme, **recipe)
            found: dict[str, Any] = bound.leaves(seen, frozen, key)
            if rounder is not None:
                packed = [name for name, (_, method) in of.items() if method is not None]
                found |= {name: Rounding(found[name], rounder) for name in packed}
            return found

        return leaves


def _together(parameter: Parameter, scheme: Scheme) -> Parameter:
    """With all that shares a scale in one unit."""
    shape = parameter.shape
    grain = block_grain(scheme, shape)
    for scales in (s for component, s in scheme.components(shape).items() if component != "codes"):
        alike = scales if len(scales) == len(shape) else (1,) * len(shape)
        grain = tuple(n if shared == 1 else g for g, n, shared in zip(grain, shape, alike, strict=True))
    units = tuple(math.lcm(*sides) for sides in zip(parameter.units, grain, strict=True))
    return replace(parameter, units=units)


def _encoding(method: Method | None) -> str | None:
    return None if method is None else TensorSpec((), "BF16", method.scheme).encoding
