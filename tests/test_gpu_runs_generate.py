"""The generation engine: noise, log-probs, scheduling, abort and resume."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dapolab.errors import ConfigError
from gpu_runs import generate as generate_module
from gpu_runs.generate import Generator, Request, generate
from gpu_runs.model import Decoder, ModelConfig
from gpu_runs.noise import mix, uniforms
from gpu_runs.sampling import draw

CAP = 12


@dataclass(frozen=True)
class AnyTask:
    """What the generator needs to know of a task."""

    vocab_size: int = 11
    stop_token: int = 5
    pad_token: int = 0


def made(*, dtype=torch.float32, n_kv_heads=2, seed=0):
    torch.manual_seed(seed)
    config = ModelConfig(
        vocab_size=11, d_model=16, n_heads=4, n_kv_heads=n_kv_heads, d_mlp=24, max_positions=40
    )
    model = Decoder(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(1.0 if "norm" in name else 0.0, 0.3)
    return model.to(dtype)


def engine(model=None, *, slots=4, seed=3, **settings):
    return Generator(model or made(), AnyTask(), slots=slots, cap_tokens=CAP, seed=seed, **settings)


def requests(n, *, step=0):
    rng = np.random.default_rng(step)
    return [
        Request((step, i // 3, i % 3), tuple(rng.integers(6, 11, size=1 + i % 7).tolist()))
        for i in range(n)
    ]


def largest_error(model, completions, *, temperature=1.0):
    """Return the largest difference to the log-probs of a forward pass over each whole text."""
    errors = [0.0]
    for c in completions:
        if c.tokens:
            logits = model(torch.tensor([c.request.prompt + c.tokens])) / temperature
            rows = torch.log_softmax(logits, -1)[0, len(c.request.prompt) - 1 : -1]
            full = rows[torch.arange(len(c.tokens)), list(c.tokens)].detach().numpy()
            errors.append(np.abs(full - c.logprobs).max())
    return max(errors)


# ---------------------------------------------------------------------------- noise


def test_uniforms_are_the_hash_of_what_they_name():
    # the same mixing, one Python integer at a time
    state = 0
    for word in (7, 1, 2, 3):
        state = mix(state ^ word)
    expected = [((mix(mix(state ^ i)) >> 11) + 0.5) / 2**53 for i in range(50)]
    assert uniforms(7, [(1, 2, 3)], 50).tolist() == [expected]
    assert uniforms(7, [(0, 0, 0), (1, 2, 3)], 20)[1].tolist() == expected[:20]


def test_mix_is_splitmix64():
    # first outputs of the reference generator for seed 1234567 (Vigna, splitmix64.c)
    gamma, published = 0x9E3779B97F4A7C15, [6457827717110365317, 3203168211198807973]
    assert [mix((1234567 + i * gamma) % 2**64) for i in range(2)] == published


def test_uniforms_are_uniform_and_unrelated():
    n = 40_000
    u = uniforms(0, [(0, 0, 0)], n)[0]
    others = [(0, (0, 0, 1)), (0, (0, 1, 0)), (0, (1, 0, 0)), (1, (0, 0, 0)), (0, (0, 0, -1))]
    assert abs(u.mean() - 1 / 2) < 4.5 * (1 / 12 / n) ** 0.5
    assert abs((u**2).mean() - 1 / 3) < 4.5 * (4 / 45 / n) ** 0.5
    assert abs(u.mean() - 1 / 2 * 1.05) > 4.5 * (1 / 12 / n) ** 0.5
    for seed, key in others:
        correlation = np.corrcoef(u, uniforms(seed, [key], n)[0])[0, 1]
        assert abs(correlation) < 4.5 / n**0.5
    assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 4.5 / n**0.5


def test_drawn_tokens_are_the_inverse_cdf():
    logits = torch.randn(500, 9, generator=torch.Generator().manual_seed(1)) * 3
    noise = torch.rand(500, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    tokens, logp = draw(logits, noise, 0.8)
    p = torch.softmax(logits.double() / 0.8, -1)
    for row in range(500):
        below = sum(p[row, : tokens[row]]).item() if tokens[row] else 0.0
        assert below - 1e-6 <= noise[row].item() < below + p[row, tokens[row]].item() + 1e-6
        assert logp[row].item() == pytest.approx(p[row, tokens[row]].log().item(), abs=1e-5)


def test_impossible_tokens_are_never_drawn():
    logits = torch.full((3, 6), -torch.inf)
    logits[:, 2:4] = torch.tensor([0.3, 0.1])
    ends = torch.tensor([1e-300, 0.5, 1 - 2**-53], dtype=torch.float64)
    assert draw(logits, ends, 1.0)[0].tolist() == [2, 2, 3]


def test_shares_of_drawn_tokens_are_the_probabilities():
    n, p = 40_000, torch.tensor([0.5, 0.3, 0.15, 0.05])
    noise = torch.from_numpy(uniforms(5, [(0, 0, 0)], n)[0])
    tokens, _ = draw(p.log().expand(n, 4), noise, 1.0)
    shares = torch.bincount(tokens, minlength=4) / n
    error = 4.5 * (p * (1 - p) / n).sqrt()
    assert ((shares - p).abs() < error).all()
    assert not ((shares - torch.tensor([0.525, 0.285, 0.1425, 0.0475])).abs() < error).all()


# ---------------------------------------------------------------------------- answers


@pytest.mark.parametrize("n_kv_heads", [4, 1])
def test_logprobs_are_those_of_the_full_forward_through_refill_abort_and_resume(n_kv_heads):
    model = made(n_kv_heads=n_kv_heads)
    generator = engine(model, slots=5)
    generator.submit(requests(30))
    done = []
    for turn in range(200):
        done += generator.step()
        if turn % 4 == 2 and generator.n_in_flight:
            stopped = generator.abort([(0, g, s) for g in range(10) for s in (0, 2)])
            assert any(0 < len(c.tokens) < CAP for c in stopped)
            generator.resume(stopped)
        if not generator.n_in_flight:
            break
    assert {c.finish for c in done} == {"stop", "length"}
    assert len(done) == 30
    assert largest_error(model, done) < 1e-4
    assert largest_error(made(n_kv_heads=n_kv_heads, seed=1), done) > 1e-2


def test_logprobs_are_of_the_tempered_distribution():
    model = made()
    done = generate(engine(model, temperature=0.5), requests(9))
    assert largest_error(model, done, temperature=0.5) < 1e-4
    assert largest_error(model, done) > 1e-2


def test_slots_order_and_interruptions_do_not_change_an_answer():
    # float64, so that no uniform falls between two roundings of one CDF
    model, asked = made(dtype=torch.float64), requests(40)
    answers = [c.tokens for c in generate(engine(model, slots=40), asked)]
    assert len(set(answers)) > 10
    for slots in (1, 3, 16):
        shuffled = [asked[i] for i in np.random.default_rng(slots).permutation(len(asked))]
        generator = engine(model, slots=slots)
        generator.submit(shuffled)
        found = {}
        while generator.n_in_flight:
            found.update((c.request, c.tokens) for c in generator.step())
            if slots == 3:
                generator.resume(reversed(generator.abort()))
        assert [found[request] for request in asked] == answers
    assert [c.tokens for c in generate(engine(model, seed=4), asked)] != answers


def test_finish_says_how_a_response_ended():
    for c in generate(engine(), requests(30)):
        assert 1 <= len(c.tokens) == len(c.logprobs) <= CAP
        if c.finish == "stop":
            assert c.tokens[-1] == AnyTask.stop_token
        else:
            assert len(c.tokens) == CAP
        assert AnyTask.stop_token not in c.tokens[:-1]


# ---------------------------------------------------------------------------- scheduling


def test_iterations_are_first_come_first_served_with_refill():
    asked = requests(25)
    generator = engine(slots=4)
    lengths = [len(c.tokens) for c in generate(generator, asked)]
    # the judge: lists of (prompt, tokens left), no arrays
    queue = [[len(r.prompt), n, 0] for r, n in zip(asked, lengths, strict=True)]
    busy, expected = [], []
    while queue or busy:
        admitted = 0
        while queue and len(busy) < 4:
            busy.append(queue.pop(0))
            admitted += 1
        expected.append((len(busy), sum(p + w for p, _, w in busy), admitted))
        for item in busy:
            item[2] += 1
        busy = [item for item in busy if item[2] < item[1]]
    found = [(i.n, i.sum_context, i.admitted) for i in generator.iterations]
    assert found == expected
    assert sum(i.n for i in generator.iterations) == sum(lengths)


def test_long_contexts_stand_in_front_and_look_apart(monkeypatch):
    monkeypatch.setattr(generate_module, "LEAST_BAND", 2)
    seen = []
    original = Decoder.decode

    def noted(self, tokens, cache, positions, *, bands, contexts=None):
        seen.append((positions.tolist(), bands))
        return original(self, tokens, cache, positions, bands=bands, contexts=contexts)

    monkeypatch.setattr(Decoder, "decode", noted)
    model = made()
    asked = [Request((0, i, 0), (6 + i % 5,) * (13 if i % 3 else 2)) for i in range(40)]
    done = generate(engine(model, slots=12), asked)
    assert largest_error(model, done) < 1e-4
    # a cache of 32 positions (prompts of up to 13, a cap of 12, in sixteens): long from 16
    for positions, bands in seen:
        begin = 0
        for end, n_keys in bands:
            assert n_keys == max(positions[begin:end]) + 1
            begin = end
        assert begin == len(positions)
        if len(bands) == 2:
            assert min(positions[: bands[0][0]]) + 1 >= 16
    apart = [bands for _, bands in seen if len(bands) == 2]
    assert len(apart) > 3
    assert any(near < far for (_, far), (_, near) in apart)


def test_a_prompt_shared_by_a_group_is_computed_once():
    generator = engine(slots=8)
    shared = [Request((0, 0, s), (6, 7, 8, 9)) for s in range(3)]
    alone = Request((0, 1, 0), (7, 8))
    generator.submit([*shared, alone, Request((0, 2, 0), (6,))])
    generator.step()
    # the newest token of a prompt is fed by the decode: 3 of 4, 1 of 2, 0 of 1
    assert generator.iterations[0].prefill_tokens == 3 + 1
    assert generator.iterations[0].admitted == 5


def test_times_are_in_order_and_survive_a_resumption():
    now = iter(range(10_000))
    generator = engine(slots=2, clock=lambda: float(next(now)))
    generator.submit(requests(4))
    done = []
    for _ in range(3):
        done += generator.step()
    stopped = generator.abort()
    assert [c.start_s == c.end_s for c in stopped] == [not c.tokens for c in stopped]
    generator.resume(stopped)
    while generator.n_in_flight:
        done += generator.step()
    starts = {c.request.key: c.start_s for c in stopped if c.tokens}
    assert starts
    for c in done:
        assert c.submit_s < c.start_s < c.end_s
        assert c.submit_s == 0
        assert starts.get(c.request.key, c.start_s) == c.start_s
    assert all(i.seconds >= i.admit_seconds >= 0 for i in generator.iterations)


actions = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 6)),
        st.tuples(st.just("step"), st.integers(1, 5)),
        st.tuples(st.just("abort"), st.sets(st.integers(0, 40))),
        st.tuples(st.just("abort"), st.none()),
        st.tuples(st.just("resume"), st.integers(0, 4)),
    ),
    max_size=25,
)


@settings(max_examples=40)
@given(actions, st.integers(1, 5))
def test_every_request_is_answered_exactly_once(actions, slots):
    model = made()
    generator = engine(model, slots=slots)
    asked, stopped, done = [], [], []
    for action, value in actions:
        if action == "submit":
            new = [
                Request((9, i, 0), (6, 7 + i % 4)) for i in range(len(asked), len(asked) + value)
            ]
            asked += new
            generator.submit(new)
        elif action == "step":
            for _ in range(value):
                done += generator.step()
        elif action == "abort":
            keys = None if value is None else {(9, i, 0) for i in value}
            gone = generator.abort(keys)
            assert all(keys is None or c.request.key in keys for c in gone)
            stopped += gone
        else:
            back, stopped = stopped[:value], stopped[value:]
            generator.resume(back)
        assert generator.n_in_flight == len(asked) - len(stopped) - len(done)
    generator.resume(stopped)
    while generator.n_in_flight:
        done += generator.step()
    assert Counter(c.request for c in done) == Counter(asked)
    assert largest_error(model, done[:5]) < 1e-4
    assert generator.step() == []


def test_requests_that_cannot_be_served_are_refused_whole():
    generator = engine()
    good = Request((0, 0, 0), (6,))
    for bad in ((), (6,) * 29):  # 40 positions, a cap of 12
        with pytest.raises(ConfigError, match="40 positions"):
            generator.submit([good, Request((0, 0, 1), bad)])
    generator.submit([good, Request((0, 0, 1), (6,) * 28)])
    with pytest.raises(ValueError, match="in flight"):
        generator.submit([good])
    assert generator.n_in_flight == 2
    done = []
    while generator.n_in_flight:
        done += generator.step()
    assert len(done) == 2
    with pytest.raises(ValueError, match="has ended"):
        generator.resume(done)
    with pytest.raises(ConfigError, match="positive"):
        engine(slots=0)


def test_a_generator_of_another_dtype_keeps_weights_of_its_own():
    model = made()
    generator = engine(model, dtype=torch.bfloat16)
    before = generate(generator, requests(12))
    assert 1e-4 < largest_error(model, before) < 0.5  # bf16 has 8 bits
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(0.0)  # all tokens equally likely
    assert [c.tokens for c in generate(generator, requests(12))] == [c.tokens for c in before]
    generator.refresh()
    for c in generate(generator, requests(12)):
        assert np.allclose(c.logprobs, -np.log(11), atol=1e-5)
