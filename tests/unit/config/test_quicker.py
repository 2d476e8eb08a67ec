"""What is had quicker than from Hydra and OmegaConf is what they give."""

import io
import os
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf, base
from omegaconf.errors import GrammarParseError, OmegaConfBaseException

from pipeline.config import quicker
from pipeline.config.options import CONF
from pipeline.config.resolvers import register


def slow() -> type[yaml.SafeLoader]:
    """OmegaConf's own."""
    found: type[yaml.SafeLoader] = quicker._made_loader()
    return found


def test_every_yaml_of_ours_is_read_as_omegaconf_reads_it() -> None:
    files = sorted(CONF.rglob("*.yaml"))
    assert len(files) > 100
    for file in files:
        text = file.read_text(encoding="utf-8")
        quick, expected = (yaml.load(text, Loader=loader) for loader in (quicker._loader(), slow()))  # noqa: S506
        assert repr(quick) == repr(expected), file


@pytest.mark.parametrize(
    "text", ["a: 1e3\nb: 0o7\nc: 2001-01-01\nd: .5\ne: yes\nf: 1:30\ng: ~\nh: [{i: -.inf}]", "", "x"]
)
def test_scalars_are_what_omegaconf_makes_of_them(text: str) -> None:
    assert repr(yaml.load(text, Loader=quicker._loader())) == repr(yaml.load(text, Loader=slow()))  # noqa: S506


@pytest.mark.parametrize(
    "text", ["a: [1, 2\nb: 3\n", "a: 1\na: 2\n", "a: 1\n b: 2\n", "a: !!python/object:os.system {}\n"]
)
@pytest.mark.parametrize("stream", [str, io.StringIO])
def test_what_is_wrong_is_said_as_before(text: str, stream: type) -> None:
    said = []
    for loader in (quicker._loader(), slow()):
        with pytest.raises(yaml.YAMLError) as why:
            yaml.load(stream(text), Loader=loader)  # noqa: S506
        said.append(str(why.value))
    assert said[0] == said[1]


TABS = ("a:\t1", "a:\n\t- 1", "a: b\tc", "a: 1 \t# c", "\ta: 1", "a: '\t'")


@pytest.mark.parametrize("text", TABS)
@pytest.mark.parametrize("of", [str, str.encode])
def test_tabs_are_where_pyyaml_has_them(text: str, of: Callable[[str], str | bytes]) -> None:
    said = []
    for loader in (quicker._loader(), slow()):
        try:
            said.append(repr(yaml.load(of(text), Loader=loader)))  # noqa: S506
        except yaml.YAMLError as why:
            said.append(str(why))
    assert said[0] == said[1]


def test_a_pipe_is_read_once_and_what_was_read_before_stays_read() -> None:
    register()
    said = []
    for loader in (quicker._loader(), slow()):
        reader, writer = os.pipe()
        os.write(writer, b"a: [1\nb: }")
        os.close(writer)
        with os.fdopen(reader) as stream, pytest.raises(yaml.YAMLError) as why:
            yaml.load(stream, Loader=loader)  # noqa: S506
        said.append(str(why.value).replace(f'"{reader}"', "it"))
    assert said[0] == said[1]
    begun = io.StringIO("junk: {{{\na: 1\n")
    begun.readline()
    assert OmegaConf.load(begun) == {"a": 1}
    begun = io.StringIO("junk: {{{\na: 1\nb: }")
    begun.readline()
    with pytest.raises(yaml.YAMLError, match="line 2, column 4"):
        OmegaConf.load(begun)


def test_another_program_of_hydra_has_its_mode(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("hydra: {mode: MULTIRUN, sweeper: {params: {a: '1,2'}}}\na: 0\n")
    (tmp_path / "other.py").write_text(
        "import hydra\nfrom pipeline.config.resolvers import register\nregister()\n"
        "@hydra.main(config_path='conf', config_name='config', version_base='1.3')\n"
        "def main(cfg): print('job', cfg.a)\nmain()\n"
    )
    env = {**os.environ, "PYTHONPATH": str(CONF.parent)}
    said = subprocess.run([sys.executable, "other.py"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert [text for text in said.stdout.splitlines() if text.startswith("job")] == ["job 1", "job 2"], said.stderr


def test_help_is_what_hydra_says_where_it_names_all_that_there_is(tmp_path: Path) -> None:
    """Groups and options that are links, too; and what a template names that there is not."""
    template = "hydra: {help: {template: '$APP_CONFIG_GROUPS $HYDRA_CONFIG_GROUPS $FLAGS_HELP $CONFIG $$ cost'}}"
    for file, text in (
        ("conf/config", f"defaults: [one: x]\n{template}\na: [1, '${{one.is}}']\n"), ("conf/one/x", "is: 1"),
        ("conf/one/deep/y", "is: 2"), ("away/z", "is: 3"),
    ):  # fmt: skip
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{file}.yaml").write_text(text)
    (tmp_path / "conf/two").symlink_to("../away")
    (tmp_path / "conf/one/w.yaml").symlink_to("../../away/z.yaml")
    (tmp_path / "conf/one/broken.yaml").symlink_to("nowhere.yaml")
    env = {**os.environ, "PYTHONPATH": str(CONF.parent)}
    said = []
    for first in ("", "from pipeline.config.resolvers import register\nregister()\n"):
        (tmp_path / "other.py").write_text(
            f"import hydra\n{first}@hydra.main(config_path='conf', config_name='config', version_base='1.3')\n"
            "def main(cfg): pass\nmain()\n"
        )
        for options in (["--help"], ["--help", "--resolve"], ["--hydra-help"], ["--help", "hydra.help.template=$NONE"]):
            command = [sys.executable, "other.py", *options]
            done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
            said.append((done.returncode, done.stdout, done.stderr.rstrip().rpartition("\n")[2]))
    assert said[:4] == said[4:]
    assert "one: w, x\none/deep: y\ntwo: z\n" in said[0][1]
    assert "KeyError" in said[3][2], said[3]


def test_a_defaults_list_may_refer_to_what_is_chosen(tmp_path: Path) -> None:
    register()
    for file, text in (
        ("config", "defaults: [one: x, two: '${one}']"), ("one/x", "is: 1"), ("one/y", "is: 2"),
        ("two/x", "is: 3"), ("two/y", "is: 4"),
    ):  # fmt: skip
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / f"{file}.yaml").write_text(text)
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        assert OmegaConf.to_container(compose("config")) == {"one": {"is": 1}, "two": {"is": 3}}
        assert OmegaConf.to_container(compose("config", ["one=y"])) == {"one": {"is": 2}, "two": {"is": 4}}


def test_the_store_is_one_and_gives_copies() -> None:
    register()
    store = ConfigStore.instance()
    assert deepcopy(store) is store
    assert store.load("hydra/config.yaml").node is not store.load("hydra/config.yaml").node


def test_whoever_adds_a_function_adds_it_to_his_own() -> None:
    register()
    first, second = OverridesParser.create(), OverridesParser.create()
    assert first.functions == second.functions
    first.functions.register("twice", lambda x: 2 * x)
    assert "twice" not in second.functions.definitions
    assert OverridesParser.create().parse_override("a=range(1,3)").value().stop == 3


def test_a_text_is_parsed_once_and_followed_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    register()
    quicker._tree.cache_clear()
    made: list[str] = []
    parse = quicker.grammar_parser.parse
    monkeypatch.setattr(
        quicker.grammar_parser, "parse", lambda value, *a, **k: made.append(value) or parse(value, *a, **k)
    )
    for a, b in ((1, "x"), (2, "y")):
        given = OmegaConf.create({"a": a, "b": b, "both": "${b} and ${a}, ${oc.select:c,'${a}'}"})
        assert given.both == f"{b} and {a}, {a}"
    assert len(made) == len(set(made))
    assert "${b} and ${a}, ${oc.select:c,'${a}'}" in made
    for _ in range(2):  # what is wrong is not kept
        with pytest.raises(GrammarParseError):
            OmegaConf.create({"a": "${b and ${a"}).a  # noqa: B018


REFERRED = {
    "a": {"b": 1, "c": "${.b}", "d": "${..e.f}", "null": "${a.c}", "true": 2, "g": "${...z}", "h": "${.nothing}"},
    "e": {"f": "${a.null}", "é": 3, "inf": [1, "${..true}"]}, "true": "x", "i": "${a}", "j": "${e.inf}",
    "k": "${a.true}",
    "l": "${nowhere}", "m": "${a.b.c}", "n": "${n}", "o": "${p}", "p": "${o}", "q": "${r}", "r": "???",
    "s": None, "t": "${s.u}", "v": "${e.é}", "w": "${e.inf.0}", "x": "${e.inf[0]}", "y": "${ a.b }", "z": "${a.b}\n",
    "aa": "${.a.b}", "bb": "${s}", "cc": "${..a.b}", "dd": "${m.x}", "ee": "${l}", "null": 5, "ff": "${null}",
}  # fmt: skip


def test_a_reference_leads_where_omegaconf_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    """And where it leads nowhere, that is said alike."""
    register()
    said: list[list[Any]] = []
    for ours in (True, False):
        quicker._tree.cache_clear()
        if not ours:
            monkeypatch.setattr(base, "parse", quicker.grammar_parser.parse)
            monkeypatch.setattr(base.Container, "resolve_parse_tree", quicker._made_followed)
        cfg = OmegaConf.create(REFERRED)
        said.append([])
        for key in (*REFERRED, *(f"a.{key}" for key in REFERRED["a"])):
            try:
                said[-1].append(repr(OmegaConf.select(cfg, key, throw_on_missing=True)))
            except (OmegaConfBaseException, RecursionError) as why:
                said[-1].append([type(why), str(why), type(why.__cause__)])
    assert said[0] == said[1]
    kinds = {line[0].__name__ for line in said[0] if isinstance(line, list)}
    assert {"InterpolationKeyError", "InterpolationResolutionError"} <= kinds


def described(node: Any, holder: Any = None) -> list[Any]:
    """What a node knows of itself, and all below it."""
    own = node.__dict__
    assert own["_parent"] is holder
    content = own.get("_content", own.get("_val"))
    below = content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
    known = {**vars(own["_metadata"]), "resolver_cache": None}  # that knows what time it was
    said = [type(node), known, None if below else content]
    return [said, *(line for child in below for line in described(child, node))]


@pytest.mark.parametrize("more", [["quant=nvfp4", "seed=3"], ["flow=evaluate", "calibrate=gptq", "+bench.more.x=[1]"]])
def test_a_config_is_what_omegaconf_makes_of_it(monkeypatch: pytest.MonkeyPatch, more: list[str]) -> None:
    """Merged and copied: parents, types, flags and values of every node."""
    register()
    found = []
    for ours in (True, False):
        if not ours:
            monkeypatch.setattr(base.Box, "_re_parent", quicker._told_parents)
            monkeypatch.delattr(base.Metadata, "__deepcopy__")
            monkeypatch.setattr(DictConfig, "__deepcopy__", quicker._copied_dict)
            monkeypatch.setattr(ListConfig, "__deepcopy__", quicker._copied_list)
            monkeypatch.setattr(OmegaConf, "load", staticmethod(quicker._made_load))
        with initialize_config_dir(str(CONF), version_base="1.3"):
            cfg = compose("config", ["+model=gpt_oss", *more], return_hydra_config=True)
        whole, part = deepcopy([cfg, cfg.hydra.job])  # of which one holds the other
        assert part is whole.hydra.job
        found.append(
            [described(cfg), described(cfg.copy()), described(whole), described(deepcopy(part), part._get_parent())]
        )
    assert len(found[0][0]) > 300
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "text",
    ["a: [1, .5, [{b: ~}], '???', '${c}', '${x:${c},[d]} e']\nc: true\nd: {}\n'': []", "&x a: &y [1]\nb: *y\nc: *x"],
)
def test_nodes_are_what_omegaconf_makes(text: str) -> None:
    register()
    value = yaml.load(text, Loader=slow())  # noqa: S506
    assert described(quicker._made_of(value)) == described(OmegaConf.create(value))


@pytest.mark.parametrize("text", ["[1]", "x", "", "a: 2001-01-01", "1: a", "a: {1: b}", "a: !!binary aGk=", "a: '${b'"])
def test_what_is_seldom_in_yaml_is_left_to_omegaconf(text: str) -> None:
    register()
    assert quicker._made_of(yaml.load(text, Loader=yaml.SafeLoader)) is None
    said = []
    for load in (quicker._load, quicker._made_load):
        try:
            said.append(described(load(io.StringIO(text))))
        except Exception as why:
            said.append([type(why), str(why)])
    assert said[0] == said[1]


def test_a_file_that_was_read_before_is_what_omegaconf_makes_of_it(tmp_path: Path) -> None:
    """Each time it is read, whoever changed what was read before; and not when the file is another."""
    register()
    for file in sorted(CONF.rglob("*.yaml"))[::5]:
        first, second, third = (OmegaConf.load(file) for _ in range(3))
        for node in (first, second):
            OmegaConf.update(node, "a.b", 1)
        with file.open("rb") as opened:
            others = [third, OmegaConf.load(str(file)), OmegaConf.load(opened)]
        expected = described(quicker._made_load(file))
        assert [described(node) for node in others] == [expected] * 3, file
    file = tmp_path / "a.yaml"
    for value in (1, 1, 1, 2):
        file.write_text(f"a: {value}\n")
        assert OmegaConf.load(file) == {"a": value}
    for _ in range(2):  # what is wrong is not kept
        file.write_text("a: [1\nb: }\n")
        with pytest.raises(yaml.YAMLError, match=rf'in "{file}", line 2'):
            OmegaConf.load(file)
    with pytest.raises(TypeError, match="Unexpected file type"):
        OmegaConf.load(1)  # type: ignore[arg-type]
    file.write_text("")
    assert [OmegaConf.load(file) for _ in range(3)] == [{}] * 3


def test_a_copy_has_its_own_flags_and_memory() -> None:
    register()
    OmegaConf.register_new_resolver("counted", lambda: next(numbers), use_cache=True, replace=True)
    numbers = iter(range(9))
    cfg = OmegaConf.create({"a": {"b": 1}, "c": "${counted:}"})
    OmegaConf.set_readonly(cfg.a, True)
    assert cfg.c == 0
    other = cfg.copy()
    OmegaConf.set_readonly(other.a, False)
    OmegaConf.clear_cache(other)
    assert (OmegaConf.is_readonly(cfg.a), cfg.c, other.c) == (True, 0, 1)
    merged = OmegaConf.merge(cfg, {"a": None, "d": [{"e": "${a}"}, None]})
    assert merged.d[0]._get_parent() is merged.d
    assert (merged.d[0].e, merged.d[1]) == (None, None)


def test_a_part_that_is_copied_first_is_of_the_copy() -> None:
    register()
    cfg = OmegaConf.create({"x": 1, "inner": {"y": "${x}"}})
    part, leaf, whole = deepcopy([cfg.inner, cfg._get_node("x"), cfg])
    whole.x = 5
    assert (part.y, cfg.inner.y) == (5, 1)
    assert part._get_parent() is leaf._get_parent() is whole


def test_a_config_of_another_class_is_copied_as_before() -> None:
    register()

    class Own(DictConfig):  # type: ignore[misc]  # as omegaconf says what types it has
        pass

    copied = deepcopy(Own({"a": {"b": 1}}))
    assert (copied.a.b, type(copied)) == (1, type(quicker._copied_dict(Own({}), {})))


WORDS = (
    "a", "true", "NULL", "nan", "inf", "infant", "null.x", "trueish", "a-b", "_1", "x1e5", "/a/b.c-d/0_1", "./a",
    "../a", ".a", ".5", "./5", "hf://o/n-1.5", "a:b", "1", "1a", "-a", "/", "//", "a.", "a/", "a b", "a,b", "[a]",
    "{a: b}", "", "a=b", "${a}", "'a'", "a\\", "ä", "glob(*)", "choice(a)", "~/a", "a@b", "a+b",
)  # fmt: skip
KEYS = (
    "a", "a.b", "a/b", "a/b.c", "a.b/c", "a@b", "a.0", "0", "a-b", "$a", "", "a.", "a/", "ä", "hydra.mode", "_x._y1",
)  # fmt: skip


@pytest.mark.parametrize("adds", ["", "+", "++", "+++", "~", " "])
def test_an_override_means_what_hydra_takes_it_for(adds: str) -> None:
    register()

    def read(rule: Callable[..., Any], text: str) -> str:
        try:
            return repr(rule(OverridesParser.create(), text, "override"))
        except HydraException as why:
            return str(why)

    texts = [*(f"{adds}{key}={word}" for key in KEYS for word in WORDS), f"{adds}a", f"{adds}a/b"]
    said = {text: read(quicker._rule, text) for text in texts}
    assert said == {text: read(quicker._made_rule, text) for text in texts}
    quick = {text for text in texts if quicker._OVERRIDE.fullmatch(text)}
    assert bool(quick) == (adds in ("", "+", "++"))


def test_files_are_looked_for_as_quickly_as_said_whatever_was_imported_before() -> None:
    code = (
        "import hydra._internal.core_plugins.file_config_source\nfrom pipeline.config.resolvers import register\n"
        "register()\nfrom hydra._internal.sources_registry import SourcesRegistry\n"
        "from pipeline.config import quicker\n"
        "files = SourcesRegistry.instance().resolve('file')\n"
        "assert (files.is_group, files.is_config) == (quicker._is_group, quicker._is_config)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=CONF.parent, check=True)
