"""What the policy writes becomes a call or an error that helps it; never an exception."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from posttrain.records import ToolCall
from posttrain.tools import BUILTIN, ToolSpec, execute, json_schema, parse_call, tools_for

PRICES = {"apple": 3, "Blue pen": 12}
TOOLS = tools_for({"prices": PRICES})
MIXED = {"mix": ToolSpec("mix", {"n": "int", "x": "float", "s": "str"}, "", lambda n, x, s: f"{n} {x} {s}")}


@pytest.mark.parametrize(
    "text",
    [
        "<add><a>12</a><b>30</b></add>",
        '<tool name="add"><a>12</a><b>30</b></tool>',
        "<tool name='add' >\n  <b> 30 </b>\n  <a>+12</a>\n</tool> and then some",
        "I will add them: <add><a>12</a><b>30</b>",  # cut at the stop string
    ],
)
def test_both_forms_of_a_call_are_understood_and_executed(text: str) -> None:
    call = parse_call(text, TOOLS)
    assert call == ToolCall("add", {"a": 12, "b": 30})
    assert execute(call, TOOLS).content == "42"


def test_arguments_have_the_declared_types() -> None:
    call = parse_call("<mix><n>-7</n><x>1.5e3</x><s> a &lt;b&gt; &amp;amp; &#65; </s></mix>", MIXED)
    assert call.arguments == {"n": -7, "x": 1500.0, "s": "a <b> &amp; &#65;"}


MALFORMED = {
    "": "no call found: write <add><a>INT</a><b>INT</b></add>",
    "12 + 30 = 42": "no call found",
    "a < b > c": "no call found",
    "<tool><a>1</a></tool>": "<tool> needs a name",
    '<tool name=""><a>1</a></tool>': "<tool> needs a name",
    '<add name="add"><a>1</a><b>2</b></add>': "takes no name=",
    "<divide><a>1</a></divide>": "unknown tool 'divide': there is add, subtract, multiply, price_of",
    "<add><a>1</a></add>": "add lacks b: write <add><a>INT</a><b>INT</b></add>",
    "<add></add>": "add lacks a, b",
    "<add><a>1</a><b>2</b><c>3</c></add>": "add has no parameter 'c': it takes a, b",
    "<add><a>1</a><a>2</a><b>3</b></add>": "a is given twice",
    "<add><a>one</a><b>2</b></add>": "a must be a whole number, not 'one'",
    "<add><a>1.5</a><b>2</b></add>": "a must be a whole number, not '1.5'",
    "<add><a></a><b>2</b></add>": "a must be a whole number, not ''",
    "<add><a>１</a><b>2</b></add>": "a must be a whole number",
    "<add><a>1_0</a><b>2</b></add>": "a must be a whole number",
    "<add><a>1<b>2</b></add>": "<a> is not closed: write <a>VALUE</a>",
    "<add>1, 2</add>": "expected an argument or </add>, found '1, 2</add>'",
    "<add><a>1</a> and <b>2</b></add>": "expected an argument or </add>",
    f"<add><a>{'9' * 5000}</a><b>2</b></add>": "a must be a whole number",
    f"<price_of><item>{'x' * 20_000}</item></price_of>": "item is longer than 16384 characters",
    "<price_of><item><b>x</b></item></price_of>": "item must be text without '<'",
}


@pytest.mark.parametrize(("text", "error"), MALFORMED.items(), ids=[t[:30] for t in MALFORMED])
def test_a_malformed_call_gets_words_that_help(text: str, error: str) -> None:
    call = parse_call(text, TOOLS)
    assert call.name == "" and call.error is not None and error in call.error
    result = execute(call, TOOLS)
    assert not result.ok and result.content == f"error: {call.error}" and len(result.content) < 250


@pytest.mark.parametrize("value", ["nan", "inf", "1e999", "0x10", "1e", ".", "--1"])
def test_a_number_is_finite_and_plain(value: str) -> None:
    error = parse_call(f"<mix><n>1</n><x>{value}</x><s></s></mix>", MIXED).error
    assert error is not None and "x must be a number" in error


tags = st.sampled_from(
    [
        "<add>",
        "</add>",
        "<a>",
        "</a>",
        "<b>",
        "</b>",
        "<tool name=",
        '"add">',
        "</tool>",
        "<",
        ">",
        "1",
        " ",
        "&",
        "\0",
        "\ud800",
    ]
)


@given(st.one_of(st.text(), st.lists(st.one_of(tags, st.text(max_size=3))).map("".join)))
@example("<add><a>1</a><b>2</b></add>")
def test_any_text_is_a_call_or_an_error(text: str) -> None:
    call = parse_call(text, TOOLS)
    assert (call.error is None) == (call.name in TOOLS)
    result = execute(call, TOOLS)
    assert result.ok or result.content.startswith("error: ")


@given(st.integers(-(10**100), 10**100), st.integers(), st.sampled_from(["add", "subtract", "multiply"]), st.booleans())
def test_what_was_written_is_what_is_computed(a: int, b: int, name: str, long: bool) -> None:
    start, end = (f'<tool name="{name}">', "</tool>") if long else (f"<{name}>", f"</{name}>")
    call = parse_call(f"{start}<a>{a}</a><b>{b}</b>{end}", TOOLS)
    expected = {"add": a + b, "subtract": a - b, "multiply": a * b}[name]
    assert execute(call, TOOLS).content == str(expected)


@pytest.mark.parametrize(
    "piece", ["<add>", "<add><a>", "<", "<tool name=", "x", "<a", "&amp;", " ", '<tool name="add"> ' + " " * 50]
)
def test_ten_megabytes_take_no_time(piece: str) -> None:
    text = piece * (10_000_000 // len(piece))
    start = time.perf_counter()
    assert parse_call(text, TOOLS).error
    assert parse_call(f"<price_of><item>{text}</item></price_of>", TOOLS).error
    assert time.perf_counter() - start < 1.0


def test_prices_are_looked_up() -> None:
    def ask(item: str) -> Any:
        return execute(ToolCall("price_of", {"item": item}), TOOLS)

    assert ask("apple").content == "3" and ask("blue PEN").content == "12"
    assert not ask("car").ok and ask("car").content == "error: no item 'car': there is apple, blue pen"


def test_a_call_that_fits_no_tool_is_refused() -> None:
    for call in (ToolCall("nope"), ToolCall("add", {"a": 1}), ToolCall("add", {"a": 1, "b": 2, "c": 3})):
        assert not execute(call, BUILTIN).ok


def test_a_bug_in_a_tool_is_not_blamed_on_the_policy() -> None:
    broken = ToolSpec("broken", {}, "", lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        execute(parse_call("<broken></broken>", {"broken": broken}), {"broken": broken})


def test_long_results_are_cut() -> None:
    long = ToolSpec("long", {}, "", lambda: "x" * 10_000)
    assert len(execute(ToolCall("long"), {"long": long}).content) < 2100


def test_a_domain_chooses_its_tools() -> None:
    assert list(tools_for({"tools": ["multiply"]})) == ["multiply"]
    assert list(tools_for({})) == list(BUILTIN)
    with pytest.raises(ValueError, match=r"unknown tool 'price_of' .it needs the setting 'prices'"):
        tools_for({"tools": ["price_of"]})


def test_a_bad_tool_is_refused_when_it_is_made() -> None:
    with pytest.raises(ValueError, match="no name"):
        ToolSpec("a b", {}, "", print)
    with pytest.raises(ValueError, match="int, float or str"):
        ToolSpec("a", {"x": "bool"}, "", print)  # type: ignore[dict-item]


def test_the_schema_is_what_chat_templates_take() -> None:
    schema = json_schema(MIXED["mix"])
    assert json.loads(json.dumps(schema)) == schema
    parameters = schema["function"]["parameters"]
    assert parameters["properties"] == {"n": {"type": "integer"}, "x": {"type": "number"}, "s": {"type": "string"}}
    assert parameters["required"] == ["n", "x", "s"] and parameters["additionalProperties"] is False
