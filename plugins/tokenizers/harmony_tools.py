"""How harmony tells a model of its tools: JSON schemas written as TypeScript types, in namespaces.

Source: `json_schema_to_typescript` and `template_tools_section` in src/encoding.rs of github.com/openai/harmony 0.0.8.
Its spacing is what the model was trained on, odd as it is in places; every character counts.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Schema = Mapping[str, Any]


@dataclass(frozen=True)
class Tool:
    """A function the model may call.

    Attributes:
        name: without its namespace.
        description: for the model; each line becomes a comment.
        parameters: JSON schema of an object; None for a function of nothing.
    """

    name: str
    description: str = ""
    parameters: Schema | None = None


@dataclass(frozen=True)
class Namespace:
    """Tools under a common name. Without tools the description is all there is to say (`python`)."""

    name: str
    description: str | None = None
    tools: tuple[Tool, ...] = ()


def tools_section(namespaces: Sequence[Namespace]) -> str:
    """The section `# Tools`; namespaces in the order of their names."""
    by_name = {n.name: n for n in namespaces}
    return "\n\n".join(["# Tools", *(_namespace(by_name[name]) for name in sorted(by_name))])


def _namespace(namespace: Namespace) -> str:
    lines = [f"## {namespace.name}\n"]
    comment = "// " if namespace.tools else ""
    lines += [comment + line for line in _lines(namespace.description or "")]
    if namespace.tools:
        lines.append(f"namespace {namespace.name} {{\n")
        for tool in namespace.tools:
            lines += [f"// {line}" for line in _lines(tool.description)]
            takes = f"_: {typescript(tool.parameters)}" if tool.parameters is not None else ""
            lines.append(f"type {tool.name} = ({takes}) => any;\n")
        lines.append(f"}} // namespace {namespace.name}")
    return "\n".join(lines)


def typescript(schema: Schema, indent: str = "") -> str:
    """A JSON schema as a TypeScript type; what it cannot say is `any`."""
    kind, variants = schema.get("type"), schema.get("oneOf")
    if isinstance(variants, list):
        return "".join(f"\n{indent} | {_variant(v, indent)}" for v in variants)
    if isinstance(kind, list) and (kinds := [k for k in kind if isinstance(k, str)]):
        return " | ".join("number" if k == "integer" else k for k in kinds)
    match kind:
        case "object":
            return _object(schema, indent)
        case "string":
            options = [f'"{v}"' for v in schema.get("enum") or () if isinstance(v, str)]
            return " | ".join(options) or "string"
        case "number" | "integer":
            return "number"
        case "boolean":
            return "boolean"
        case "array":
            return f"{typescript(schema['items'], indent)}[]" if "items" in schema else "Array<any>"
    return "any"


def _object(schema: Schema, indent: str) -> str:
    required = schema.get("required") or ()
    out = _comment(schema.get("description"), indent) + "{\n"
    for name, value in (schema.get("properties") or {}).items():
        out += f"{indent}// {value['title']}\n{indent}//\n" if isinstance(value.get("title"), str) else ""
        mark = "" if name in required else "?"
        variants = value.get("oneOf")
        if "oneOf" not in value:
            out += _comment(value.get("description"), indent)
        if examples := [e for e in _list(value.get("examples")) if isinstance(e, str)]:
            out += f"{indent}// Examples:\n" + "".join(f'{indent}// - "{e}"\n' for e in examples)
        if isinstance(variants, list):
            out += _choice(name + mark, value, variants, indent)
            continue
        out += f"{indent}{name}{mark}: {_nullable(value, typescript(value, indent + '    '))},"
        if "default" in value and "oneOf" not in value:
            out += f" // default: {_default(value)}"
        out += "\n"
    return out + f"{indent}}}"


def _choice(name: str, value: Schema, variants: Sequence[Schema], indent: str) -> str:
    """A property that is one of several things, one a line."""
    described = value.get("description") if isinstance(value.get("description"), str) else None
    above = described is not None and not (variants and variants[0].get("description") == described)
    out = _comment(described, indent) if above else ""
    if "default" in value:
        out += f"{indent}// default: {_default(value)}\n"
    out += f"{indent}{name}:\n"
    for i, variant in enumerate(variants):
        said = variant.get("description")
        notes = [said] if isinstance(said, str) and said != described and not (i == 0 and above) else []
        if "default" in variant:
            notes.append(f"default: {_default(variant)}")
        text = _nullable(variant, typescript(variant, indent + "   "))
        out += f"{indent} | {text}{' // ' + ' '.join(notes) if notes else ''}\n"
    return out + f"{indent},\n"


def _variant(variant: Schema, indent: str) -> str:
    """One of several things, outside a property."""
    notes = [variant["description"]] if isinstance(variant.get("description"), str) else []
    if "default" in variant:
        notes.append(f"default: {_default(variant, quoted=True)}")
    text = _nullable(variant, typescript(variant, indent + "   "))
    return text + (f" // {' '.join(notes)}" if notes else "")


def _nullable(schema: Schema, text: str) -> str:
    return f"{text} | null" if schema.get("nullable") is True and "null" not in text else text


def _default(schema: Schema, quoted: bool = False) -> str:
    """A default value as compact JSON; but text as it is, nothing escaped, and without quotes if it is an option.

    `quoted`: an option is JSON too, as the source has it outside properties.
    """
    default, options = schema["default"], _list(schema.get("enum"))
    if isinstance(default, str) and not (options and quoted):
        return default if options else f'"{default}"'
    return json.dumps(default, ensure_ascii=False, separators=(",", ":"))


def _comment(text: Any, indent: str) -> str:
    return f"{indent}// {text}\n" if isinstance(text, str) else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _lines(text: str) -> list[str]:
    """As Rust's `str::lines`: ends of lines are \\n or \\r\\n, nothing else."""
    lines = text.split("\n")
    return [line.removesuffix("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]
