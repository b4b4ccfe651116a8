"""Tells, token by token, when a row's text contains a stop string, also where it spans tokens or splits a character.

How: an Aho-Corasick automaton (Aho & Corasick 1975, doi:10.1145/360825.360855) over the bytes of the tokens. UTF-8 is
self-synchronising, so a string occurs in the decoded text exactly where its bytes occur; nothing is ever decoded. A
row's state is one integer, and the step (state, token) -> state is remembered, so that a decode step costs one
dictionary look-up a row.
Bounds: the number of states is at most the bytes of the stop strings + 1; at most `_MEMO` steps are remembered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MATCHED = -1
"""The state of a row whose text contains a stop string; it stays so."""

_MEMO = 1 << 20  # about 100 MB at the very worst; a run uses some thousands
_MAX_STOP_BYTES = 4096  # of all stop strings of a task together


class StopMatcher:
    """stop: the strings. Start a row at `START`; feed every generated token to `advance`."""

    START = 0

    def __init__(self, token_bytes: Sequence[bytes], stop: Sequence[str]) -> None:
        """token_bytes: the bytes of each token id.

        Raises ValueError for a stop string that is empty or can not be matched.
        """
        self.stop = tuple(stop)
        self._tokens = token_bytes
        words = []
        for text in self.stop:
            if not text or "\ufffd" in text:
                raise ValueError(f"stop string {text!r}: must not be empty or hold U+FFFD; remove it from `stop`")
            words.append(text.encode("utf-8", "surrogatepass"))
        if sum(map(len, words)) > _MAX_STOP_BYTES:
            raise ValueError(
                f"the stop strings have {sum(map(len, words))} bytes together, more than "
                f"{_MAX_STOP_BYTES}; shorten them"
            )
        self._edges, self._back = _automaton(words)
        self._memo: dict[tuple[int, int], int] = {}

    def advance(self, state: int, token_id: int) -> int:
        """The state after one more token; `MATCHED` once the text since `START` contains a stop string."""
        if state == MATCHED:
            return MATCHED
        key = (state, token_id)
        known = self._memo.get(key)
        if known is None:
            if len(self._memo) >= _MEMO:
                self._memo.clear()
            known = self._memo[key] = self._walk(state, token_id)
        return known

    def first_match(self, ids: Sequence[int]) -> int | None:
        """How many tokens it takes until a stop string is complete, None where none is."""
        state = self.START
        for index, token in enumerate(ids):
            state = self.advance(state, token)
            if state == MATCHED:
                return index + 1
        return None

    def _walk(self, state: int, token_id: int) -> int:
        # an id beyond the tokenizer's (embeddings padded to a round number) has no text
        for byte in self._tokens[token_id] if 0 <= token_id < len(self._tokens) else b"":
            while byte not in self._edges[state] and state:
                state = self._back[state]
            state = self._edges[state].get(byte, 0)
            if state == MATCHED:
                return MATCHED
        return state


def _automaton(words: Sequence[bytes]) -> tuple[list[dict[int, int]], list[int]]:
    """(edges of each state, state to fall back to). A state whose path ends in a word is `MATCHED` and has no edges."""
    edges: list[dict[int, int]] = [{}]
    for word in words:
        state = 0
        for byte in word[:-1]:
            following = edges[state].get(byte)
            if following == MATCHED:  # a shorter word ends on the way: it always matches first
                break
            if following is None:
                edges.append({})
                following = edges[state][byte] = len(edges) - 1
            state = following
        else:
            edges[state][word[-1]] = MATCHED
    back = [0] * len(edges)
    queue = [s for s in edges[0].values() if s != MATCHED]
    for state in queue:  # breadth first: a state's fall-back is shallower, so it is complete
        for byte, following in list(edges[state].items()):
            fall = back[state]
            while byte not in edges[fall] and fall:
                fall = back[fall]
            shallower = edges[fall].get(byte, 0)
            if shallower == MATCHED:  # another word ends here, in the middle of this one
                edges[state][byte] = MATCHED
            elif following != MATCHED:
                back[following] = shallower
                queue.append(following)
    return edges, back


def token_bytes(tokenizer: Mapping[str, Any], vocabulary: Mapping[str, int], name: str) -> list[bytes]:
    """The bytes that each token id adds to a text.

    tokenizer: the contents of tokenizer.json. vocabulary: token -> id.
    """
    kinds = [str(part.get("type")) for part in _decoders(tokenizer.get("decoder"))]
    known = {"ByteLevel", "ByteFallback", "Metaspace", "Replace", "Fuse", "Strip"}
    if not kinds or not set(kinds) <= known:
        raise ValueError(
            f"{name}: stop strings need a tokenizer.json with a decoder of "
            f"{', '.join(sorted(known))}; it has {kinds or 'none'}"
        )
    replaced = [p for p in _decoders(tokenizer.get("decoder")) if p.get("type") == "Replace"]
    pairs = [(p["pattern"]["String"], p["content"]) for p in replaced if "String" in p.get("pattern", {})]
    if "Metaspace" in kinds:
        pairs.append(("\u2581", " "))
    of_char = _byte_level() if "ByteLevel" in kinds else {}
    out = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for token, index in vocabulary.items():
        if of_char and all(c in of_char for c in token):
            out[index] = bytes(of_char[c] for c in token)
        elif "ByteFallback" in kinds and len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            out[index] = bytes([int(token[3:5], 16)])
        else:
            for old, new in pairs:
                token = token.replace(old, new)
            out[index] = token.encode("utf-8", "surrogatepass")
    return out


def _decoders(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        return []
    return list(decoder["decoders"]) if decoder.get("type") == "Sequence" else [decoder]


def _byte_level() -> dict[str, int]:
    """Character -> byte of byte-level BPE (GPT-2): printable Latin-1 as it is, the others from U+0100 onwards."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}
