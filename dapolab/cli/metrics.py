"""The metrics of a run as a person reads them: in groups, in words, the important ones first."""

from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

from dapolab.report import formats
from dapolab.stats import Estimate

SECTIONS: dict[str, dict[str, str]] = {
    "what it costs": {
        "time/step_seconds": "one training step",
        "per_trained_group/seconds": "a trained group with signal *",
        "per_trained_group/gpu_seconds": "  GPU time",
        "per_trained_group/completion_tokens": "  generated tokens",
        "run/p_fails": "runs that end with an error",
    },
    "where the time of a step goes": {
        "time/tail_seconds": "waiting for the longest answers",
        "time/decode_seconds": "decoding",
        "time/prefill_seconds": "reading prompts",
        "time/overhead_seconds": "call overhead, polling",
        "time/reward_seconds": "scoring",
        "time/old_logprob_seconds": "old log-probabilities",
        "time/reference_seconds": "reference log-probabilities",
        "time/update_seconds": "update",
        "time/sync_seconds": "weights to the engine",
        "time/validation_seconds": "validation",
        "time/checkpoint_seconds": "checkpoint",
        "time/other_seconds": "other",
    },
    "the batch of a step": {
        "rollout/waves": "waves",
        "rollout/candidate_groups": "groups sampled",
        "rollout/effective_groups": "groups trained",
        "rollout/effective_fill_ratio": "batch filled to",
        "train/update_skipped": "steps without an update",
        "rollout/mixed_share": "groups with signal (mixed)",
        "rollout/all_right_share": "groups all right",
        "rollout/all_wrong_share": "groups all wrong",
        "rollout/token_utilisation": "generated tokens that are trained",
    },
    "answers": {
        "rollout/mean_completion_tokens": "mean length",
        "rollout/truncated_share": "cut at the cap",
        "reward/accuracy": "right, of all sampled",
        "reward/trained_accuracy": "right, of the trained",
        "bias/trained_length": "length, trained over all mixed",
    },
    "rollout beside training": {
        "pipeline/learner_wait_seconds": "the learner waits for its batch",
        "pipeline/learner_busy_share": "of the time it works",
        "pipeline/rollout_busy_share": "of the time a replica decodes",
        "pipeline/rollout_slot_share": "of its slots are taken",
        "staleness/mean_versions": "age of a trained token",
        "staleness/max_versions": "of a batch's oldest",
        "staleness/off_policy_token_share": "tokens of an older version",
        "staleness/dropped_groups": "groups dropped as too old",
        "bias/length_dropped": "  their mean length",
    },
    "the engine": {
        "engine/mean_concurrency": "responses in decoding",
        "engine/peak_kv_tokens": "peak KV",
        "engine/preemptions": "preempted",
    },
}
ROOM_FOR_INTERVALS = 70
SIGNAL = "* mixed: some answers right, some wrong; only those have a gradient"
# Rows that say something only when they are not the rule: metric -> its value then.
_SILENT_AT = {
    "run/p_fails": 0.0,
    "train/update_skipped": 0.0,
    "rollout/effective_fill_ratio": 1.0,
    "engine/preemptions": 0.0,
    "staleness/dropped_groups": 0.0,
}


def grouped(estimates: Mapping[str, Estimate], *, width: int) -> Table:
    """Return the metrics that most people want, in words; parts of the time by size, no zeros.

    In less than ROOM_FOR_INTERVALS columns the means stand alone: folded rows are hard to read.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column(overflow="fold")
    table.add_column(justify="right", overflow="fold")
    table.add_column(overflow="fold")
    for title, rows in SECTIONS.items():
        found = [
            (words, estimates[name]) for name, words in rows.items() if _shown(name, estimates)
        ]
        if title.startswith("where"):
            found = sorted(
                ((words, e) for words, e in found if e.mean > 0), key=lambda row: -row[1].mean
            )
        if not found:
            continue
        table.add_row("")
        table.add_row(Text(title, style="bold"))
        for words, e in found:
            unit = "" if e.unit in ("share", "ratio") else e.unit
            shown = e if width >= ROOM_FOR_INTERVALS else Estimate.exact(e.mean, unit=e.unit)
            table.add_row(Text(f"  {words}"), formats.estimate(shown), unit)
    table.caption = SIGNAL
    table.caption_justify = "left"
    return table


def _shown(name: str, estimates: Mapping[str, Estimate]) -> bool:
    return name in estimates and _SILENT_AT.get(name) != estimates[name].mean
