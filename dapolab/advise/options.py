"""What each framework lets its user choose about collection, in the framework's own keys.

The first option of a framework is what it does with group filtering switched on and nothing else
set: the baseline that a gain is counted from. Sources are those of the collectors' tables.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dapolab.scenario import Collector, Scenario, check

Setting = str | int | float | bool
Settings = dict[str, Setting]

_TIMES = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0)


@dataclass(frozen=True)
class Option:
    """One choice: settings as one writes them, and the policy that they are.

    Attributes
    ----------
    name : short, unique within the framework.
    settings : the framework's keys and values.
    collector : the same as a collection policy of this lab.
    """

    name: str
    settings: Mapping[str, Setting]
    collector: Collector


def options_of(framework: str, *, n_groups: int) -> list[Option]:
    """Return the options of a framework for a batch of ``n_groups``, its baseline first."""
    return list(FRAMEWORKS[framework](n_groups))


def _option(name: str, settings: Mapping[str, Setting], **collector: Any) -> Option:
    table = check(Scenario, {"collector": collector}, where=name).collector
    return Option(name, settings, table)


def _sizes(n_groups: int, times: Sequence[float] = _TIMES) -> list[int]:
    """Return whole batch sizes from ``n_groups`` up, each once."""
    return list(dict.fromkeys(max(round(n_groups * t), n_groups) for t in times))


def _verl(n_groups: int) -> list[Option]:
    on: Settings = {
        "algorithm.filter_groups.enable": True,
        "algorithm.filter_groups.metric": "acc",
    }
    options = [
        _option(
            f"gen_batch_size={n}",
            on
            | {
                "data.train_batch_size": n_groups,
                "data.gen_batch_size": n,
                "algorithm.filter_groups.max_num_gen_batches": 10,
            },
            kind="rounds",
            gen_groups=n,
            max_num_gen_batches=10,
        )
        for n in _sizes(n_groups)
    ]
    # the recipe ships 3 × (1536 for 512)
    options.sort(key=lambda option: option.settings["data.gen_batch_size"] != 3 * n_groups)
    off: Settings = {"algorithm.filter_groups.enable": False}
    return [*options, _option("filter off", off, kind="none")]


def _verl_v1(n_groups: int) -> list[Option]:
    on: Settings = {
        "algorithm.filter_groups.enable": True,
        "algorithm.filter_groups.metric": "acc",
    }
    key = "algorithm.filter_groups.max_inflight_gen_batches"
    options = [
        _option(
            f"max_inflight_gen_batches={n}",
            on | {"data.train_batch_size": n_groups, key: n},
            kind="verl_v1",
            max_inflight_gen_batches=n,
        )
        for n in (1, 2, 3, 4)
    ]
    off: Settings = {"algorithm.filter_groups.enable": False}
    return [*options, _option("filter off", off, kind="none")]


def _slime(n_groups: int) -> list[Option]:
    path = "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"
    on: Settings = {"--rollout-batch-size": n_groups, "--dynamic-sampling-filter-path": path}
    return [
        _option(
            f"over-sampling-batch-size={n}{', partial' if partial else ''}",
            on
            | {"--over-sampling-batch-size": n}
            | ({"--partial-rollout": True} if partial else {}),
            kind="chunked",
            over_sampling_batch_size=n,
            leftovers="resume" if partial else "abort",
        )
        for partial in (False, True)
        for n in _sizes(n_groups)
    ]


def _openrlhf(n_groups: int) -> list[Option]:
    on = "--algo.dynamic_filtering_enable"
    return [
        _option("dynamic filtering", {on: True}, kind="replenish"),
        _option("filter off", {on: False}, kind="none"),
    ]


def _nemo_rl(n_groups: int) -> list[Option]:
    on: Settings = {
        "grpo.use_dynamic_sampling": True,
        "grpo.use_leave_one_out_baseline": False,
        "grpo.num_prompts_per_step": n_groups,
        "grpo.dynamic_sampling_max_gen_batches": 10,
    }
    options = [
        _option(
            f"batch_multiplier={t:g}",
            on | {"grpo.batch_multiplier": t},
            kind="rounds",
            gen_multiplier=t,
            max_num_gen_batches=10,
            rounds_past_max=1,
        )
        for t in _TIMES
    ]
    off: Settings = {"grpo.use_dynamic_sampling": False}
    return [*options, _option("filter off", off, kind="none")]


def _skyrl(n_groups: int) -> list[Option]:
    kind = "trainer.algorithm.dynamic_sampling.type"
    limit = "trainer.algorithm.dynamic_sampling.max_sample_batches"
    return [
        _option("filter", {kind: "filter", limit: 30}, kind="skyrl_filter"),
        _option("replace", {kind: "replace", limit: 30}, kind="skyrl_replace"),
        _option("filter off", {kind: "none"}, kind="none"),
    ]


def _ms_swift(n_groups: int) -> list[Option]:
    on: Settings = {"--dynamic_sample": True}
    options = [
        _option(
            f"max_resample_times={n}",
            on | {"--max_resample_times": n},
            kind="ms_swift",
            max_num_gen_batches=n,
        )
        for n in (3, 1, 2, 5, 8, 12)
    ]
    return [*options, _option("filter off", {"--dynamic_sample": False}, kind="none")]


def _roll(n_groups: int) -> list[Option]:
    extra, most = "is_use_additional_prompts", "max_additional_running_prompts"
    options = [_option("no additional prompts", {extra: False}, kind="roll")]
    options += [
        _option(
            f"{most}={n}",
            {extra: True, most: n},
            kind="replenish",
            min_in_flight=n,
            at_data_end="train",
        )
        for n in dict.fromkeys((16, n_groups, 2 * n_groups))
    ]
    return options


def _open_instruct(n_groups: int) -> list[Option]:
    return [
        _option(
            f"async_steps={n}",
            {"--active_sampling": True, "--async_steps": n},
            kind="streaming",
            slots_per_target=n,
            leftovers="resume",
            surplus="carry",
            max_age=n,
        )
        for n in (8, 1, 2, 4)
    ]


def _dapo06(n_groups: int) -> list[Option]:
    key = "--max-candidate-multiplier"
    return [
        _option(
            f"max-candidate-multiplier={n}",
            {"--groups-per-step": n_groups, key: n},
            kind="exact_refill",
            max_candidate_multiplier=n,
        )
        for n in (2, 1, 3, 4, 6, 8)
    ]


def _any(n_groups: int) -> list[Option]:
    """All policies of the lab, in the scenario's own keys."""
    tables: list[dict[str, Any]] = [
        {"kind": "exact_refill", "max_candidate_multiplier": 4},
        {"kind": "filter_no_refill"},
        {"kind": "none"},
        *({"kind": "rounds", "gen_groups": n} for n in _sizes(n_groups)),
        {"kind": "replenish"},
        {"kind": "replace"},
        {"kind": "adaptive_wave"},
        *({"kind": "verl_v1", "max_inflight_gen_batches": n} for n in (1, 2)),
        *(
            {"kind": "streaming", "slots": n, "leftovers": leftovers}
            for leftovers in ("abort", "resume")
            for n in _sizes(n_groups, (1.25, 1.5, 2.0, 3.0))
        ),
        *({"kind": "over_provision", "eta": eta} for eta in (1.25, 1.5, 2.0, 3.0)),
        {"kind": "tail_batching", "filter": True},
    ]
    return [
        _option(
            ", ".join(str(value) for value in table.values()),
            {f"collector.{key}": value for key, value in table.items()},
            **table,
        )
        for table in tables
    ]


FRAMEWORKS: Mapping[str, Callable[[int], Sequence[Option]]] = {
    "any": _any,
    "verl": _verl,
    "verl-v1": _verl_v1,
    "slime": _slime,
    "openrlhf": _openrlhf,
    "nemo-rl": _nemo_rl,
    "skyrl": _skyrl,
    "ms-swift": _ms_swift,
    "roll": _roll,
    "open-instruct": _open_instruct,
    "06-dapo": _dapo06,
}
"""Framework -> its options; ``verl`` is the loop of its DAPO recipe, ``verl-v1`` that of 0.9."""
