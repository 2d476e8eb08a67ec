"""QTensor as a JAX pytree: components are data, the scheme is static. Importing this module registers it.

Apart from `qtensor` because planning and conversion must not import JAX. Key paths are the field names (`.codes`,
`.scales`), so that checkpoints of pytrees name their leaves by them.
"""

from collections.abc import Iterable
from typing import Any

from jax.tree_util import GetAttrKey, register_pytree_with_keys

from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import Scheme

_FIELDS = ("codes", "scales", "zeros", "second")


def _flatten_with_keys(q: QTensor) -> tuple[tuple[tuple[GetAttrKey, Any], ...], Scheme]:
    return tuple((GetAttrKey(name), getattr(q, name)) for name in _FIELDS), q.scheme


def _flatten(q: QTensor) -> tuple[tuple[Any, ...], Scheme]:
    return tuple(getattr(q, name) for name in _FIELDS), q.scheme


def _unflatten(scheme: Scheme, children: Iterable[Any]) -> QTensor:
    codes, scales, zeros, second = children
    return QTensor(codes, scales, scheme, zeros, second)


register_pytree_with_keys(QTensor, _flatten_with_keys, _unflatten, _flatten)
