"""The collector verl_v1 against verl's own ReplayBuffer.sample, on random streams of groups."""

import random
from collections.abc import Callable

import judges_verl as verl
import pytest
from judges_verl import Group, Sampled

from dapolab.collectors import Drop, Finished, Keep, Stop, Submit, new_collector
from dapolab.scenario import Rollout, VerlV1

Note = Callable[..., None]
N_GROUPS = 4000


def stream(seed: int, *, keep_rate: float, slowest: int, group_size: int) -> list[Group]:
    """Return groups of which about ``keep_rate`` spread, lasting 1 to ``slowest`` polls."""
    rng = random.Random(seed)
    groups = []
    for _ in range(N_GROUPS):
        first = rng.choice((0.0, 1.0))
        metric = [first] * group_size
        if rng.random() < keep_rate and group_size > 1:
            metric[rng.randrange(group_size)] = 1.0 - first
        groups.append(Group(rng.randint(1, slowest), tuple(metric)))
    return groups


def collected(groups: list[Group], *, batch_size: int, n_batches: int) -> Sampled:
    """Drive the collector through the same stream, one poll a tick."""
    rollout = Rollout(groups_per_step=batch_size, group_size=max(len(groups[0].metric), 1))
    collector = new_collector(VerlV1(max_inflight_gen_batches=n_batches), rollout)
    out = Sampled(0, [], [], [], 0, {})
    ends: dict[int, int] = {}
    stopped = False

    def carry_out(actions: object) -> None:
        nonlocal stopped
        for action in actions:  # type: ignore[attr-defined]
            match action:
                case Submit(n):
                    for i in range(out.n_dispatched, out.n_dispatched + n):
                        ends[i] = out.polls + groups[i].duration
                    out.n_dispatched += n
                case Keep(index):
                    out.trained.append(index)
                case Drop(index, reason):
                    (out.evicted if reason == "degenerate" else out.surplus).append(index)
                case Stop(reason, train):
                    assert (reason, train) == ("full", True)
                    stopped = True
                case _:
                    raise AssertionError(f"verl has no {action}")

    carry_out(collector.on_start())
    while not stopped:
        out.polls += 1
        found = sorted(i for i, end in ends.items() if end <= out.polls)
        for i in found:
            del ends[i]
            carry_out(collector.on_group(_told(i, groups[i])))
        if found:
            carry_out(collector.on_poll())
    assert not ends, "verl waits for all in flight"
    return out


def _told(index: int, group: Group) -> Finished:
    n_correct = sum(value > 0.5 for value in group.metric)
    spread = max(group.metric) - min(group.metric)
    return Finished(index, len(group.metric), n_correct, spread, 100 * len(group.metric))


@pytest.mark.parametrize("group_size", [1, 2, 8])
@pytest.mark.parametrize("n_batches", [1, 2, 3])
@pytest.mark.parametrize("keep_rate", [0.05, 0.4, 0.9])
@pytest.mark.parametrize("metric", ["reward", "acc"])
def test_sample(
    metric: str, keep_rate: float, n_batches: int, group_size: int, setting: Note
) -> None:
    for seed in range(12):
        rng = random.Random(seed)
        batch_size, slowest = rng.randint(1, 12), rng.choice((1, 3, 20))
        groups = stream(seed, keep_rate=keep_rate, slowest=slowest, group_size=group_size)
        judge = verl.sample_sync(
            groups, batch_size=batch_size, max_inflight_gen_batches=n_batches, metric=metric
        )
        ours = collected(groups, batch_size=batch_size, n_batches=n_batches)
        assert ours.n_dispatched == judge.n_dispatched
        assert ours.polls == judge.polls
        assert sorted(ours.evicted) == judge.evicted
        # verl picks any of the groups that spread (the order of a set); dapolab the first sent.
        good = sorted(judge.trained + judge.surplus)
        assert sorted(ours.trained + ours.surplus) == good
        assert ours.trained == good[:batch_size]
        assert len(judge.trained) == len(ours.trained) == batch_size
        _check_metrics(judge, ours)
    setting(
        f"verl:V1 sample, metric {metric}",
        f"keep rate {keep_rate}",
        f"groups of {group_size}",
        f"{n_batches} × B in flight",
    )


def _check_metrics(judge: Sampled, ours: Sampled) -> None:
    told = judge.metrics
    assert told.get("training/filter_groups/evicted_samples", 0) == len(ours.evicted)
    name = "training/filter_groups/discarded_surplus_samples"
    assert told.get(name, 0) == len(ours.surplus)


def test_a_wrong_number_of_credits_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    from dapolab.collectors import verl_v1

    def differ() -> int:
        n = 0
        for seed in range(10):
            groups = stream(seed, keep_rate=0.3, slowest=9, group_size=4)
            judge = verl.sample_sync(groups, batch_size=8, max_inflight_gen_batches=2, metric="acc")
            n += collected(groups, batch_size=8, n_batches=2).n_dispatched != judge.n_dispatched
        return n

    assert differ() == 0
    monkeypatch.setattr(verl_v1, "CREDITS_PER_EVICTED", 1)
    assert differ() > 0


def test_a_missing_number_stays_in_the_batch_as_in_verl() -> None:
    """np.std of a NaN is no 0: verl keeps the group, and so does the collector."""
    groups = [Group(1, (float("nan"), 0.0)), *[Group(1, (0.0, 1.0))] * 9]
    judge = verl.sample_sync(groups, batch_size=3, max_inflight_gen_batches=1, metric="acc")
    assert judge.trained == [0, 1, 2]
    collector = new_collector(VerlV1(), Rollout(groups_per_step=3, group_size=2))
    collector.on_start()
    spread = float("nan")
    assert not list(collector.on_group(Finished(0, 2, 0, spread, 10)))
    for i in (1, 2):
        collector.on_group(Finished(i, 2, 1, 1.0, 10))
    kept = [action.index for action in collector.on_poll() if isinstance(action, Keep)]
    assert kept == [0, 1, 2]
