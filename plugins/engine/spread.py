"""A program of a model on a mesh: one `shard_map` around the whole of it, in which every device sees what lies on it.

How weights lie is their own business; of everything else three kinds go in and come out. A KV cache is divided by rows
and by key and value heads, other arrays by their rows, which are their first dimension, and numbers are the same on
all devices.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from pipeline.mesh import Mesh
from plugins.models.common.cache import Cache, LayerShape


@dataclass(frozen=True)
class Spread:
    """Devices, and what is divided over them.

    Attributes:
        mesh: how they are arranged.
        devices: the JAX mesh of `plugins.mesh.devices.arrange`.
    """

    mesh: Mesh
    devices: jax.sharding.Mesh

    @property
    def ways(self) -> int:
        """Parts that rows are divided into."""
        return self.mesh.ways(self.mesh.over("batch"))

    def specs(self, tree: Any) -> Any:
        """How an argument or a result is divided."""
        rows, heads = (self.mesh.over(logical) or None for logical in ("batch", "kv_heads"))
        held = isinstance(tree, Cache)

        def of(leaf: Any) -> P:
            if held and leaf.ndim == 4:
                return P(rows, None, heads)  # type: ignore[no-untyped-call]
            return P(rows) if leaf.ndim else P()  # type: ignore[no-untyped-call]

        return jax.tree.map(of, tree)

    def part(self, shape: LayerShape) -> LayerShape:
        """What a layer remembers on one device."""
        return replace(shape, kv_heads=shape.kv_heads // self.mesh.ways(self.mesh.over("kv_heads")))

    def placed(self, args: Sequence[Any], whole: Collection[int]) -> list[Any]:
        """`args` of `jit`, where each lies as it says, in several processes: every one has the whole of what is not on
        the devices yet, and puts its part there."""
        given = self._given(args, whole)
        return [jax.tree.map(self._put, arg, self._named(specs)) for arg, specs in zip(args, given, strict=True)]

    @staticmethod
    def _put(array: Any, lies: NamedSharding) -> Any:
        if isinstance(array, jax.Array) and not array.is_fully_addressable:
            return array
        if isinstance(array, jax.Array) and jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
            data = Spread._put(jax.random.key_data(array), lies)
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(array))
        values = np.asarray(array)
        return jax.make_array_from_callback(values.shape, lies, lambda box: values[box])

    def laid(self, tree: Any, lies: Any) -> Any:
        """A tree of arrays where each is to lie. Of what is not on the devices yet every process has the whole."""
        put = jax.device_put if self.mesh.processes == 1 else self._put
        return jax.tree.map(put, tree, lies)

    def gathered(self) -> Any:
        """Makes an array lie whole on every device; to be lowered."""
        return jax.jit(lambda a: a, out_shardings=NamedSharding(self.devices, P()))  # type: ignore[no-untyped-call]

    def made(self, create: Callable[[], Any]) -> Any:
        """`create`, whose result comes to be where it is to lie; to be lowered."""
        return jax.jit(create, out_shardings=self._named(self.specs(jax.eval_shape(create))))

    def jit(
        self, fn: Callable[..., Any], leaves: Sequence[Any], args: Sequence[Any], *, whole: Collection[int],
        donate: tuple[int, ...],
    ) -> Any:  # fmt: skip
        """`fn(leaves, *args)` on all devices, to be lowered; each gets its parts.

        Args:
            leaves: arrays that lie on the devices already.
            args: what it will be called with. A cache is the first of them, and then the first of the results.
            whole: indices of `args` that every device needs all of.
            donate: indices of `args` whose memory the results may take.
        """
        given = self._given(args, whole)
        laid = tuple(leaf.sharding.spec for leaf in leaves)
        rows = P(self.mesh.over("batch") or None)  # type: ignore[no-untyped-call]
        results = (given[0], rows) if args and isinstance(args[0], Cache) else rows
        spread = jax.shard_map(
            lambda leaves, *rest: fn(list(leaves), *rest),
            mesh=self.devices, in_specs=(laid, *given), out_specs=results, check_vma=True,
        )  # fmt: skip
        return jax.jit(
            lambda leaves, *rest: spread(tuple(leaves), *rest),  # type: ignore[no-untyped-call]
            in_shardings=([leaf.sharding for leaf in leaves], *map(self._named, given)),
            out_shardings=self._named(results),  # of an array without elements XLA would say that it lies whole
            donate_argnums=tuple(1 + i for i in donate),
        )

    def _given(self, args: Sequence[Any], whole: Collection[int]) -> tuple[Any, ...]:
        """How each of `args` is divided; `whole` are the indices of those that are not."""
        return tuple(
            jax.tree.map(lambda _: P(), arg) if i in whole else self.specs(arg)  # type: ignore[no-untyped-call]
            for i, arg in enumerate(args)
        )

    def _named(self, specs: Any) -> Any:
        return jax.tree.map(lambda spec: NamedSharding(self.devices, spec), specs, is_leaf=lambda s: isinstance(s, P))
