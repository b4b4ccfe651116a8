"""Text to tokens and back as the model's own tokenizer does it; a stop string is seen the moment it is complete."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.inference.renderer import PromptError, Renderer
from posttrain.inference.sources import ModelSourceError, import_model
from posttrain.inference.stop_strings import MATCHED, StopMatcher, token_bytes
from posttrain.records import Message, Role, Split, Task, user


@pytest.fixture(scope="module")
def folder(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return import_model(str(tiny), cache=tmp_path_factory.mktemp("cache")).path


@pytest.fixture(scope="module")
def renderer(folder: Path) -> Renderer:
    return Renderer.load(folder)


def changed(folder: Path, target: Path, **config: object) -> Renderer:
    """The same folder with other entries in tokenizer_config.json (None removes one)."""
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    merged = json.loads((target / "tokenizer_config.json").read_text()) | config
    (target / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in merged.items() if v is not None}))
    return Renderer.load(target)


def task(*messages: Message, render: Any = "chat") -> Task:
    return Task("d", Split.TRAIN, messages, "exact", render=render)


@given(text=st.text(max_size=60))
def test_every_text_comes_back_as_it_was(renderer: Renderer, text: str) -> None:
    assert renderer.decode(renderer.encode(text)) == text


def test_special_tokens_are_kept_or_skipped_and_never_added(renderer: Renderer) -> None:
    ids = renderer.encode("<|im_start|>hello<|im_end|>")
    assert (ids[0], ids[-1], len(ids)) == (1, 2, 3)
    assert renderer.decode(ids) == "<|im_start|>hello<|im_end|>"
    assert renderer.decode(ids, skip_special_tokens=True) == "hello"
    assert renderer.eos_ids == (2, 0)
    assert renderer.vocab_size == 3 + 256 + 6


TEMPLATES = [
    "{% for m in messages %}\n  {% if m.role == 'user' %}\n<|im_start|>{{ m['content'] | trim }}\n  {% endif %}"
    "\n{% endfor %}",
    "{{ bos_token }}{% for m in messages %}{{ m | tojson }}{% endfor %}{% if add_generation_prompt %}A:{% endif %}",
    "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.content }}é{% endfor %}{{ eos_token }}",
]


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_chat_is_rendered_as_transformers_does(folder: Path, tmp_path: Path, template: str) -> None:
    from transformers import AutoTokenizer

    ours = changed(folder, tmp_path / "m", chat_template=template)
    messages = [Message(Role.SYSTEM, "Be <brief> é"), user("  hello 12\n"), Message(Role.ASSISTANT, 'a "b"')]
    want = AutoTokenizer.from_pretrained(tmp_path / "m").apply_chat_template(
        [m.to_json() for m in messages], add_generation_prompt=True, tokenize=False
    )
    assert ours.chat_text(messages) == want
    assert ours.render(task(*messages)) == ours.encode(want)


def test_the_template_may_lie_in_a_file_or_have_a_name(folder: Path, tmp_path: Path) -> None:
    named = [{"name": "tools", "template": "T"}, {"name": "default", "template": "D"}]
    assert changed(folder, tmp_path / "a", chat_template=named).chat_text([user("x")]) == "D"
    changed(folder, tmp_path / "b")
    (tmp_path / "b" / "chat_template.jinja").write_text("F")
    assert Renderer.load(tmp_path / "b").chat_text([user("x")]) == "F"


def test_a_text_is_joined_as_it_is_and_starts_with_bos_only_where_the_model_wants_it(
    renderer: Renderer, folder: Path, tmp_path: Path
) -> None:
    text = task(user("hello w"), user("or"), render="text")
    assert renderer.render(text) == renderer.encode("hello wor")
    assert changed(folder, tmp_path / "m", add_bos_token=True).render(text) == [1, *renderer.encode("hello wor")]


@pytest.mark.parametrize(
    ("template", "match"),
    [
        (None, "no chat template"),
        ("{{ raise_exception('only user messages') }}", "only user messages"),
        ("{% if %}", "refuses"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "refuses"),
        ("{{ messages.append(1) }}", "refuses"),
        ("{{ 1 / 0 }}", "refuses"),
        ("", "is empty"),
    ],
)
def test_a_chat_that_can_not_be_rendered_is_one_line(
    folder: Path, tmp_path: Path, template: str | None, match: str
) -> None:
    with pytest.raises(PromptError, match=match) as error:
        changed(folder, tmp_path / "m", chat_template=template).render(task(user("x")))
    assert "\n" not in str(error.value)


def test_a_prompt_longer_than_the_context_names_the_task_and_both_lengths(renderer: Renderer) -> None:
    long = task(user("qqqqq"), render="text")
    assert len(renderer.render(long, context_tokens=6)) == 5
    with pytest.raises(PromptError, match=rf"{long.id}: the prompt has 5 tokens, the context 5"):
        renderer.render(long, context_tokens=5)


@pytest.mark.parametrize("content", [None, b"{}", b"\xff", b"[1, 2"])
def test_a_broken_tokenizer_is_one_line(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ModelSourceError, match=r"tokenizer\.json"):
        Renderer.load(tmp_path)


# Stop strings

STOPS = st.lists(st.text(st.sampled_from("ab <é日😀>\n"), min_size=1, max_size=4), min_size=1, max_size=4)


def brute(renderer: Renderer, ids: list[int], stop: list[str]) -> int | None:
    for n in range(1, len(ids) + 1):
        if any(s in renderer.decode(ids[:n]) for s in stop):
            return n
    return None


@given(data=st.data(), stop=STOPS)
def test_a_stop_string_is_seen_exactly_when_the_decoded_text_holds_it(
    renderer: Renderer, data: st.DataObject, stop: list[str]
) -> None:
    """Text of the same few characters, cut into bytes, with foreign bytes and special tokens between them."""
    pieces = st.one_of(
        st.text(st.sampled_from("ab <é日😀>\n"), max_size=6).map(renderer.encode),
        st.integers(0, 264).map(lambda i: [i]),
    )
    ids = [i for piece in data.draw(st.lists(pieces, max_size=12)) for i in piece]
    assert renderer.stop_matcher(stop).first_match(ids) == brute(renderer, ids, stop)


@given(data=st.data(), stop=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4))
def test_no_overlap_of_stop_strings_hides_one(data: st.DataObject, stop: list[str]) -> None:
    words = ["a", "b", "ab", "aab", "bba", "abab"]
    ids = data.draw(st.lists(st.integers(0, len(words) - 1), max_size=8))
    texts = ["".join(words[i] for i in ids[:n]) for n in range(1, len(ids) + 1)]
    want = next((n for n, text in enumerate(texts, 1) if any(s in text for s in stop)), None)
    assert StopMatcher([w.encode() for w in words], stop).first_match(ids) == want


def test_a_special_token_can_stop_and_a_match_stays(renderer: Renderer) -> None:
    matcher = renderer.stop_matcher(["<|im_end|>"])
    state = matcher.advance(matcher.START, 2)
    assert state == MATCHED
    assert matcher.advance(state, 5) == MATCHED
    assert renderer.stop_matcher([]).first_match([1, 2, 3]) is None
    assert renderer.stop_matcher(["a"]).first_match([10**6, -1]) is None  # ids without text


@pytest.mark.parametrize("stop", [[""], ["\ufffd"], ["x" * 5000]])
def test_a_stop_string_that_can_not_work_is_refused(renderer: Renderer, stop: list[str]) -> None:
    with pytest.raises(ValueError, match="stop string"):
        renderer.stop_matcher(stop)


def test_a_decode_step_pays_a_look_up_for_a_row(renderer: Renderer) -> None:
    """Bounded generously: 100,000 steps take 15 ms on an idle machine, decoding each time would take seconds."""
    matcher, ids = renderer.stop_matcher(["\n", "</tool>"]), renderer.encode("hello wor < / t" * 1000)
    start, state, steps = time.perf_counter(), 0, 0
    while steps < 100_000:
        for i in ids:
            state = matcher.advance(state, i)
        steps += len(ids)
    assert state != MATCHED
    assert time.perf_counter() - start < 1.0


def test_other_tokenizers_have_bytes_too() -> None:
    fallback = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    pieces = token_bytes(
        {"decoder": {"type": "Sequence", "decoders": fallback}}, {"▁a": 0, "<0xC3>": 1, "<0xA9>": 2, "é": 4}, "m"
    )
    assert pieces == [b" a", b"\xc3", b"\xa9", b"", "é".encode()]
    assert StopMatcher(pieces, ["aé"]).first_match([0, 1, 2]) == 3
    assert token_bytes({"decoder": {"type": "Fuse"}}, {"a": 0, "é": 1}, "m") == [b"a", "é".encode()]
    for decoder in (None, {"type": "WordPiece"}):
        with pytest.raises(ValueError, match="stop strings need"):
            token_bytes({"decoder": decoder}, {"a": 0}, "m")
