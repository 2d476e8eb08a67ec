"""Options that other programs have, `--bits 4`, and what is typed here in their place."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from pipeline.config.options import CONF, options
from pipeline.config.synonyms import instead
from pipeline.config.verbs import EXAMPLE, MODEL, OWN, SHORT, STOPPED, STOPS, VERBS, no_such_option
from pipeline.config.words import OPTION, OPTIONS, OVERRIDE, before_dashes, door, is_option
from pipeline.errors import ConfigError

# What others call with one letter, or otherwise than a setting here or there; in the words of `synonyms`.
_LONG: Mapping[str, str] = {
    "o": "outfile", "output": "outfile", "n": "n_predict", "c": "ctx_size", "f": "prompt_file", "file": "prompt_file",
    "p": "prompt", "t": "temp", "system_prompt": "system", "model": "model_path",
}  # fmt: skip
_CHOICES = {"format": "export", "output_format": "export", "quantization": "quant", "quantize": "quant"}  # groups
_CFG = ("job", "hydra", "all")  # what Hydra's --cfg takes


def is_foreign(word: str, args: Sequence[str]) -> bool:
    """Whether a word of `args` is an option of nobody here.

    `-p` and `-c` are Hydra's too, but say something to it only with `--cfg` and as `-c job`.
    """
    name = word.partition("=")[0]
    if not OPTION.fullmatch(name) or name in OWN:
        return False
    if name == "-p":
        return {"-c", "--cfg"}.isdisjoint(args)
    return name not in OPTIONS or (name == "-c" and not {*_CFG, *(f"-c={c}" for c in _CFG)} & {*args})


def refusal(args: Sequence[str]) -> ConfigError:
    """What is wrong with all options of a line that nobody here has, and the line as it is typed here."""
    rest = list(before_dashes(args))
    tail = list(args[len(rest) :])
    verb = next((word for word in rest if word in SHORT), None)
    short = SHORT[verb] if verb else STOPPED if {*STOPS} & {*rest} else None
    lines: list[str] = []
    typed: list[str] = []
    places: dict[str, str] = {}  # SOURCE and PROMPT, which are no options
    whole = True
    while rest:
        word = rest.pop(0)
        name, given, value = word.partition("=")
        if not is_foreign(word, args):
            typed.append(word)
            if (name in OWN or OPTIONS.get(name)) and not given and rest:
                typed.append(rest.pop(0))
            continue
        follows = not given and bool(rest) and not is_option(rest[0]) and not OVERRIDE.fullmatch(rest[0])
        ours = _ours(name, rest[0] if follows else value)
        if ours is None:
            lines.append(no_such_option(verb, word))
            whole = False
            continue
        key, _, value = ours.partition("=")
        if follows and value != "true":
            word = f"{word} {rest.pop(0)}"
        place = {MODEL: "SOURCE", "prompt": "PROMPT" if short and short.prompt else ""}.get(key) if short else None
        option = next((o for o, spells in (short.takes if short else {}).items() if spells == f"{key}={{}}"), None)
        if place:
            places[place] = value
            lines.append(f"{word}: there is no such option; {place} has none, and comes after the verb")
        else:
            words = [option, value] if option else [ours]
            typed += words
            whole &= " " not in ours
            lines.append(f"{word}: there is no such option; here that is {' '.join(words)}")
    if whole:
        lines[-1] += "; write"
        lines.append(shlex.join([*door(), *_placed(typed, places), *tail]))
    return ConfigError("\n".join(lines))


def _placed(typed: Sequence[str], places: Mapping[str, str]) -> list[str]:
    """The words with a source and a prompt where they belong: behind the verbs."""
    n = next((i for i, word in enumerate(typed) if word not in VERBS), len(typed))
    found, rest = list(typed[:n]), list(typed[n:])
    if "SOURCE" in places:
        found.append(places["SOURCE"] or "DIR")
    elif "PROMPT" in places:
        found.append(rest.pop(0) if rest and not is_option(rest[0]) else "DIR")
    if "PROMPT" in places:
        found.append(places["PROMPT"] or EXAMPLE)
    return [*found, *rest]


def _ours(option: str, value: str) -> str | None:
    """The override that says what an option of that name does elsewhere; None where nothing is known of it."""
    word = option.lstrip("-").replace("-", "_").lower()
    word = _LONG.get(word, word) if value or len(word) > 1 else word
    group = _CHOICES.get(word)
    ours = f"{group}={value or '…'}" if group else instead(word, value) or _setting(word, value)
    if ours is None:
        return None
    key, _, value = ours.partition("=")
    if key == "export.dtype" and value.lower() in options("quant"):  # of converters, whose types are of both kinds
        return f"quant={value.lower()}"
    if key == "engine.device":
        return f"{key}={value.replace('cuda', 'gpu')}"
    return ours


def _setting(word: str, value: str) -> str | None:
    """The override of the setting that is called so: at the top, or of a group that every run has."""
    config: Any = OmegaConf.to_container(OmegaConf.load(CONF / "config.yaml"), resolve=False)
    if word in config:
        if isinstance(config[word], dict | list):
            return None
        return f"{word}=true" if isinstance(config[word], bool) and not value else f"{word}={value or '…'}"
    groups = [str(group) for default in config["defaults"] if isinstance(default, dict) for group in default]
    for group in groups:
        if group != "stages" and any(word in OmegaConf.load(file) for file in (CONF / group).glob("*.yaml")):
            return f"{group}.{word}={value or '…'}"
    return None
