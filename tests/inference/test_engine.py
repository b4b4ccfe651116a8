"""The engine samples from the policy that the trainer trains, whatever shares the batch, in bounded memory."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import tiny

from posttrain.inference import engine as engine_module
from posttrain.inference.architecture import Architecture
from posttrain.inference.engine import ContextOverflow, Engine
from posttrain.inference.lora import LoraAdapter
from posttrain.inference.model import Transformer
from posttrain.inference.renderer import Renderer
from posttrain.inference.sampling import Sample, SampleRequest
from posttrain.records import StopReason
from posttrain.training.packing import Family, Member
from posttrain.training.trainer import Trainer

BFLOAT16_NATS = 2e-2
VOCABULARY = tiny.CONFIG["vocab_size"]


class Flat:
    """A loss that takes the gradient of nothing in particular: only the comparison of log-probabilities is wanted."""

    def token_loss(self, logprob: torch.Tensor, sampled: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
        return logprob * 0.0


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    folder = tmp_path_factory.mktemp("model")
    tiny.write_folder(folder, tiny.random_state())
    return Renderer.load(folder)


def engine_of(renderer: Renderer, dtype: torch.dtype = torch.float32, **options: Any) -> Engine:
    architecture = Architecture.from_config(tiny.CONFIG)
    adapter = tiny.random_adapter(architecture).copy(dtype)
    for parameter in adapter.parameters().values():
        parameter.requires_grad_()
    return Engine(Transformer(architecture, tiny.random_state(), dtype=dtype), renderer, adapter, **options)


@contextmanager
def bounds(**values: float) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setattr(engine_module, name, value)
        yield


def gap(engine: Engine, requests: list[SampleRequest], samples: list[list[Sample]], micro_batch_tokens: int) -> float:
    """Largest |difference| in nats between the log-probabilities that the engine reported and the trainer's."""
    adapter = engine.adapter
    assert isinstance(adapter, LoraAdapter)
    trainer = Trainer(engine.model, adapter.parameters(), adapter.fused)
    worst = 0.0
    for temperature in {r.temperature for r in requests}:
        families = []
        for request, group in zip(requests, samples, strict=True):
            if request.temperature == temperature:
                members = [_member(b, s) for b, s in zip(request.branches, group, strict=True)]
                families.append(Family(request.prefix, tuple(members)))
        seen = trainer.forward_backward(
            families, Flat(), temperature=temperature or 1.0, micro_batch_tokens=micro_batch_tokens
        )
        assert seen.tokens == sum(len(m.ids) - m.weight.count(0.0) for f in families for m in f.members)
        worst = max(worst, seen.logprob_gap_max)
    return worst


def _member(branch: tuple[int, ...], sample: Sample) -> Member:
    before, own = len(branch), len(sample.token_ids)
    return Member(
        ids=(*branch, *sample.token_ids),
        weight=(0.0,) * before + (1.0,) * own,
        advantage=(1.0,) * (before + own),
        sampled_logprob=(float("nan"),) * before + sample.logprobs,
    )


@st.composite
def schedules(draw: st.DrawFn) -> list[SampleRequest]:
    """Groups with stems in common, branches of unequal lengths, several temperatures, rows that end early."""
    rng = random.Random(draw(st.integers(0, 2**32)))

    def ids(n: int) -> tuple[int, ...]:
        return tuple(rng.randrange(VOCABULARY - 1) for _ in range(n))

    stems = [ids(20), ids(20)[:18], ()]
    requests = []
    for _ in range(draw(st.integers(1, 5))):
        prefix = rng.choice(stems) + ids(rng.choice([0, 1, 2, 17, 40]))
        size = draw(st.integers(1, 6))
        later = draw(st.booleans())
        requests.append(
            SampleRequest(
                prefix=prefix or ids(1),
                branches=tuple(ids(rng.choice([0, 1, 5, 30])) if later else () for _ in range(size)),
                seeds=tuple(rng.randrange(2**64) for _ in range(size)),
                max_new_tokens=draw(st.sampled_from([1, 3, 12])),
                temperature=draw(st.sampled_from([0.0, 0.4, 1.0, 1.0, 1.6])),
                stop=draw(st.sampled_from([(), ("a",), ("1", "bc", "\n")])),
            )
        )
    return requests


@given(
    requests=schedules(),
    rows=st.sampled_from([2, 5, 128]),
    prefill=st.sampled_from([8, 64, 1024]),
    compact_below=st.sampled_from([0.0, 0.75, 1.01]),
    micro_batch_tokens=st.sampled_from([16, 1024]),
)
@settings(max_examples=30)
def test_the_engine_reports_the_log_probabilities_that_the_trainer_computes(
    renderer: Renderer,
    requests: list[SampleRequest],
    rows: int,
    prefill: int,
    compact_below: float,
    micro_batch_tokens: int,
) -> None:
    engine = engine_of(renderer)
    with bounds(MAX_ROWS=rows, PREFILL_TOKENS=prefill, COMPACT_BELOW=compact_below):
        samples = engine.sample(requests)
        again = engine.sample(requests)  # now behind cached prefixes
    assert [len(group) for group in samples] == [len(r.seeds) for r in requests]
    assert gap(engine, requests, samples, micro_batch_tokens) <= 1e-4
    assert gap(engine, requests, again, micro_batch_tokens) <= 1e-4


def test_in_bfloat16_the_gap_stays_within_its_bound(renderer: Renderer) -> None:
    engine = engine_of(renderer, torch.bfloat16)
    requests = [SampleRequest(tuple(range(i, i + 30)), ((),) * 8, tuple(range(8)), 24) for i in range(6)]
    measured = gap(engine, requests, engine.sample(requests), 512)
    assert 0 < measured <= BFLOAT16_NATS


@given(requests=schedules(), rng=st.randoms(use_true_random=False))
@settings(max_examples=25)
def test_an_attempt_gets_the_same_tokens_alone_in_another_order_and_in_another_batch(
    renderer: Renderer, requests: list[SampleRequest], rng: random.Random
) -> None:
    engine = engine_of(renderer)
    together = dict(zip(requests, engine.sample(requests), strict=True))
    shuffled = list(together)
    rng.shuffle(shuffled)
    with bounds(MAX_ROWS=3):
        for request, samples in zip(shuffled, engine_of(renderer).sample(shuffled), strict=True):
            assert [s.token_ids for s in samples] == [s.token_ids for s in together[request]]
    request = shuffled[0]
    for i, sample in enumerate(together[request]):
        alone = replace(request, branches=(request.branches[i],), seeds=(request.seeds[i],))
        engine.forget()
        assert engine.sample([alone])[0][0].token_ids == sample.token_ids


def test_attempts_with_other_seeds_differ(renderer: Renderer) -> None:
    (samples,) = engine_of(renderer).sample([SampleRequest((1, 2, 3), ((),) * 8, tuple(range(8)), 10)])
    assert len({s.token_ids for s in samples}) == 8


def test_a_turn_ends_at_its_stop_string_at_the_end_of_text_or_at_its_limit(renderer: Renderer) -> None:
    engine = engine_of(renderer)
    (samples,) = engine.sample([SampleRequest((1, 2, 3), ((),) * 64, tuple(range(64)), 30, stop=("a", "7"))])
    reasons = set()
    for sample in samples:
        ended = sample.token_ids[-1] in engine.renderer.eos_ids
        reasons.add((sample.stop_reason, ended))
        if sample.stop_reason is StopReason.LENGTH:
            assert len(sample.token_ids) == 30
            assert not set("a7") & set(sample.text)
        elif not ended:
            assert sample.text[-1] in "a7"
            assert not set("a7") & set(sample.text[:-1])
    assert (StopReason.STOP, False) in reasons
    assert (StopReason.STOP, True) in reasons


def test_a_context_that_can_not_hold_the_answer_is_refused_before_any_work(renderer: Renderer) -> None:
    engine = engine_of(renderer, max_context_tokens=40)
    good = SampleRequest((1,) * 30, ((),), (0,), 10)
    with pytest.raises(ContextOverflow, match="31 tokens and 10 new"):
        engine.sample([good, SampleRequest((1,) * 30, ((), (2,)), (0, 1), 10)])
    assert not engine._prefixes, "a request was computed before the last one was looked at"
    assert len(engine.sample([good])[0]) == 1


@pytest.mark.parametrize("token", [-1, VOCABULARY])
def test_a_token_of_another_vocabulary_is_refused(renderer: Renderer, token: int) -> None:
    for request in (SampleRequest((1, token), ((),), (0,), 1), SampleRequest((1,), ((token,),), (0,), 1)):
        with pytest.raises(ValueError, match="vocabulary"):
            engine_of(renderer).sample([request])


def cached_bytes(engine: Engine) -> int:
    return sum(k.nbytes + v.nbytes for kv, _ in engine._prefixes.values() for k, v in kv)


def test_cached_prefixes_stay_under_their_bound_and_are_counted_right(renderer: Renderer) -> None:
    engine = engine_of(renderer)
    rng = random.Random(0)
    limit = 200 * engine._bytes_per_token()
    filled = False
    with bounds(PREFIX_BYTES=limit):
        for _ in range(30):
            stem = tuple(rng.randrange(40) for _ in range(20))
            # a prompt, the same prompt continued (so that it becomes a stem), and one of its own
            prompts = [stem, (*stem, 1, 2), (*stem, 3, 4), tuple(rng.randrange(40) for _ in range(9)), (5, 6)]
            engine.sample([SampleRequest(p, ((),), (0,), 1) for p in prompts])
            assert cached_bytes(engine) <= limit
            assert engine._prefix_bytes == cached_bytes(engine)
            filled |= cached_bytes(engine) > limit // 2
    assert filled


def test_a_prompt_that_is_the_stem_of_others_is_counted_once(renderer: Renderer) -> None:
    engine = engine_of(renderer)
    start = (7,) * 16
    stem = start + (2,) * 24  # shares little with the first prompt, and everything with the two that continue it
    prompts = [(*start, 1), stem, stem + (1,) * 60, stem + (3,) * 60]
    assert engine_module._stems(sorted(prompts)) == dict(zip(prompts, (start, start, stem, stem), strict=True))
    engine.sample([SampleRequest(p, ((),), (0,), 1) for p in prompts])
    assert engine._prefix_bytes == cached_bytes(engine)


def test_rows_decoded_together_stay_within_the_cache_bound(renderer: Renderer) -> None:
    engine = engine_of(renderer)
    requests = [SampleRequest((1,) * n, ((), (2,) * 5), (0, 1), 8) for n in (30, 3, 60, 10, 100)]
    tokens = 150
    with bounds(CACHE_BYTES=tokens * engine._bytes_per_token()):
        batches = list(engine._batches(requests))
        samples = engine.sample(requests)
    assert [(r.request, r.branch) for batch in batches for r in batch] == [(i, b) for i in range(5) for b in range(2)]
    assert len(batches) > 1
    for batch in batches:
        longest = max(len(requests[r.request].prefix) for r in batch)
        slots = max(len(requests[r.request].branches[r.branch]) for r in batch) + 8
        assert len({r.request for r in batch}) * longest + len(batch) * slots <= tokens
    whole = engine.sample(requests)
    assert [[s.token_ids for s in g] for g in samples] == [[s.token_ids for s in g] for g in whole]


def test_after_an_update_no_prefix_of_the_old_weights_is_used(renderer: Renderer) -> None:
    version = [0]
    engine = engine_of(renderer, version=lambda: version[0])
    request = SampleRequest((1, 2, 3, 4), ((),), (0,), 12)
    (before,) = engine.sample([request])[0]
    assert engine.adapter is not None
    tiny.randomise(engine.adapter, seed=9, size=0.2)
    version[0] = 1
    (after,) = engine.sample([request])[0]
    fresh = engine_of(renderer)
    assert fresh.adapter is not None
    tiny.randomise(fresh.adapter, seed=9, size=0.2)
    (expected,) = fresh.sample([request])[0]
    assert (before.policy_version, after.policy_version) == (0, 1)
    assert after.token_ids == expected.token_ids
    assert after.logprobs == expected.logprobs
    assert after.logprobs != before.logprobs


def test_a_prompt_seen_before_is_not_computed_again(renderer: Renderer) -> None:
    engine = engine_of(renderer)
    lengths: list[int] = []
    forward = engine.model.forward

    def counted(ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        lengths.append(len(ids))
        return forward(ids, *rest)

    engine.model.forward = counted  # type: ignore[method-assign,assignment]
    prompt = tuple(range(30))
    engine.sample([SampleRequest(prompt, ((),) * 4, (0, 1, 2, 3), 3)])
    assert lengths == [30, 4, 4], "one prefill for the group, then two steps (the first token comes from the prefill)"
    lengths.clear()
    engine.sample([SampleRequest(prompt, ((1, 2), (3,)), (4, 5), 2)])
    assert lengths == [3, 2], "a later turn pays for its own tokens only"
