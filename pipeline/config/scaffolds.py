"""`new-method`, `new-dialect`, `new-kernel` and `new-family` NAME: a working plugin with its YAML and the contract test
that it passes as it is, to be changed into what is wanted.

Written below a folder (`--dir DIR`, here by default), which `--config-dir DIR` then names; in a package of your own the
same files are modules of that and YAML of its config folder.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pipeline.config.joined import KINDS, own
from pipeline.config.options import CONF, options
from pipeline.config.scaffold import check_name, parsed, shown
from pipeline.config.words import door
from pipeline.errors import ConfigError
from pipeline.files import folder_for, write_new
from pipeline.terminal import safe


@dataclass(frozen=True)
class Scaffold:
    """What a verb writes.

    Attributes:
        files: path below the folder, with {name} → template.
        group: the config group in which NAME is then an option; its name must be free there.
        run: what uses it.
    """

    files: dict[str, str]
    group: str
    run: str


_TEST_HEAD = '''"""The {kind} `{name}`: what every one promises."""

from pathlib import Path

from pipeline.config import extend

extend.use(Path(__file__).parent)

'''

_METHOD = '''"""{title}: say here how the method makes codes, and why."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from plugins.quant.blockwise import Blockwise


@dataclass(frozen=True)
class {cls}(Blockwise):
    """Blocks whose largest values are clipped before they are encoded.

    Attributes:
        keep: of a block's largest magnitude, how much is kept.
    """

    keep: float = 0.9

    def encode(self, x: Any, **more: Any) -> Any:
        """`x` `[..., n]` as a QTensor. Sees a box of whole blocks at a time."""
        wide = np.asarray(x).astype(np.float32)
        blocks = wide.reshape(*wide.shape[:-1], wide.shape[-1] // self.block_elems, self.block_elems)
        most = self.keep * np.abs(blocks).max(axis=-1, keepdims=True)
        return super().encode(np.clip(blocks, -most, most).reshape(wide.shape), **more)
'''
_METHOD_YAML = """# {title}: say here what the method does, and beside every option what it may be.
defaults:
  - int4
  - _self_
_target_: plugins.quant.{name}.{cls}
block_elems: 32           # columns that share a scale
keep: 0.9                 # of a block's largest magnitude
"""
_METHOD_TEST = (
    _TEST_HEAD
    + """from pipeline.testing.method import MethodContract
from plugins.quant.{name} import {cls}


class Test{cls}(MethodContract):
    def method(self) -> {cls}:
        return {cls}("int4", 32, "bf16")
"""
)

_DIALECT = '''"""{title}: say here whose files these are, and how their tensors are called and packed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.errors import PlanError, Problem
from pipeline.tensors.binding import Binding, Bound, Part
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.views import stored_leaves


@dataclass(frozen=True)
class {cls}:
    """Plain tensors under their names, with a prefix.

    Attributes:
        prefix: of every leaf.
    """

    prefix: str = "{name}."

    companions: ClassVar[tuple[str, ...]] = ()

    def recognizes(self, leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> bool:
        """Files in which every leaf has the prefix."""
        return bool(leaves) and all(leaf.startswith(self.prefix) for leaf in leaves)

    def decode(self, leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        """See `pipeline.formats.Dialect.decode`."""
        return self._binding({{leaf.removeprefix(self.prefix): spec for leaf, spec in leaves.items()}}, config)

    def encode(self, tensors: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        """See `pipeline.formats.Dialect.encode`.

        Raises:
            PlanError: tensors that are quantized, all of them.
        """
        packed = [n for n, spec in tensors.items() if spec.scheme is not None]
        if packed:
            raise PlanError([Problem(n, f"is quantized ({{tensors[n].encoding}}); {cls} holds values") for n in packed])
        return self._binding(tensors, config)

    def _binding(self, specs: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        bound = {{name: Bound(spec, (Part(self.prefix + name),)) for name, spec in specs.items()}}
        return Binding(tensors=bound, leaves=stored_leaves(bound), config=dict(config))
'''
_DIALECT_YAML = """# {title}: recognized by its leaves, before our own dialects.
_target_: plugins.formats.{name}.{cls}
prefix: {name}.           # of every leaf
"""
_DIALECT_EXPORT = """# {title} in safetensors.
defaults:
  - hf
  - _self_
dialect:
  _target_: plugins.formats.{name}.{cls}
"""
_DIALECT_TEST = (
    _TEST_HEAD
    + """from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.testing.dialect import DialectContract
from plugins.formats.{name} import {cls}


class Test{cls}(DialectContract):
    strict = False  # true, once it knows which tensors a model has

    def dialect(self) -> {cls}:
        return {cls}()

    def tensors(self) -> Mapping[str, Any]:
        rng = np.random.default_rng(0)
        return {{"a.weight": rng.standard_normal((5, 7)).astype(np.float32), "b.bias": np.zeros(3, np.float16)}}

    def config(self) -> Mapping[str, Any]:
        return {{"model_type": "{name}"}}
"""
)

_KERNEL = '''"""{title}: a backend of the op rms_norm, in jnp. Say here on what it runs, and why it is quicker there."""

from typing import Any

import jax.numpy as jnp
from jax import lax

from pipeline.backends import Backend

BACKEND = Backend(platforms=("cpu", "gpu", "tpu"))


def rms_norm(x: Any, weight: Any, *, eps: float, plus_one: bool = False) -> Any:
    """See the op's docstring, in plugins/kernels/rms_norm."""
    x = jnp.asarray(x)
    wide, gain = x.astype(jnp.float32), jnp.asarray(weight).astype(jnp.float32)
    gain = (1 + gain if plus_one else gain).reshape(*(1,) * (x.ndim - 1), -1)
    return (wide * lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps) * gain).astype(x.dtype)


def declines(request: Any) -> str | None:
    """Why this backend leaves a request to others; asked before anything runs, as refusing then breaks the contract."""
    return None
'''
_KERNEL_YAML = """# The backends of auto, and {title} for rms_norm.
defaults:
  - auto
  - _self_
rms_norm: [plugins.kernels.{name}]
"""
_KERNEL_TEST = (
    _TEST_HEAD
    + """from pipeline.testing.model_op import ModelOpContract


class Test{cls}(ModelOpContract):
    op = "rms_norm"
    backends = ("plugins.kernels.{name}",)
"""
)

_FAMILY = '''"""{title}: say here which models these are, and what only they know."""

from dataclasses import dataclass
from typing import ClassVar

from plugins.models.llama.family import Llama


@dataclass(frozen=True)
class {cls}(Llama):
    """A family that is built like Llama, under a model_type of its own; `parameters` and `build` say how another is."""

    model_types: ClassVar[tuple[str, ...]] = ("{name}",)
'''
_FAMILY_YAML = """# {title}: asked before our own families.
_target_: plugins.models.{name}.{cls}
"""
_FAMILY_MODEL = """# {title}, of any size: model.source=DIR, FILE.gguf or hf://owner/name.
defaults:
  - llama                 # the same names
  - _self_
model_types: [{name}]     # of config.json; without model= it is chosen by them
"""
_FAMILY_TEST = (
    _TEST_HEAD
    + '''from collections.abc import Mapping
from typing import Any

from pipeline.testing.family import FamilyContract
from plugins.models.{name} import {cls}


class Test{cls}(FamilyContract):
    def family(self) -> {cls}:
        return {cls}()

    def config(self) -> Mapping[str, Any]:
        """Small, and no two sizes alike."""
        return {{
            "model_type": "{name}", "hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 6,
            "num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 3, "vocab_size": 97,
            "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        }}  # fmt: skip
'''
)

SCAFFOLDS: Final = {
    "method": Scaffold(
        {
            "plugins/quant/{name}.py": _METHOD,
            "quant/{name}.yaml": _METHOD_YAML,
            "test_{name}.py": _METHOD_TEST,
        },
        "quant", "+model=gpt_oss quant={name} flow=convert export=orbax",
    ),
    "dialect": Scaffold(
        {
            "plugins/formats/{name}.py": _DIALECT,
            "dialects/{name}.yaml": _DIALECT_YAML,
            "export/{name}.yaml": _DIALECT_EXPORT,
            "test_{name}.py": _DIALECT_TEST,
        },
        "export", "+model=gpt_oss quant=none flow=convert export={name}",
    ),
    "kernel": Scaffold(
        {
            "plugins/kernels/{name}.py": _KERNEL,
            "kernels/{name}.yaml": _KERNEL_YAML,
            "test_{name}.py": _KERNEL_TEST,
        },
        "kernels", "+model=gpt_oss flow=generate kernels={name}",
    ),
    "family": Scaffold(
        {
            "plugins/models/{name}.py": _FAMILY,
            "families/{name}.yaml": _FAMILY_YAML,
            "model/{name}.yaml": _FAMILY_MODEL,
            "test_{name}.py": _FAMILY_TEST,
        },
        "model", "plan model.source=DIR",
    ),
}  # fmt: skip


def _ours(what: Scaffold) -> set[str]:
    """Names that our own modules and options have where files of `what` go: ours would be found first, or clash."""
    imported = re.findall(r"^from .* import (.*)$", "\n".join(what.files.values()), re.M)
    classes = {cls for line in imported for cls in re.findall(r"\b[A-Z]\w+", line)}
    found = {re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls).lower() for cls in classes}
    for path in what.files:
        folder = Path(path).parent
        root = CONF.parent / folder if folder.parts[:1] == ("plugins",) else CONF / folder
        if folder.parts and root.is_dir():
            found |= {p.stem for p in root.iterdir() if not p.name.startswith(("_", "."))}
        if folder.as_posix() in KINDS:
            found |= own(CONF, folder.as_posix())
    return found


def new(kind: str, args: list[str]) -> None:
    """Write the files of a plugin of `kind` and say what to type next.

    Raises:
        ConfigError: no name, one that cannot be used, or a file that is there already; nothing was written.
        StorageError: the folder cannot be written.
    """
    what = SCAFFOLDS[kind]
    name, folder = parsed(args, f"new-{kind} NAME [--dir DIR]: NAME is what `{what.group}=NAME` will say")
    folder = Path() if folder is None else folder
    check_name(name, kind, {*options(what.group), *_ours(what)})
    words = {
        "name": name, "kind": kind, "cls": "".join(part.capitalize() for part in name.split("_")),
        "title": name.replace("_", " ").capitalize(),
    }  # fmt: skip
    files = {folder / path.format(**words): text for path, text in what.files.items()}
    if there := [str(path) for path in files if path.exists()]:
        raise ConfigError(f"{', '.join(there)}: exists already, and new-{kind} never overwrites")
    for path, text in files.items():
        folder_for(path)
        write_new(path, text.format(**words))
        print(safe(f"wrote {shown(path)}"))
    _, verb, rest = what.run.format(**words).rpartition("plan ")
    run = f"{' '.join(door())} {verb}--config-dir {shown(folder)} {rest}"
    print(safe(f"\nnext:\n  {run}\n  python -m pytest {shown(folder / f'test_{name}.py')}"))
