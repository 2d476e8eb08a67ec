"""What `quant=auto` is where it is no method: the command line and `pipeline.run` make two runs of it."""

from dataclasses import dataclass

from pipeline.errors import ConfigError


@dataclass(frozen=True)
class Auto:
    """Settings of `pipeline.config.auto`.

    Attributes:
        bits: a weight, at most; or
        kl: nats a token, at most.
        quants: options to choose from.
        keep: whether a tensor may stay as it is.
        text: what the loss is measured on.
    """

    bits: float | None = None
    kl: float | None = None
    quants: tuple[str, ...] = ()
    keep: bool = True
    text: str = ""

    def __post_init__(self) -> None:
        raise ConfigError(
            "quant=auto is two runs, one after the other, and so neither one of a sweep nor one of several options; "
            "flow=allocate writes the rules, which any run and sweep takes by rules_file="
        )
