"""Sphinx's settings: `make docs` builds the site, with warnings as errors, and so does a test.

Pages are Markdown. Those of the configuration are made of conf/ by `ConfigurationGroup`, those of the API of
docstrings by `PublicNames`.
"""

import json
import re
import sys
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from pipeline.reporting.reference import option_rows, setting_rows  # noqa: E402

project = "Weightmill"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = [
    "_build",
    "*.ipynb",
    "kernels_notebook.md",
]  # the last for its formulas: they need a script of others
html_theme = "furo"
html_title = "Weightmill"
html_show_sphinx = False
html_copy_source = False
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
suppress_warnings: list[str] = []
smartquotes = False  # commands are copied
default_role = "code"  # docstrings have single backticks around names
highlight_language = "text"

autodoc_default_options = {"members": True, "undoc-members": False, "exclude-members": "__init__, __new__"}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_use_ivar = True  # attributes as a list, not as members that autodoc would list a second time
napoleon_use_rtype = False


class ConfigurationGroup(SphinxDirective):
    """`{configuration} quant`: the options of a group, and their settings; with no name, those of every run."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        group = self.arguments[0] if self.arguments else ""
        text = ""
        if group:
            rows = [(f"`{group}={name}`", says) for name, says in option_rows(group)]
            text += _table((f"`{group}=`", "what it is"), rows)
        for row in setting_rows(group):
            text += f"`{row.key} = {row.default}`\n: {_plain(row.says)}\n"
            text += f"  *{_plain(row.allowed)}*\n" if row.allowed else ""
            text += f"  – {_plain(row.of)}\n" if row.of else ""
            text += "\n"
        return self.parse_text_to_nodes(text)


class PublicNames(SphinxDirective):
    """`{public} contracts`: the docstrings of the names that tests/golden/public.json promises, module by module."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        named = json.loads((ROOT / "tests/golden/public.json").read_bytes())[self.arguments[0]]
        text = ""
        for module, names in groupby(named, lambda name: name.rpartition(".")[0]):
            text += f"## `{module}`\n\n" if self.arguments[0] != "functions" else ""
            for name in names:
                kind = "class" if name.rpartition(".")[2][:1].isupper() else "function"
                kind = "exception" if name.startswith("pipeline.errors.") and _is_error(name) else kind
                text += f"```{{eval-rst}}\n.. auto{kind}:: {name}\n```\n\n"
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def _is_error(name: str) -> bool:
    module, _, cls = name.rpartition(".")
    found = getattr(import_module(module), cls)
    return isinstance(found, type) and issubclass(found, Exception)


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "".join("| " + " | ".join(_cell(cell) for cell in line) + " |\n" for line in lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|") if text.startswith("`") else _plain(text).replace("|", "\\|")


def _plain(text: str) -> str:
    """Text as it is: `*.weight` is a pattern, and no emphasis."""
    return re.sub(r"([\\`*_<\[\]#{}$])", r"\\\1", text) or "–"


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("configuration", ConfigurationGroup)
    app.add_directive("public", PublicNames)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
