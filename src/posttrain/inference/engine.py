"""The embedded engine: groups of continuations sampled from the weights that the trainer trains.

A call prefills each prompt once (a group shares it; a prompt seen before under this policy version is not computed
again), then each attempt's own continuation, then decodes all rows together, one token a step, and lets go of rows that
ended. Bounds: `MAX_ROWS` rows and `CACHE_BYTES` of keys and values at a time (one row always runs), `PREFILL_TOKENS`
tokens in one prefill pass, `PREFIX_BYTES` of prefixes kept between batches.
Invariant: what an attempt samples depends on its context, its seed and the weights, up to float rounding in the
products.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from posttrain.inference.attention import ROOT, Tree, TreeAttention, common_prefix
from posttrain.inference.kv_cache import DecodeCache, LayerKv
from posttrain.inference.lora import LayerLora, LoraAdapter
from posttrain.inference.model import Transformer
from posttrain.inference.renderer import Renderer
from posttrain.inference.sampling import Sample, SampleRequest, draw, uniforms
from posttrain.inference.stop_strings import MATCHED, StopMatcher
from posttrain.records import StopReason

MAX_ROWS = 128  # decoding gains little from more rows on a CPU, and memory grows with each
CACHE_BYTES = 2**30  # 23,000 tokens of SmolLM2-135M: full batches of short episodes, eleven rows of 2,048 tokens
PREFILL_TOKENS = 1024
PREFIX_BYTES = 256 * 2**20
MIN_STEM_TOKENS = 16  # a shorter common beginning is not worth a pass of its own
COMPACT_BELOW = 0.75  # copying the caches costs about one decode step: only once a quarter of the rows has ended


class ContextOverflow(ValueError):
    """A prompt that does not fit into the context together with what is to be generated."""


@dataclass(slots=True)
class _Row:
    """One attempt while it is decoded."""

    request: int
    branch: int
    position: int
    matcher: StopMatcher
    uniform: list[float]
    temperature: float
    limit: int
    state: int = StopMatcher.START
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stop: StopReason | None = None


@dataclass(frozen=True, slots=True)
class _Size:
    """What a batch needs in the decode cache: all prefixes are padded to the longest, and so are the rows."""

    request: int = -1
    groups: int = 0
    prefix: int = 0
    rows: int = 0
    own: int = 0
    limit: int = 0

    @property
    def tokens(self) -> int:
        return self.groups * self.prefix + self.rows * (self.own + self.limit)

    def with_row(self, request: int, prefix: int, own: int, limit: int) -> _Size:
        groups = self.groups + (request != self.request)
        return _Size(
            request, groups, max(self.prefix, prefix), self.rows + 1, max(self.own, own), max(self.limit, limit)
        )


class Engine:
    """Samples from `model` with `adapter`. `version()` is the policy version that tags the tokens."""

    def __init__(
        self,
        model: Transformer,
        renderer: Renderer,
        adapter: LoraAdapter | None = None,
        *,
        max_context_tokens: int = 2048,
        version: Callable[[], int] = lambda: 0,
    ):
        self.model, self.renderer, self.adapter = model, renderer, adapter
        self.max_context_tokens = min(max_context_tokens, model.architecture.max_position)
        self.version = version
        self._prefixes: OrderedDict[tuple[int, ...], tuple[LayerKv, Tensor]] = OrderedDict()
        self._prefix_bytes = 0
        self._prefixes_version = -1

    @torch.no_grad()
    def sample(self, requests: list[SampleRequest]) -> list[list[Sample]]:
        """For each request one sample for each branch. Raises `ContextOverflow` or ValueError before any work
        starts."""
        for request in requests:
            self._check(request)
        version = self.version()
        if self._prefixes_version != version:
            self.forget()
            self._prefixes_version = version
        samples: list[list[Sample | None]] = [[None] * len(r.seeds) for r in requests]
        for rows in self._batches(requests):
            for row in self._run(requests, rows):
                samples[row.request][row.branch] = self._finish(row, version)
        return [[s for s in group if s is not None] for group in samples]

    def forget(self) -> None:
        """Drops the cached prefixes: they belong to other weights."""
        self._prefixes.clear()
        self._prefix_bytes = 0

    def _check(self, request: SampleRequest) -> None:
        longest = max(len(b) for b in request.branches)
        total = len(request.prefix) + longest + request.max_new_tokens
        if total > self.max_context_tokens:
            raise ContextOverflow(
                f"a prompt of {len(request.prefix) + longest} tokens and {request.max_new_tokens} new ones pass the "
                f"context of {self.max_context_tokens}: shorten the prompt or raise model.max_context_tokens"
            )
        vocabulary = self.model.architecture.vocab_size
        for ids in (request.prefix, *request.branches):
            if any(not 0 <= i < vocabulary for i in ids):
                raise ValueError(
                    f"a token id lies outside the vocabulary of {vocabulary}: the prompt is from another tokenizer"
                )

    def _batches(self, requests: list[SampleRequest]) -> Iterator[list[_Row]]:
        """Rows in order, cut where a batch is full."""
        rows: list[_Row] = []
        size = _Size()
        per_token = self._bytes_per_token()
        for i, request in enumerate(requests):
            for b, (branch, seed) in enumerate(zip(request.branches, request.seeds, strict=True)):
                grown = size.with_row(i, len(request.prefix), len(branch), request.max_new_tokens)
                if rows and (len(rows) == MAX_ROWS or grown.tokens * per_token > CACHE_BYTES):
                    yield rows
                    rows, grown = [], _Size().with_row(i, len(request.prefix), len(branch), request.max_new_tokens)
                size = grown
                rows.append(
                    _Row(
                        request=i,
                        branch=b,
                        position=len(request.prefix) + len(branch),
                        matcher=self.renderer.stop_matcher(request.stop),
                        uniform=uniforms(seed, len(branch), request.max_new_tokens).tolist(),
                        temperature=request.temperature,
                        limit=request.max_new_tokens,
                    )
                )
        if rows:
            yield rows

    def _bytes_per_token(self) -> int:
        a = self.model.architecture
        return 2 * 4 * a.layers * a.kv_heads * a.head_dim

    def _run(self, requests: list[SampleRequest], rows: list[_Row]) -> list[_Row]:
        order = sorted({row.request for row in rows})
        group = {request: g for g, request in enumerate(order)}
        self._prefill([requests[r].prefix for r in order])
        prefixes = [self._prefixes[requests[r].prefix] for r in order]
        group_of_row = [group[row.request] for row in rows]
        own, hidden_bd = self._prefill_branches(requests, rows, prefixes, group_of_row)
        slots = max(len(o[0][0]) if o is not None else 0 for o in own) + max(r.limit for r in rows)
        cache = DecodeCache([kv for kv, _ in prefixes], group_of_row, own, slots)
        self._decode(rows, cache, hidden_bd)
        self._trim()
        return rows

    def _lora(self) -> list[LayerLora] | None:
        return self.adapter.frozen(self.version()) if self.adapter is not None else None

    def _prefill(self, prompts: list[tuple[int, ...]]) -> None:
        """Computes the prompts that are not cached. Prompts that begin alike share their stem: it is computed first."""
        missing = sorted({p for p in prompts if p not in self._prefixes})
        stems = _stems(missing)
        self._extend({stem: () for stem in stems.values() if stem and stem not in self._prefixes})
        # a prompt may be the stem of others: it is there now, and computed twice it would count twice
        self._extend({prompt: stem for prompt, stem in stems.items() if prompt not in self._prefixes})
        for prompt in prompts:
            self._prefixes.move_to_end(prompt)

    def _extend(self, stem_of: dict[tuple[int, ...], tuple[int, ...]]) -> None:
        """Computes each prompt behind its (cached, possibly empty) stem, in passes of about `PREFILL_TOKENS`."""
        for chunk in _chunks(stem_of):
            families: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
            for prompt in chunk:
                families.setdefault(stem_of[prompt], []).append(prompt)
            trees = [
                Tree(tuple((len(p) - len(stem), ROOT) for p in members), past=len(stem))
                for stem, members in families.items()
            ]
            past = [self._prefixes[stem][0] if stem else None for stem in families]
            ordered = [(stem, p) for stem, members in families.items() for p in members]
            attention = TreeAttention(trees, self.model.device, past=past, keep=True)
            hidden = self._forward([i for stem, p in ordered for i in p[len(stem) :]], trees, attention)
            split = [len(p) - len(stem) for stem, p in ordered]
            layers = [(k.split(split), v.split(split)) for k, v in attention.kept]
            for i, ((stem, prompt), last) in enumerate(zip(ordered, hidden.split(split), strict=True)):
                before = self._prefixes[stem][0] if stem else None
                kv = [_joined(before[n] if before else None, k[i], v[i]) for n, (k, v) in enumerate(layers)]
                self._prefixes[prompt] = (kv, last[-1].clone())
                self._prefix_bytes += 2 * kv[0][0].nbytes * len(kv)

    def _trim(self) -> None:
        while self._prefix_bytes > PREFIX_BYTES and self._prefixes:
            _, (kv, _) = self._prefixes.popitem(last=False)
            self._prefix_bytes -= 2 * kv[0][0].nbytes * len(kv)

    def _prefill_branches(
        self,
        requests: list[SampleRequest],
        rows: list[_Row],
        prefixes: list[tuple[LayerKv, Tensor]],
        group_of_row: list[int],
    ) -> tuple[list[LayerKv | None], Tensor]:
        """Each row's own keys and values behind the prefix, and the hidden state [B, d] that predicts its next
        token."""
        own: list[LayerKv | None] = [None] * len(rows)
        hidden: list[Tensor] = [prefixes[g][1] for g in group_of_row]
        waiting = [i for i, row in enumerate(rows) if requests[row.request].branches[row.branch]]
        while waiting:
            chunk: list[int] = []
            tokens = 0
            while waiting and (not chunk or tokens < PREFILL_TOKENS):
                chunk.append(waiting.pop(0))
                tokens += len(requests[rows[chunk[-1]].request].branches[rows[chunk[-1]].branch])
            branches = [requests[rows[i].request].branches[rows[i].branch] for i in chunk]
            past = [prefixes[group_of_row[i]][0] for i in chunk]
            trees = [Tree(((len(b), ROOT),), past=len(p[0][0])) for b, p in zip(branches, past, strict=True)]
            attention = TreeAttention(trees, self.model.device, past=list(past), keep=True)
            out = self._forward([t for b in branches for t in b], trees, attention)
            split = [t.tokens for t in trees]
            layers = [(k.split(split), v.split(split)) for k, v in attention.kept]
            for j, (i, last) in enumerate(zip(chunk, out.split(split), strict=True)):
                own[i] = [(k[j], v[j]) for k, v in layers]
                hidden[i] = last[-1]
        return own, torch.stack(hidden)

    def _forward(self, ids: list[int], trees: list[Tree], attention: TreeAttention) -> Tensor:
        device = self.model.device
        positions = torch.tensor([p for t in trees for p in t.positions()], device=device)
        return self.model.forward(torch.tensor(ids, device=device), positions, attention, self._lora())

    def _decode(self, rows: list[_Row], cache: DecodeCache, hidden_bd: Tensor) -> None:
        live = list(rows)
        device = self.model.device
        lora = self._lora()
        while True:
            tokens = self._draw(live, self.model.logits(hidden_bd))
            open_rows = [i for i, row in enumerate(live) if row.stop is None]
            if not open_rows:
                return
            if len(open_rows) < COMPACT_BELOW * len(live):
                keep = torch.tensor(open_rows, device=device)
                cache.keep_rows(keep)
                live = [live[i] for i in open_rows]
                tokens = tokens[keep]
            positions = torch.tensor([row.position for row in live], device=device)
            hidden_bd = self.model.forward(tokens, positions, cache, lora)
            cache.advance()
            for row in live:
                row.position += 1

    def _draw(self, live: list[_Row], logits_bv: Tensor) -> Tensor:
        """Samples every row and books the token where the row is still open. Returns [B] token ids."""
        steps = [len(row.ids) for row in live]
        uniform = torch.tensor([row.uniform[min(s, row.limit - 1)] for row, s in zip(live, steps, strict=True)])
        temperatures = {row.temperature for row in live}
        if len(temperatures) == 1:
            token_b, logprob_b = draw(logits_bv, uniform.to(logits_bv.device), temperatures.pop())
        else:
            parts = [
                draw(logits_bv[i : i + 1], uniform[i : i + 1].to(logits_bv.device), r.temperature)
                for i, r in enumerate(live)
            ]
            token_b, logprob_b = torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])
        for row, token, logprob in zip(live, token_b.tolist(), logprob_b.tolist(), strict=True):
            if row.stop is not None:
                continue
            row.ids.append(token)
            row.logprobs.append(logprob)
            row.state = row.matcher.advance(row.state, token)
            if row.state == MATCHED or token in self.renderer.eos_ids:
                row.stop = StopReason.STOP
            elif len(row.ids) == row.limit:
                row.stop = StopReason.LENGTH
        return token_b

    def _finish(self, row: _Row, version: int) -> Sample:
        assert row.stop is not None, "a row left the decoder without a reason"
        text = self.renderer.decode(row.ids, skip_special_tokens=True)
        return Sample(tuple(row.ids), tuple(row.logprobs), row.stop, version, text)


def _joined(past: tuple[Tensor, Tensor] | None, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """A copy: the slices of a pass would keep the whole pass alive."""
    return (k.clone(), v.clone()) if past is None else (torch.cat((past[0], k)), torch.cat((past[1], v)))


def _stems(ordered: list[tuple[int, ...]]) -> dict[tuple[int, ...], tuple[int, ...]]:
    """For each of the sorted prompts what it shares with its neighbours, or () where that is not worth a pass of its
    own.

    A stem is shorter than its prompts, so that each prompt has a last token of its own to predict from.
    """
    out: dict[tuple[int, ...], tuple[int, ...]] = {}
    cluster: list[tuple[int, ...]] = []
    shared = 0

    def close() -> None:
        for prompt in cluster:
            out[prompt] = prompt[:shared] if len(cluster) > 1 else ()

    for prompt in ordered:
        common = min(shared, common_prefix(cluster[0], prompt), len(prompt) - 1) if cluster else 0
        if cluster and common < max(MIN_STEM_TOKENS, len(prompt) // 3):
            close()
            cluster = []
        shared = common if cluster else len(prompt) - 1
        cluster.append(prompt)
    close()
    return out


def _chunks(stem_of: dict[tuple[int, ...], tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
    chunk: list[tuple[int, ...]] = []
    tokens = 0
    for prompt, stem in stem_of.items():
        new = len(prompt) - len(stem)
        if chunk and tokens + new > PREFILL_TOKENS:
            yield chunk
            chunk, tokens = [], 0
        chunk.append(prompt)
        tokens += new
    if chunk:
        yield chunk
