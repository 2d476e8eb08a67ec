"""A page as tests read it: what is not well-formed fails."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "input", "wbr", "hr"}


@dataclass
class Node:
    tag: str
    attributes: dict[str, str]
    children: list["Node"] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def all(self, tag: str) -> list["Node"]:
        return [*([self] if self.tag == tag else []), *(found for c in self.children for found in c.all(tag))]

    @property
    def text(self) -> str:
        return "".join([*self.texts, *(c.text for c in self.children)])


class Strict(HTMLParser):
    """Fails where an element is not closed, or closed that was not opened."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Node("", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"an attribute twice: {attrs}"
        node = Node(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        raise AssertionError(f"<{tag}/>: HTML has no such elements")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        self.open[-1].texts.append(data)


def parsed(text: str) -> Node:
    parser = Strict()
    parser.feed(text)
    parser.close()
    assert [n.tag for n in parser.open] == [""]
    return parser.root


def attention(root: Node) -> list[str]:
    """What of a page is said to need some."""
    return [li.text for box in root.all("div") if box.attributes.get("class") == "attention" for li in box.all("li")]


def gist(root: Node) -> str:
    """What it comes to, in words."""
    return next(p.text for p in root.all("p") if p.attributes.get("class") == "gist")


def tables(root: Node) -> dict[str, Node]:
    return {t.all("caption")[0].text: t for t in root.all("table")}


def cells(table: Node) -> list[list[str]]:
    return [[c.text for c in row.children] for row in table.all("tbody")[0].all("tr")]
