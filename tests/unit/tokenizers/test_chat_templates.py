"""Chat templates: where they are read from, what they are given, what they may do, and errors with file and line."""

import json
import os
import signal
from datetime import datetime

import pytest

from pipeline.errors import ConfigError, SourceError
from plugins.tokenizers import chat_process
from plugins.tokenizers.chat import Template, Templates
from plugins.tokenizers.load import load_tokenizer
from tests.cases import chats
from tests.cases import tokenizers as cases

USER = [{"role": "user", "content": "hi"}]
SHOW = "{{ messages[0].content }}{{ bos_token }}{{ eos_token }}{{ pad_token }}|{{ add_generation_prompt }}"


def loaded(about=None, config=None, **options):
    files = {"tokenizer.json": cases.tokenizer_json("byte_level")}
    if about is not None:
        files["tokenizer_config.json"] = json.dumps(about).encode()
    files |= {k: v for k, v in options.items() if isinstance(v, bytes)}
    return load_tokenizer(files, config or {}, "here", chat_template=options.get("chat_template"))


def said(tokenizer, messages=USER, **variables):
    return tokenizer.decode(tokenizer.chat(messages, **variables), skip_special=False)


def test_chatml():
    expected = "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
    tokenizer = loaded({"chat_template": chats.TEMPLATES["chatml"]})
    assert tokenizer.has_chat_template
    assert said(tokenizer) == expected + "<|im_start|>assistant\n"
    assert said(tokenizer, add_generation_prompt=False) == expected


def test_special_tokens_become_ids():
    tokenizer = loaded({"chat_template": "<|a|>{{ messages[0].content }}<|a|>"})
    assert tokenizer.chat(USER) == [340, *tokenizer.encode("hi"), 340]


def test_where_templates_are():
    about = {"chat_template": "config"}
    files = {"chat_template.jinja": b"jinja\n", "chat_template.json": json.dumps({"chat_template": "json"}).encode()}
    assert said(loaded(about, **files)) == "jinja"
    assert said(loaded(about, **{"chat_template.json": files["chat_template.json"]})) == "config"
    assert said(loaded({}, **{"chat_template.json": files["chat_template.json"]})) == "json"
    with pytest.raises(SourceError) as error:
        loaded({}).chat(USER)
    assert "here: has no chat template (looked for: chat_template.jinja, tokenizer_config.json" in str(error.value)
    with pytest.raises(SourceError, match="chat_template should be a text, or a list of `name` and `template`"):
        loaded({"chat_template": [{"name": "default"}]})


def test_several_templates(tmp_path):
    named = [{"name": n, "template": f"{n} {{{{ messages[0].content }}}}"} for n in ("default", "tool_use", "rag")]
    tokenizer = loaded({"chat_template": named})
    assert said(tokenizer) == "default hi"
    assert said(tokenizer, tools=[]) == "tool_use hi"
    assert said(loaded({"chat_template": named}, chat_template="rag")) == "rag hi"
    (tmp_path / "own.jinja").write_text("own é", encoding="utf-8")
    assert said(loaded({"chat_template": named}, chat_template=str(tmp_path / "own.jinja"))) == "own é"
    with pytest.raises(ConfigError, match="neither a file nor a template of here; did you mean 'rag'"):
        loaded({"chat_template": named}, chat_template="rags").chat(USER)
    with pytest.raises(ConfigError, match=r"several chat templates and no default.*allowed: tool_use, rag"):
        loaded({"chat_template": named[1:]}).chat(USER)


def test_what_a_template_is_given():
    about = {"chat_template": SHOW, "bos_token": {"content": "<|a|>"}, "eos_token": "<t>", "pad_token": None}
    assert said(loaded(about)) == "hi<|a|><t>|True"
    assert said(loaded(about), bos_token="!") == "hi!<t>|True"
    assert said(loaded({"chat_template": SHOW})) == "hi|True"
    model = {"tokenizer.model": cases.sentencepiece_model("bpe"), "chat_template.jinja": SHOW.encode()}
    tokenizer = load_tokenizer(model, {})  # the vocabulary knows what nothing else says
    assert tokenizer.chat(USER) == tokenizer.encode("hi<s></s>|True")


def test_the_date(monkeypatch):
    tokenizer = loaded({"chat_template": "{{ strftime_now('%Y') }}"})
    assert said(tokenizer) in (str(datetime.now().year), str(datetime.now().year - 1))  # a year may end here


def test_what_is_no_chat():
    tokenizer = loaded({"chat_template": SHOW})
    for messages, message in (
        ([], "at least one message"),
        (["hi"], "a message is a mapping with `role` and `content`, not 'hi'"),
        ([{"role": "user", "content": object()}], "a chat holds JSON values only, not object"),
    ):
        with pytest.raises(ConfigError, match=message):
            tokenizer.chat(messages)


def test_a_template_that_refuses():
    tokenizer = loaded({"chat_template": chats.TEMPLATES["turns"]})
    with pytest.raises(ConfigError) as error:
        tokenizer.chat([*USER, *USER])
    assert str(error.value).startswith("here: tokenizer_config.json (chat_template): the chat template refuses")
    assert "roles must alternate" in str(error.value)


@pytest.mark.parametrize(
    ("template", "line", "message"),
    [
        ("one\n{% if %}\n", 2, "mistake in the chat template: Expected an expression"),
        ("\n\n{% for x in y %}", 3, "mistake in the chat template: Unexpected end of template"),
        ("{% unknown %}", 1, "mistake in the chat template: Encountered unknown tag 'unknown'"),
        ("a\nb\n{{ messages.missing.deeper }}\n", 3, "the chat template failed: UndefinedError"),
        ("\n{{ 1 / 0 }}", 2, "the chat template failed: ZeroDivisionError"),
        ("\n\n\n{{ messages[0].content + 1 }}", 4, "the chat template failed: TypeError"),
    ],
)
def test_mistakes_name_file_and_line(tmp_path, template, line, message):
    path = tmp_path / "chat_template.jinja"
    path.write_text(template)
    tokenizer = load_tokenizer({"tokenizer.json": cases.tokenizer_json("byte_level"), path.name: path}, {})
    with pytest.raises(SourceError) as error:
        tokenizer.chat(USER)
    assert str(error.value).startswith(f"{path}, line {line}: {message}")


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ raise_exception.__globals__.json }}",
        "{{ cycler.__init__.__globals__.os.getcwd() }}",
        "{{ namespace.__init__.__globals__.sys }}",
    ],
)
def test_templates_are_strangers(template):
    """Nothing of Python is in reach, and nothing can be changed."""
    with pytest.raises(
        SourceError, match=r"chat_template\), line 1: the chat template failed: (Security|Undefined)Error"
    ):
        loaded({"chat_template": template}).chat(USER)


ENDLESS = {
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "a filtered loop": "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
    "macros": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "recursive loops": "{% set a = [[], []] %}"
    + "{% set a = [a, a] %}" * 40
    + "{% for x in a recursive %}{{ loop(x) }}{% endfor %}",
    "a power": "{% set n = (10 ** 9) * (messages | length) %}{{ 10 ** n }}",
    "a folded power": "{{ 10 ** (10 ** 9) }}",
    "lipsum": "{{ lipsum(n=99999, min=9999, max=99999) }}",
    "a comparison": "{% set a = [1] %}{% set b = [1] %}"
    + "{% set a = [a, a] %}{% set b = [b, b] %}" * 60
    + "{{ a == b }}",
}
LARGE = {
    "text times a number": "{{ messages[0].content * 10 ** 10 }}",
    "doubled text": "{% set x = messages[0].content %}" + "{% set x = x ~ x %}" * 50 + "{{ x }}",
    "doubled lists": "{% set x = messages %}" + "{% set x = x + x %}" * 50 + "{{ x }}",
    "center": "{{ messages[0].content | center(10 ** 10) }}",
    "indent": "{{ '\n'.join(['a'] * 20000) | indent(10 ** 6) }}",
    "ljust": "{{ messages[0].content.ljust(10 ** 10) }}",
    "a width": "{{ '{:10000000000}'.format(1) }}",
    "a width in percent": "{{ '%9999999999d' % (messages | length) }}",
    "replace": "{{ ('a' * 99999).replace('', 'a' * 99999) }}",
    "join": "{{ range(99999) | join('a' * 99999) }}",
    "a list's text": "{% set a = [1] %}" + "{% set a = [a, a] %}" * 40 + "{{ a }}",
    "output": "{% for i in range(99999) %}{{ 'a' * 999 }}{% endfor %}",
}


@pytest.fixture(scope="module", autouse=True)
def _ends():
    yield
    chat_process.stop()


@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.brief("nested loops", "macros", "a power", "a comparison")
def test_endless_templates_are_stopped(name, monkeypatch):
    monkeypatch.setattr(chat_process, "SECONDS", 0)  # the system counts whole seconds: up to one
    with pytest.raises(
        SourceError, match=r"x: the chat template was stopped: it takes more than (0 s of CPU|2.* MiB of m)"
    ):
        Template(ENDLESS[name], "x").render({"messages": USER})


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.brief("doubled text", "doubled lists", "indent", "join", "output", "center")
def test_templates_that_grow_are_stopped(name, monkeypatch):
    monkeypatch.setattr(chat_process, "NBYTES", 64 << 20)
    with pytest.raises(SourceError, match=r"x: the chat template was stopped: it takes more than .* of (memory|text)"):
        Template(LARGE[name], "x").render({"messages": USER})


def test_after_a_template_was_stopped_others_run(monkeypatch):
    own = loaded({"chat_template": chats.TEMPLATES["chatml"]})
    before = said(own)
    with pytest.raises(SourceError, match="was stopped"):
        Template(LARGE["center"], "x").render({"messages": USER})
    assert said(own) == before
    monkeypatch.setattr(chat_process, "CHARS", 10)
    monkeypatch.setattr(chat_process, "CHARS_PER_CHAR", 0)
    with pytest.raises(SourceError, match="takes more than 10 characters of text"):
        said(own)


def test_a_process_that_is_gone_is_started_again():
    template = Template("{{ messages[0].content }}", "x")
    assert template.render({"messages": USER}) == "hi"
    os.kill(chat_process._process.pid, signal.SIGKILL)
    chat_process._process.wait()
    assert template.render({"messages": USER}) == "hi"


def test_long_conversations_are_let_through():
    """What is given counts beside the bounds: a book, in characters that JSON spells with six."""
    long = [{"role": "user", "content": "é\ud800" * 3_000_000}] * 3
    shown = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert len(Template(shown, "x").render({"messages": long})) == 18_000_000


def test_values_become_plain():
    class Text(str):
        def secret(self):
            return "out"

    template = Templates({"default": Template("{{ messages[0].content.secret is defined }}", "x")}, {})
    assert template.render([{"role": "user", "content": Text("a")}], False, {}) == "False"
