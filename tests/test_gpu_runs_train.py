"""Updates, evaluation, metrics and dump of real training, each against a judge of its own."""

import itertools
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from tiny_task import CAP, PAD, LevelTask, tiny_generator, tiny_model

from dapolab.collectors import new_collector
from dapolab.errors import ConfigError
from dapolab.metrics import BY_NAME
from dapolab.recipes import ALL
from dapolab.records import read_records
from dapolab.scenario import (
    ExactRefill,
    Length,
    NoFilter,
    Objective,
    OverlongPenalty,
    PpoClip,
    Rollout,
    SeqMeanTokenMean,
    Streaming,
)
from gpu_runs import dump
from gpu_runs.batch import TrainBatch, chunks
from gpu_runs.board import Board
from gpu_runs.collect import collect_step
from gpu_runs.evaluate import clustered_interval, evaluate, pass_at_k, summary
from gpu_runs.forward import Policy
from gpu_runs.model import Decoder
from gpu_runs.preset import Preset, Train, build, load, preset_names
from gpu_runs.progress import clock, eta_s
from gpu_runs.prompts import PromptStream
from gpu_runs.rollout import Rollout as Collected
from gpu_runs.score import Scores
from gpu_runs.step_row import rollout_metrics, update_metrics
from gpu_runs.update import Learner

B, G = 6, 4
ROLLOUT = Rollout(groups_per_step=B, group_size=G, cap_tokens=CAP)
HIGHER = PpoClip(low=0.2, high=0.28)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


def _collect(collector: Any = None, *, cap_tokens: int = CAP) -> Collected:
    return collect_step(
        tiny_generator(tiny_model(), cap_tokens=cap_tokens),
        PromptStream(LevelTask().problems("train", 40, seed=0), seed=11),
        scores=Scores(LevelTask(), Length()),
        collector=collector or NoFilter(),
        rollout=ROLLOUT,
        step=0,
    )


@pytest.fixture(scope="module")
def collected() -> Collected:
    return _collect()


def _batch(collected: Collected) -> TrainBatch:
    return TrainBatch.of(collected.trained, pad_token=PAD)


def _learner(objective: Objective, **settings: Any) -> Learner:
    reference = Policy(tiny_model(seed=1)) if objective.kl is not None else None
    train = Train(**({"learning_rate": 1e-3} | settings))
    return Learner(Policy(tiny_model()), objective=objective, train=train, reference=reference)


def _weights(learner: Learner) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(learner.parameters).detach()


# ------------------------------------------------------------------------------ updates


def _by_hand(
    batch: TrainBatch, model: Decoder, *, n_updates: int, rate: float, mean: str
) -> torch.Tensor:
    """DAPO's loss (Eq. 8 to 10) and AdamW with clipping, written out; returns the weights."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.99), weight_decay=0.0)
    wanted = batch.mask_NT > 0
    with torch.no_grad():
        old = model.logprobs(batch.tokens_NT, wanted_BT=wanted)[0]
    rewards = batch.reward_N.reshape(B, G)
    std = rewards.std(dim=1, keepdim=True)
    advantage = torch.where(std > 0, (rewards - rewards.mean(1, keepdim=True)) / (std + 1e-6), 0.0)
    size = B * G // n_updates
    for rows in torch.arange(B * G).split(size):
        logp = model.logprobs(batch.tokens_NT[rows], wanted_BT=wanted[rows])[0]
        ratio = (logp - old[rows]).exp()
        A, mask = advantage.flatten()[rows, None], batch.mask_NT[rows]
        loss = -torch.minimum(ratio * A, ratio.clamp(0.8, 1.28) * A) * mask
        if mean == "token":
            total = loss.sum() / mask.sum()
        else:
            total = (loss.sum(1) / mask.sum(1)).mean()
        optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.parametrize("mean", ["token", "sequence"])
def test_updates_equal_the_loss_and_optimizer_written_out(collected: Collected, mean: str) -> None:
    batch = _batch(collected)
    objective = Objective(clip=HIGHER)
    if mean == "sequence":
        objective = Objective(clip=HIGHER, aggregation=SeqMeanTokenMean())
    start = torch.nn.utils.parameters_to_vector(tiny_model().parameters()).detach()
    moved = {}
    for rate in (1e-3, 1.05e-3):
        learner = _learner(objective, learning_rate=rate, responses_per_update=8)
        learned = learner.learn(batch, step=0)
        moved[rate] = _weights(learner) - start
    expected = _by_hand(batch, tiny_model(), n_updates=3, rate=1e-3, mean=mean) - start
    assert len(learned.updates) == 3
    assert (moved[1e-3] - expected).norm() < 1e-3 * expected.norm()
    assert (moved[1.05e-3] - expected).norm() > 1e-2 * expected.norm()  # 5 % are seen
    assert learned.parameter_step == pytest.approx(float(moved[1.05e-3].norm()), rel=1e-5)


SPLIT_RECIPES = (
    *("paper", "verl-0.9.1", "trl-1.16-dapo", "trl-1.16-bnpo", "dr-grpo", "grpo", "openrlhf"),
    *("06-dapo", "verl-0.9.1-gspo", "verl-0.9.1-clip-cov", "verl-0.9.1-kl-cov", "tinker-cispo"),
)


@pytest.mark.parametrize("name", SPLIT_RECIPES)
def test_pieces_of_an_update_change_neither_gradient_nor_metrics(
    collected: Collected, name: str
) -> None:
    batch = _batch(collected)
    objective = ALL[name].objective
    found = {}
    for most in (10**6, 60):
        learner = _learner(objective, micro_tokens=most, responses_per_update=12, micro_rows=4)
        found[most] = (learner.learn(batch, step=0), _weights(learner))
    pieces = chunks(batch.length_N[:12], most_tokens=60)
    assert len(pieces) > 2
    (whole, all_weights), (split, split_weights) = found.values()
    start = torch.nn.utils.parameters_to_vector(tiny_model().parameters()).detach()
    # Adam turns a gradient of rounding errors into a step of full size: compare gradients too
    assert (all_weights - split_weights).norm() < 2e-2 * (all_weights - start).norm()
    for one, other in zip(whole.updates, split.updates, strict=True):
        assert one.keys() == other.keys()
        assert one["train/gradient_norm"] == pytest.approx(other["train/gradient_norm"], rel=1e-3)
        for key in ("ppo/loss", "entropy/token_mean", "clip/upper_share", "update/tokens"):
            assert one[key] == pytest.approx(other[key], rel=1e-3, abs=1e-5)


def test_pieces_hold_every_row_once_and_keep_to_the_limit() -> None:
    length = torch.tensor([5, 30, 7, 12, 29, 3, 18])
    pieces = chunks(length, most_tokens=60)
    assert sorted(torch.cat(pieces).tolist()) == list(range(7))
    assert all(len(piece) * int(length[piece].max()) <= 60 for piece in pieces)
    padded = sum(len(piece) * int(length[piece].max()) for piece in pieces)
    assert padded < 7 * 30
    assert [piece.tolist() for piece in chunks(length, most_tokens=1)][-1] == [1]


def test_the_first_update_is_on_policy_and_the_sampler_agrees_with_the_trainer(
    collected: Collected,
) -> None:
    learned = _learner(Objective(clip=HIGHER), responses_per_update=12).learn(
        _batch(collected), step=0
    )
    first, second = learned.updates
    assert first["ratio/max"] == pytest.approx(1.0, abs=1e-4)
    assert first["sampler/max_abs_log_ratio"] < 1e-4
    assert first["clip/upper_share"] == first["clip/lower_share"] == 0
    assert second["ratio/max"] > 1.001
    row = update_metrics(learned.updates)
    tokens = [update["update/tokens"] for update in learned.updates]
    assert row["ppo/train_tokens"] == sum(tokens)
    upper = [update["clip/upper_share"] for update in learned.updates]
    assert row["ppo/upper_clip_fraction"] == pytest.approx(np.average(upper, weights=tokens))


def test_a_filtered_overlong_answer_leaves_the_loss_and_on_demand_the_baseline() -> None:
    length = Length(mask_truncated=True)
    batch = _batch(_collect(cap_tokens=12))
    cut = batch.status_N != 0
    assert 0 < int(cut.sum()) < batch.n_rows
    learned = _learner(Objective(length=length)).learn(batch, step=0)
    assert learned.updates[0]["update/responses"] == batch.n_rows - int(cut.sum())
    # out of the baseline too: the others' advantages change, by the group means without the cut
    out = Objective.model_validate({"advantage": {"kind": "mean_only", "truncated": "exclude"}})
    kept = {group: batch.reward_N[(batch.group_N == group) & ~cut] for group in range(B)}
    spread = sum(len(r) for r in kept.values() if len(r) > 1 and r.min() < r.max())
    tokens = batch.mask_NT.sum(1)
    of_spread = sum(
        float(tokens[(batch.group_N == g) & ~cut].sum())
        for g, r in kept.items()
        if len(r) > 1 and r.min() < r.max()
    )
    told = _learner(out).learn(batch, step=0).updates[0]
    assert spread
    active = told["update/tokens"] * (1 - told["update/zero_advantage_share"])
    assert active == pytest.approx(of_spread, rel=1e-4)


def test_a_batch_without_signal_is_trained_skipped_or_refused() -> None:
    wrong = [p for p in LevelTask().problems("train", 40, seed=0) if p.difficulty == 0]
    collected = collect_step(
        tiny_generator(tiny_model()),
        PromptStream(wrong, seed=1),
        scores=Scores(LevelTask(), Length()),
        collector=NoFilter(),
        rollout=ROLLOUT,
        step=3,
    )
    batch = _batch(collected)
    trained = _learner(Objective()).learn(batch, step=3)
    assert trained.updates[0]["train/gradient_norm"] == 0
    assert trained.parameter_step == 0
    skipped = _learner(Objective(), when_no_signal="skip").learn(batch, step=3)
    assert skipped.updates == []
    with pytest.raises(ConfigError, match="step 3: no group with spread"):
        _learner(Objective(), when_no_signal="error").learn(batch, step=3)
    left_out = Objective.model_validate({"degenerate_groups": "out"})
    learner = _learner(left_out)
    learner.learn(batch, step=3)
    assert learner.n_updates == 0  # an update without a token makes no step of momentum either


def test_a_gradient_that_is_not_finite_ends_the_run_in_one_line(collected: Collected) -> None:
    learner = _learner(Objective())
    with torch.no_grad():
        learner.parameters[0].fill_(math.inf)
    with pytest.raises(ConfigError, match="step 0, update 0: the gradient is not finite"):
        learner.learn(_batch(collected), step=0)


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_recipe_is_fitted_to_the_preset(name: str) -> None:
    settings: dict[str, Any] = {"recipe": name}
    collector = ALL[name].collector
    if collector is None:
        with pytest.raises(ConfigError, match=r"say collector\.kind"):
            load("toy_cpu", settings)
        settings["collector.kind"] = "none"
    elif not new_collector(collector, ROLLOUT).is_plain:
        with pytest.raises(ConfigError, match="is simulated, not run"):
            load("toy_cpu", settings)
        settings["collector.kind"] = "none"
    preset = load("toy_cpu", settings)
    assert build(preset.model_dump(mode="json")) == preset
    if preset.objective.length.penalty is not None:
        assert preset.objective.length.penalty.cap_tokens == preset.rollout.cap_tokens


DISTINCT = {recipe.objective.model_dump_json(): name for name, recipe in sorted(ALL.items())}


@pytest.mark.parametrize("name", sorted(DISTINCT.values()))
def test_every_objective_of_a_recipe_makes_updates(collected: Collected, name: str) -> None:
    preset = load("toy_cpu", {"recipe": name, "collector.kind": "none"})
    learner = _learner(preset.objective, responses_per_update=12)
    learned = learner.learn(_batch(collected), step=0)
    assert len(learned.updates) == 2
    assert 0 < learned.parameter_step < 1


# ------------------------------------------------------------------------------ presets


def test_a_recipe_is_fitted_to_the_batch_and_the_cap_of_the_run() -> None:
    preset = load("toy_cpu", {"recipe": "paper", "rollout.cap_tokens": 40})
    # DAPO: 512 of 8192 responses an update, a buffer of 4096 in 20480 tokens, 512 generated of 512
    assert preset.train.responses_per_update == 32 * 8 // 16
    assert preset.rollout.overlong is not None
    assert preset.rollout.overlong.buffer_tokens == 8
    assert preset.collector.model_dump()["gen_groups"] == 32
    window = load("toy_cpu", {"recipe": "trl-1.16-dapo", "train.responses_per_update": 32})
    assert window.objective.aggregation.model_dump()["steps_per_generation"] == 8
    own = load("toy_cpu", {"recipe": "paper", "objective.clip.high": 0.4})
    assert own.objective.clip == PpoClip(low=0.2, high=0.4)
    assert load("toy_cpu", {"recipe": "paper", "objective.length.penalty": None}).rollout == (
        load("toy_cpu").rollout
    )


def test_an_overlong_penalty_is_said_once() -> None:
    one = build({"rollout": {"cap_tokens": 64, "overlong": {"buffer_tokens": 16}}})
    assert one.objective.length.penalty == OverlongPenalty(cap_tokens=64, buffer_tokens=16)
    other = {"penalty": {"cap_tokens": 64, "buffer_tokens": 8}}
    with pytest.raises(ConfigError, match="punish differently"):
        build({"rollout": one.rollout.model_dump(), "objective": {"length": other}})
    table = {"rollout": {"cap_tokens": 64}, "objective": {"length": other}}
    assert build(table).rollout.overlong is not None


def test_presets_load_and_say_where_they_ran() -> None:
    assert {"toy_cpu", "toy_gpu", "gpu_10m", "gpu_100m", "hf_math"} <= set(preset_names())
    manifests = Path(__file__).parents[1].glob("reports/gpu/**/manifest.json")
    ran = {json.loads(path.read_text())["config"]["name"] for path in manifests}
    for name in preset_names():
        preset = load(name)
        assert preset.name == name
        if name != "toy_cpu" and name not in ran:
            assert "never run on a GPU" in preset.description


# ------------------------------------------------------------------------------ evaluation


def test_pass_at_k_counts_subsets() -> None:
    n, right = 6, [True, True, False, False, False, False]
    for k in (1, 2, 3, 5):
        subsets = list(itertools.combinations(right, k))
        assert pass_at_k(n, 2, k) == pytest.approx(np.mean([any(s) for s in subsets]))
    assert pass_at_k(n, 5, 3) == 1.0
    assert pass_at_k(n, 0, 6) == 0.0


def test_the_interval_is_students_over_prompts() -> None:
    rng = np.random.default_rng(0)
    for n in (9, 32, 200):
        means = rng.choice([0.375, 0.5, 0.625], size=n)
        low, high = clustered_interval(means)
        exact = stats.t.interval(0.99, n - 1, loc=means.mean(), scale=stats.sem(means))
        assert high - low == pytest.approx(exact[1] - exact[0], rel=0.01)
        # samples of one prompt taken as independent would claim several times too little
        wrong = stats.t.interval(0.99, 8 * n - 1, means.mean(), stats.sem(np.repeat(means, 8)))
        assert high - low > 2 * (wrong[1] - wrong[0])


def test_the_held_out_set_has_a_stream_of_its_own() -> None:
    task, model = LevelTask(), tiny_model()
    heldout = task.problems("heldout", 10, seed=1)
    scores = Scores(task, Length())

    def run() -> Any:
        examiner = tiny_generator(model, seed=99)
        return evaluate(examiner, heldout, scores=scores, n_samples=4, step=7)

    first, again = run(), run()
    texts = [[c.tokens for c in row] for row in first.completions]
    assert texts == [[c.tokens for c in row] for row in again.completions]
    assert {p.id for p in heldout}.isdisjoint(p.id for p in task.problems("train", 99, seed=1))
    told = summary(first, pass_at=(1, 4))
    n_right = [
        sum(task.is_right(p, c.tokens, finished=c.finish == "stop") for c in row)
        for p, row in zip(heldout, first.completions, strict=True)
    ]
    assert told["eval/accuracy"] == pytest.approx(sum(n_right) / 40)
    assert told["eval/pass_at_1"] == pytest.approx(told["eval/accuracy"])
    assert told["eval/pass_at_4"] == pytest.approx(np.mean([c > 0 for c in n_right]))
    assert told["eval/accuracy_low"] < told["eval/accuracy"] < told["eval/accuracy_high"]
    lengths = [len(c.tokens) for row in first.completions for c in row]
    assert told["eval/completion_tokens"] == pytest.approx(np.mean(lengths))
    assert set(told) - {"eval/pass_at_1", "eval/pass_at_4"} <= set(BY_NAME)


# ------------------------------------------------------------------------------ metrics, dump


@pytest.mark.parametrize("collector", [ExactRefill(), Streaming(slots=8)])
def test_metrics_of_a_step_keep_their_identities(collector: Any) -> None:
    collected = _collect(collector)
    row = rollout_metrics(collected, ROLLOUT)
    assert set(row) <= set(BY_NAME)
    assert all(math.isfinite(value) for value in row.values())
    assert row["rollout/oversample_ratio"] * row["rollout/effective_group_ratio"] == (
        pytest.approx(row["rollout/effective_fill_ratio"])
    )
    parts = ("train_completion", "degenerate", "surplus", "aborted")
    total = sum(row[f"rollout/{part}_tokens"] for part in parts)
    assert total == row["rollout/completion_tokens"] > 0
    assert total == sum(iteration.n for iteration in collected.iterations)
    groups = ("effective", "degenerate", "surplus", "aborted")
    assert sum(row[f"rollout/{name}_groups"] for name in groups) == len(collected.candidates)
    shares = sum(row[f"rollout/{name}_share"] for name in ("all_right", "all_wrong", "mixed"))
    assert shares == pytest.approx(1.0)
    parts_s = [row[f"time/{p}_seconds"] for p in ("overhead", "prefill", "decode", "tail")]
    assert sum(parts_s) == pytest.approx(row["time/rollout_seconds"])
    assert ("rollout/waves" in row) == isinstance(collector, ExactRefill)
    assert row["reward/shaped_mean"] == pytest.approx(2 * row["reward/accuracy"] - 1)


@pytest.mark.parametrize("collector", [ExactRefill(), Streaming(slots=8)])
def test_the_dump_is_read_by_records(tmp_path: Path, collector: Any) -> None:
    collected = _collect(collector)
    files = dump.Dump(tmp_path, "rollouts")
    for step in (0, 1, 2):
        collected.step = step
        files.write(dump.rows(collected, source="test", version=step), step=step)
    files.cut(2)
    files.join(lambda table: dump.about(table, cap_tokens=CAP))
    found = read_records(files.whole)
    assert [path.name for path in tmp_path.iterdir()] == ["rollouts.parquet"]
    n_aborted = sum(c.status == "aborted" for c in collected.candidates)
    assert (n_aborted > 0) == isinstance(collector, Streaming)
    assert found.selection == ("kept_first_finished" if n_aborted else "all")
    assert found.cap_tokens == CAP
    table = found.table
    assert len(table) == 2 * G * len(collected.candidates)
    assert table["group_id"].nunique() == 2 * len(collected.candidates)
    one = table[table["step"] == 1]
    assert int(one["kept"].sum()) == G * len(collected.kept)
    finished = one[one["n_tokens"].notna()]
    done = [
        (len(c.tokens), s.right, c.finish == "length")
        for group in collected.candidates
        for c, s in zip(group.completions, group.scores, strict=True)
        if c is not None and s is not None
    ]
    columns = (finished[name].tolist() for name in ("n_tokens", "correct", "truncated"))
    assert sorted(zip(*columns, strict=True)) == sorted(done)
    assert one["n_tokens"].isna().sum() == (one["extra/finish"] == "abort").sum()


def test_the_metadata_key_is_the_one_that_records_reads() -> None:
    from dapolab.records import COLUMNS, write

    assert dump.METADATA_KEY == write.METADATA_KEY
    assert set(COLUMNS) <= set(dump.SCHEMA.names)


def test_a_preset_says_why_a_run_cannot_go_on() -> None:
    preset = load("toy_cpu")
    longer = load("toy_cpu", {"steps": 99})
    assert longer.fingerprint() == preset.fingerprint()
    assert longer.first_difference(preset) is None
    other = load("toy_cpu", {"train.learning_rate": 1e-4})
    assert other.fingerprint() != preset.fingerprint()
    assert other.first_difference(preset) == "train.learning_rate is 3e-05 there and 0.0001 here"
    assert isinstance(preset, Preset)


def test_tensorboard_gets_every_point_and_hides_what_a_kill_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    class SummaryWriter:
        def __init__(self, folder: str, *, purge_step: int) -> None:
            seen.append((Path(folder).name, purge_step))

        def add_scalar(self, name: str, value: float, step: int) -> None:
            seen.append((name, value, step))

        def close(self) -> None:
            seen.append("closed")

    module = ModuleType("torch.utils.tensorboard.writer")
    module.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", ModuleType("tensorboard"))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", module)
    board = Board(tmp_path / "tensorboard", first_step=4)
    board.write({"reward/accuracy": 0.5, "ppo/loss": 0.1}, step=4)
    board.close()
    assert board.note == ""
    assert seen == [
        ("tensorboard", 4),
        ("reward/accuracy", 0.5, 4),
        ("ppo/loss", 0.1, 4),
        "closed",
    ]


def test_progress_tells_the_time_that_is_left() -> None:
    assert eta_s(30.0, 10, 20) == 60.0
    assert eta_s(30.0, 0, 20) == 0.0
    assert [clock(s) for s in (5.4, 65.0, 3725.0)] == ["0:05", "1:05", "1:02:05"]
