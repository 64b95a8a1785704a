"""What a run will really compute, in words common to all frameworks; None is "cannot be told"."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dapolab.check.findings import Finding, Severity
from dapolab.check.reading import Framework, Reading

Denominator = Literal["recomputed", "sampler"]
ClipShape = Literal["ratio", "sequence", "absolute", "log", "probability", "none"]


@dataclass(frozen=True)
class Overlong:
    """A soft overlong punishment: linear over the last ``buffer_tokens`` before ``cap_tokens``.

    ``gap`` is right minus wrong reward, None where the reward function is not known.
    """

    buffer_tokens: float | None
    cap_tokens: float | None
    factor: float | None
    gap: float | None


@dataclass(frozen=True)
class Filter:
    """The group filter and its refill.

    ``refill``: ``rounds`` (whole generation batches), ``exact`` (what is missing, capped),
    ``credit`` (verl V1), ``one-for-one``, ``chunks``, ``none`` (the batch shrinks).
    ``max_rounds`` is None without a limit; ``max_candidates`` likewise.
    """

    metric: str | None
    refill: Literal["rounds", "exact", "credit", "one-for-one", "chunks", "none"]
    round_groups: int | None = None
    max_rounds: int | None = None
    max_candidates: int | None = None


@dataclass(frozen=True)
class Run:
    """One configuration, understood.

    Attributes
    ----------
    trainer : which loop of the framework runs, e.g. ``verl V1 sync``.
    assumed : what the checker took for granted to say so, empty where the file tells.
    group_size : responses per prompt.
    batch_groups : prompts trained per rollout; ``batch_responses`` = times group size.
    update_responses : responses per optimizer update.
    per_process : the two counts are those of one process, the number of processes is not known.
    n_updates : optimizer updates per rollout, passes over the data included.
    denominator : whose log-probs stand under the ratio.
    loss, clip_shape : the policy loss and what its ε bounds (``none``: it has no ε).
    aggregation, advantage, sampler_words : in words, for the summary.
    kl_loss_…, kl_reward_… : the KL term of the loss and of the reward; no estimator, no term.
    names : which setting stands behind a field, for line numbers.
    """

    reading: Reading
    trainer: str
    names: Mapping[str, str]
    assumed: str = ""
    group_size: int | None = None
    batch_groups: int | None = None
    batch_responses: int | None = None
    update_responses: int | None = None
    per_process: bool = False
    n_updates: float | None = None
    denominator: Denominator = "recomputed"
    loss: str = "ppo"
    clip_shape: ClipShape = "ratio"
    eps_low: float | None = None
    eps_high: float | None = None
    dual_c: float | None = None
    aggregation: str = ""
    advantage: str = ""
    sampler_words: str = ""
    group_baseline: bool = True
    kl_loss_estimator: str | None = None
    kl_loss_coef: float | None = None
    kl_reward_estimator: str | None = None
    kl_reward_coef: float | None = None
    prompt_tokens: int | None = None
    cap_tokens: int | None = None
    context_tokens: int | None = None
    overlong: Overlong | None = None
    filter: Filter | None = None
    filter_words: str = "no group filter"
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    warmup_steps: int | None = None
    facts: Mapping[str, object] = field(default_factory=dict)

    @property
    def framework(self) -> Framework:
        """The framework of the reading."""
        return self.reading.framework

    @property
    def version_text(self) -> str:
        """The framework's version that the findings speak of."""
        return self.reading.version

    def name(self, what: str) -> str:
        """Return the setting behind a field; a dotted or unknown word is a setting itself."""
        return self.names.get(what, what)

    def given(self, what: str) -> bool:
        """Say whether the file sets what stands behind a field."""
        return self.reading.given(self.name(what))

    def finding(
        self,
        id: str,
        severity: Severity,
        at: str,
        message: str,
        *,
        suggestion: str = "",
        source: str,
        certain: bool = True,
    ) -> Finding:
        """Return a finding at a field's setting and line."""
        setting = self.name(at)
        given = self.reading.setting(setting)
        line = given.line if given else None
        shown = self.written(at)
        return Finding(id, severity, certain, shown, line, message, suggestion, source)

    def written(self, what: str) -> str:
        """Return the setting behind a field as the file writes it, an argument with its dashes."""
        setting = self.name(what)
        given = self.reading.setting(setting)
        shown = given.key if given else setting
        if self.reading.source.form == "arguments" and not shown.startswith("--"):
            dashed = "." not in shown and self.framework in ("06-dapo", "slime")
            shown = "--" + (shown.replace("_", "-") if dashed else shown)
        return shown


def newer(version: str, than: str) -> bool:
    """Say whether a dotted version is ``than`` or newer; letters count as 0."""
    return _parts(version) >= _parts(than)


def same(version: str, other: str) -> bool:
    """Say whether two dotted versions are the same: 1.16 is 1.16.0."""
    return version == other or (_parts(version) == _parts(other) and "." in version)


def _parts(version: str) -> tuple[int, ...]:
    numbers = [int(p) if p.isdecimal() and len(p) < 10 else 0 for p in version.split(".")[:3]]
    return (*numbers, 0, 0, 0)[:3]
