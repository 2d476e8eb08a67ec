"""Whether JAX reaches a GPU on this machine, for `make test-gpu` and `make bench-gpu`, which do nothing without."""

import sys

from pipeline.errors import StageError


def gpu() -> str:
    """The GPU's name.

    Raises:
        StageError: there is none; says what JAX has instead.
    """
    import jax

    try:
        return str(jax.devices("gpu")[0].device_kind)
    except RuntimeError as why:
        raise StageError(
            f"no GPU here: JAX has {jax.default_backend()} alone ({str(why).splitlines()[0]}). Nothing was tested or "
            "measured. With a GPU: pip install 'weightmill[cuda12]'. Without one, make test checks the Pallas kernels "
            "interpreted, and lowered for GPUs and TPUs"
        ) from None


def main() -> int:
    try:
        print(gpu())
    except StageError as why:
        print(why, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
