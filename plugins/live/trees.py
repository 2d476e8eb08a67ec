"""A live tree of JAX arrays, or an NNX module, becomes a packed one in one call, and back.

    packed = quantize(params, quant="mxfp4", rules={"*norm*": "keep", "*": "quant"})
    model = quantize(model, quant="nf4")
    params = dequantize(packed, jnp.float32)

Every array stays on its devices, divided as it was. Nothing is changed in place; what the new tree does not hold is
freed with the old one.
"""

from collections.abc import Iterator, Mapping
from glob import escape
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import pipeline.tensors.pytree  # noqa: F401 - QTensor as a pytree
from pipeline.errors import PlanError, Problem, SourceError, Unsupported
from pipeline.method import Method
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import FLOAT_DTYPES, TensorSpec
from plugins.live.devices import packed, unpacked
from plugins.live.linear import Packed, QuantizedLinear, turned
from plugins.live.rules import Rules, chosen
from plugins.mesh.store import held_spec


def quantize(
    tree: Any,
    quant: str | Method,
    rules: Rules | None = None,
    *,
    allow_requantize: bool = False,
    on_host: bool = False,
) -> Any:
    """`tree` with arrays packed as QTensors, by their devices, on them, and divided over them as they were.

    Of a module, an `nnx.Linear` becomes a `QuantizedLinear`; another parameter comes to hold a QTensor, which the
    module's own code has to compute with. Layers of Flax that compute with arrays alone are refused.

    Args:
        tree: any pytree of `jax.Array`s, or an `nnx.Module`. Shapes (`jax.ShapeDtypeStruct`) give shapes.
        quant: a quant option of the pipeline, by name, or a method.
        rules: pattern of names → `quant`, `keep`, another quant option or a method; the first that matches decides,
            and what none matches is kept. A name is the path, joined by dots (`layers.0.mlp.up.kernel`); of a parameter
            whose metadata has `names`, the first of these. None: of a tree all matrices and stacks of them that are
            floats, of a module the weights of every `nnx.Linear`.
        allow_requantize: also what is packed in another scheme, which loses twice.
        on_host: codes that no device can make (scales that are searched for, random rounding, double quantization,
            methods without a recipe) are made on the host, a device's part of a tensor at a time; otherwise they are
            refused.

    Returns:
        A tree like `tree`; a new module, which shares the arrays that stay.

    Raises:
        PlanError: rules that match nothing, tensors that do not fit their scheme, blocks that devices would cut, layers
            that cannot compute with packed weights, codes that no device can make; all of them at once.
        ValueRangeError: a value that its scheme cannot hold.
        ConfigError: there is no such quant option.
    """
    if isinstance(tree, nnx.Module):
        return _quantized_module(tree, quant, rules, again=allow_requantize, on_host=on_host)
    leaves, shape = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_packed)
    values = {".".join(map(_key, path)): value for path, value in leaves}
    _refuse_tracers(values)
    values = {name: jnp.asarray(v) if not _has_place(v) and hasattr(v, "dtype") else v for name, v in values.items()}
    specs = dict(_specs(values))
    if rules is None:
        rules = {escape(n): "quant" for n, s in specs.items() if len(s.shape) > 1 and s.dtype in FLOAT_DTYPES}
    methods = chosen(values, specs, quant, rules, unfit={}, again=allow_requantize, on_host=on_host)
    found = [packed(n, v, methods[n]) if n in methods else v for n, v in values.items()]
    return jax.tree_util.tree_unflatten(shape, found)


def dequantize(tree: Any, dtype: Any = jnp.bfloat16) -> Any:
    """`tree` with QTensors as arrays of the values that they stand for, on their devices; a `QuantizedLinear` becomes
    an `nnx.Linear`. What is not packed stays as it is.

    Args:
        dtype: jnp.bfloat16 or jnp.float32.

    Raises:
        ConfigError: another dtype.
    """
    if isinstance(tree, nnx.Module):
        found = _copy(tree)
        if isinstance(found, QuantizedLinear):
            return found.to_linear(dtype)
        _replace(found, {id(n): n.to_linear(dtype) for n in _nodes(found) if isinstance(n, QuantizedLinear)})
        for variable in _nodes(found):
            if isinstance(variable, nnx.Variable) and _is_packed(variable.get_value()):
                _set(variable, unpacked(variable.get_value(), dtype))
        return found
    return jax.tree.map(lambda v: unpacked(v, dtype) if _is_packed(v) else v, tree, is_leaf=_is_packed)


def _quantized_module(
    module: nnx.Module, quant: str | Method, rules: Rules | None, *, again: bool, on_host: bool
) -> Any:
    found = _copy(module)
    owners, variables = _owners(found), dict(_named(found))
    linears: dict[str, nnx.Linear] = {}
    values, unfit = {}, {}
    for name, variable in variables.items():
        values[name], owner = variable.get_value(), owners[id(variable)]
        if isinstance(owner, nnx.Linear) and variable is owner.kernel:
            linears[name] = owner
            try:
                values[name] = turned(owner)
            except Unsupported as why:
                unfit[name] = str(why)
        elif type(owner).__module__.partition(".")[0] == "flax":
            unfit[name] = f"is a parameter of Flax's {type(owner).__name__}, which computes with arrays; keep it"
    _refuse_tracers(values)
    if rules is None:
        rules = {escape(name): "quant" for name in linears}
    methods = chosen(values, dict(_specs(values)), quant, rules, unfit=unfit, again=again, on_host=on_host)
    layers = {}
    for name, method in methods.items():
        value = packed(name, values[name], method)
        if (linear := linears.get(name)) is not None:
            layers[id(linear)] = QuantizedLinear.around(linear, value)
        else:
            _set(variables[name], value)
    _replace(found, layers)
    return layers.get(id(found), found)


def _copy(module: nnx.Module) -> nnx.Module:
    """Another module with the same arrays."""
    return nnx.merge(*nnx.split(module))


def _nodes(module: nnx.Module) -> list[Any]:
    """Every module and variable of it, once."""
    return [node for _, node in nnx.iter_graph(module) if isinstance(node, nnx.Pytree | nnx.Variable)]


def _named(module: nnx.Module) -> Iterator[tuple[str, nnx.Variable[Any]]]:
    """What parameters are called; of those that are shared, the first path counts."""
    for path, node in nnx.iter_graph(module):
        if isinstance(node, nnx.Param | Packed):
            names = node.get_metadata().get("names")
            yield names[0] if names else ".".join(map(str, path)), node


def _owners(module: nnx.Module) -> dict[int, Any]:
    """Variable → the module that has it as an attribute."""
    return {id(v): node for node in _nodes(module) if isinstance(node, nnx.Pytree) for v in vars(node).values()}


def _replace(module: nnx.Module, layers: Mapping[int, Any]) -> None:
    """Put other layers in the place of some, wherever they are."""
    for node in _nodes(module):
        for name, value in list(vars(node).items()) if isinstance(node, nnx.Pytree) else ():
            if id(value) in layers:
                if isinstance(node, nnx.List):
                    node[int(name)] = layers[id(value)]
                else:
                    setattr(node, name, layers[id(value)])


def _set(variable: nnx.Variable[Any], value: Any) -> None:
    """With what our own models say of a parameter (`plugins.models.common.weights`) still true."""
    spec = variable.get_metadata().get("spec")
    variable.set_value(value)
    if isinstance(spec, TensorSpec):
        variable.set_metadata(spec=held_spec(value))


def _specs(values: Mapping[str, Any]) -> Iterator[tuple[str, TensorSpec]]:
    """Of what is a tensor; of numbers that no tensor has (random keys) there is nothing to say."""
    for name, value in values.items():
        try:
            yield name, held_spec(value)
        except (SourceError, AttributeError, TypeError):
            continue


def _refuse_tracers(values: Mapping[str, Any]) -> None:
    traced = [n for n, v in values.items() if any(isinstance(a, jax.core.Tracer) for a in jax.tree.leaves(v))]
    if traced:
        raise PlanError(
            [Problem(n, "is traced; quantize before jit, or use the op quantize_dequantize") for n in traced]
        )


def _is_packed(value: Any) -> bool:
    return isinstance(value, QTensor)


def _has_place(value: Any) -> bool:
    return isinstance(value, jax.Array | jax.ShapeDtypeStruct | QTensor)


def _key(entry: Any) -> str:
    """A key as Orbax spells it."""
    return str(next((getattr(entry, name) for name in ("key", "idx", "name") if hasattr(entry, name)), entry))
