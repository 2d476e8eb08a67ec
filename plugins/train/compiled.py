"""Programs of a training that several processes run together."""

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax

from pipeline.running import member


class Compiled:
    """A function as a program for each shape of what it is given. All processes of a gang have compiled it before one
    of them runs it: one that still compiles keeps the others waiting, and collectives wait for half a minute only."""

    def __init__(
        self, fn: Callable[..., Any], options: Mapping[str, Any] | None = None, *, donate: tuple[int, ...] = ()
    ):
        """
        Args:
            options: for the compiler.
            donate: indices of arguments whose memory the results may take.
        """
        self._jitted = jax.jit(fn, donate_argnums=donate, compiler_options=dict(options or {}))
        self._programs: dict[Hashable, Any] = {}

    def __call__(self, *args: Any) -> Any:
        if not member.inside():
            return self._jitted(*args)
        leaves, tree = jax.tree.flatten(args)
        key = (tree, tuple((a.shape, a.dtype) for a in leaves))
        if key not in self._programs:
            self._programs[key] = self._jitted.lower(*args).compile()
            member.agreed()
        return self._programs[key](*args)
