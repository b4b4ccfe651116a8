"""Text to tokens and back, for one model: encoding, the chat template, the tokens that end a text, and stop strings.

Wraps `tokenizers` (importing transformers takes seconds). A chat is rendered once, as text, through the model's own
template in a sandboxed environment, and encoded once; nothing is re-tokenised afterwards (invariant 1).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posttrain.inference.import_errors import ModelSourceError
from posttrain.inference.model_folder import ModelFolder, read_json
from posttrain.inference.stop_strings import StopMatcher, token_bytes
from posttrain.records import Message, Task

if TYPE_CHECKING:
    from jinja2 import Template
    from tokenizers import Tokenizer


class PromptError(ValueError):
    """A task can not be rendered: no chat template, a template that refuses it, or a prompt that is too long."""


class Renderer:
    """eos_ids: tokens that end a text.

    vocab_size: ids are below it. add_bos: whether a plain text starts with the BOS token.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, config: dict[str, Any], eos_ids: Iterable[int], template: str | None, name: str
    ) -> None:
        self.name = name
        self._tokenizer = tokenizer
        self._special = {
            role: _content(config.get(role)) for role in ("bos_token", "eos_token", "pad_token", "unk_token")
        }
        self._template_text = template
        self._template: Template | None = None
        self._matchers: dict[tuple[str, ...], StopMatcher] = {}
        self._token_bytes: list[bytes] | None = None
        bos = self._special["bos_token"]
        self.bos_id: int | None = tokenizer.token_to_id(bos) if bos else None
        self.add_bos = bool(config.get("add_bos_token")) and self.bos_id is not None
        self.eos_ids: tuple[int, ...] = tuple(dict.fromkeys(eos_ids))
        self.vocab_size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @classmethod
    def load(cls, folder: ModelFolder | Path) -> Renderer:
        """From the tokenizer, chat template and generation settings of a folder. Raises ModelSourceError."""
        from tokenizers import Tokenizer

        path = folder.path if isinstance(folder, ModelFolder) else folder
        try:
            tokenizer = Tokenizer.from_str((path / "tokenizer.json").read_text(encoding="utf-8"))
        except OSError as error:
            raise ModelSourceError(
                f"{path}/tokenizer.json: can not be read ({error.strerror}); import the model again"
            ) from None
        except Exception as error:  # noqa: BLE001, boundary: the library raises a bare Exception for a foreign file
            raise ModelSourceError(
                f"{path}/tokenizer.json: not a tokenizer ({str(error)[:80]}); import the model again"
            ) from None
        tokenizer.no_truncation()
        tokenizer.no_padding()
        config = read_json(path / "tokenizer_config.json") if (path / "tokenizer_config.json").exists() else {}
        own = path / "chat_template.jinja"
        template = own.read_text(encoding="utf-8") if own.exists() else _default_template(config.get("chat_template"))
        return cls(
            tokenizer, config=config, eos_ids=_eos_ids(path, config, tokenizer), template=template, name=str(path)
        )

    @property
    def has_chat_template(self) -> bool:
        return self._template_text is not None

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; no BOS or EOS is added.

        A special token's own spelling in the text becomes that token.
        """
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_untrusted(self, text: str) -> list[int]:
        """Token ids of a text from a tool, a program or a page: the spelling of a special token in it stays plain
        text, so that what an environment prints can not end a turn or open another role."""
        self._tokenizer.encode_special_tokens = True
        try:
            return self.encode(text)
        finally:
            self._tokenizer.encode_special_tokens = False

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of token ids; bytes that are not (yet) UTF-8 become U+FFFD."""
        return str(self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=skip_special_tokens))

    def render(self, task: Task, *, context_tokens: int | None = None) -> list[int]:
        """The prompt of a task as token ids. Raises PromptError.

        context_tokens: what the prompt and one token of the answer must fit in.

        `chat`: the messages through the model's template, with the header of the answer. `text`: their contents joined
        as they are.
        """
        ids = (
            self.encode(self.chat_text(task.prompt))
            if task.render == "chat"
            else self.encode_prompt("".join(m.content for m in task.prompt))
        )
        if not ids:
            raise PromptError(f"{task.id}: the prompt is empty; give the task at least one character")
        if context_tokens is not None and len(ids) >= context_tokens:
            raise PromptError(
                f"{task.id}: the prompt has {len(ids)} tokens, the context {context_tokens}; "
                "shorten it or raise the context"
            )
        return ids

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a text that starts a sequence: with BOS where the model was trained so (`add_bos_token`)."""
        ids = self.encode(text)
        return [self.bos_id, *ids] if self.add_bos and self.bos_id is not None else ids

    def chat_text(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The conversation as the model's template writes it. Raises PromptError."""
        try:
            if self._template is None:
                if self._template_text is None:
                    raise PromptError(
                        f"{self.name}: the model has no chat template; "
                        'set render = "text" in the task, or use an instruct model'
                    )
                self._template = _compile(self._template_text)
            return self._template.render(
                messages=[m.to_json() for m in messages],
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._special,
            )
        except PromptError:
            raise
        except Exception as error:  # noqa: BLE001, boundary: a template is foreign code, its expressions raise anything
            reason = " ".join(str(error).split())[:120]
            raise PromptError(f"{self.name}: the chat template refuses these messages ({reason})") from None

    def stop_matcher(self, stop: Sequence[str]) -> StopMatcher:
        """The matcher for these stop strings; made once for each set of strings and shared by all rows."""
        key = tuple(stop)
        if key not in self._matchers:
            if self._token_bytes is None:
                self._token_bytes = token_bytes(
                    json.loads(self._tokenizer.to_str()), self._tokenizer.get_vocab(with_added_tokens=True), self.name
                )
            self._matchers[key] = StopMatcher(self._token_bytes, key)
        return self._matchers[key]


def _content(token: object) -> str | None:
    """A token of tokenizer_config.json: its text, or an object that holds it."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _default_template(value: object) -> str | None:
    """The template, or the one named `default` of several."""
    if isinstance(value, list):
        value = next((v.get("template") for v in value if isinstance(v, dict) and v.get("name") == "default"), None)
    return value if isinstance(value, str) else None


def _eos_ids(path: Path, config: dict[str, Any], tokenizer: Tokenizer) -> list[int]:
    found: list[int] = []
    for name in ("config.json", "generation_config.json"):
        value = read_json(path / name).get("eos_token_id") if (path / name).exists() else None
        found += [v for v in (value if isinstance(value, list) else [value]) if type(v) is int and v >= 0]
    named = _content(config.get("eos_token"))
    index = tokenizer.token_to_id(named) if named else None
    return found if index is None else [*found, index]


def _compile(text: str) -> Template:
    """As hub templates expect: trimmed blocks, loop controls, `raise_exception`, `strftime_now`, readable JSON."""
    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def to_json(value: object, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = to_json
    now: Callable[[str], str] = lambda form: datetime.now().strftime(form)  # noqa: E731
    environment.globals |= {"raise_exception": refuse, "strftime_now": now}
    return environment.from_string(text)
