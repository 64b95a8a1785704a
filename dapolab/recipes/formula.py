"""An objective written out: advantage, token loss and aggregation in plain text."""

from dapolab.scenario.advantage import (
    Advantage,
    BatchStdAdvantage,
    GaeAdvantage,
    GdpoAdvantage,
    GpgAdvantage,
    GrpoAdvantage,
    LeaveOneOutAdvantage,
    MaxRlAdvantage,
    MeanOnlyAdvantage,
    OpoAdvantage,
    OptimalTokenBaselineAdvantage,
    PassAtKAdvantage,
    ReinforcePpAdvantage,
    ReinforcePpBaselineAdvantage,
    RemaxAdvantage,
    RlooAdvantage,
)
from dapolab.scenario.aggregation import (
    Aggregation,
    GenerationWindow,
    Micro,
    PromptMean,
    SeqMeanTokenMean,
    SeqMeanTokenSum,
    SeqMeanTokenSumNorm,
    TokenMean,
    TokenMeanMicro,
    TokenSum,
)
from dapolab.scenario.clip import (
    CispoClip,
    Clip,
    ClipCov,
    DppoKlClip,
    DppoTvClip,
    DroClip,
    GmpoClip,
    GpgClip,
    GspoClip,
    KlCov,
    LuspoClip,
    NoClip,
    PpoClip,
    SapoClip,
    VespoClip,
)
from dapolab.scenario.objective import (
    Kl,
    Objective,
    OverlongPenalty,
    Rejection,
    SamplerCorrection,
)


def formula(objective: Objective) -> str:
    """Return the objective in a few lines of at most 76 columns.

    r is the ratio to the proximal (or sampler) policy, A the advantage, n_i the tokens of response
    i, N the responses, l the loss of a token, L the loss that is minimised.
    """
    below = "sampler" if objective.sampler.bypass else "old"
    penalty = objective.length.penalty
    lines = [
        "" if penalty is None else _penalty(penalty),
        f"A = {_advantage(objective.advantage)}",
        f"r = π/π_{below}" if objective.clip.kind != "gpg" else "",
        f"l = {_token_loss(objective.clip)}",
        _dual(objective.clip),
        _sampler(objective.sampler),
        "" if objective.kl is None else _kl(objective.kl),
        f"l ← l − {objective.entropy_coef:g}·entropy" if objective.entropy_coef else "",
        f"L = {_aggregate(objective.aggregation)}",
        "groups without spread left out" if objective.degenerate_groups == "out" else "",
    ]
    return "\n".join(line for line in lines if line)


def _penalty(rule: OverlongPenalty) -> str:
    start = rule.cap_tokens - rule.buffer_tokens
    text = f"R ← R − {rule.factor:g}·" if rule.factor != 1 else "R ← R − "
    share = f"(n − {start})/{rule.buffer_tokens}"
    if rule.beyond == "unclamped":
        return f"{text}max({share}, 0)"
    clamped = f"{text}clip({share}, 0, 1)"
    return clamped if rule.beyond == "clamped" else f"{clamped}; R ← 0 beyond {rule.cap_tokens}"


def _advantage(advantage: Advantage) -> str:
    match advantage:
        case GrpoAdvantage():
            return f"(R − mean)/{_std('std', advantage.ddof, advantage.eps)} of the group"
        case MeanOnlyAdvantage():
            return "R − mean of the group"
        case GpgAdvantage():
            return "(R − mean of the group)·responses/#{R ≠ 0} of the batch"
        case LeaveOneOutAdvantage():
            below = _std("std of the others", advantage.ddof, advantage.eps)
            return f"(R − mean of the others)/{below}"
        case RlooAdvantage():
            return "R − mean of the others in the group"
        case BatchStdAdvantage():
            return (
                f"(R − mean of the group)/{_std('std of the batch', advantage.ddof, advantage.eps)}"
            )
        case MaxRlAdvantage():
            return f"(R − mean)/(mean + {advantage.eps:g}) of the group"
        case OpoAdvantage():
            return "R − Σ n·R/Σ n of the group"
        case ReinforcePpAdvantage():
            return "reward-to-go, whitened over the batch's tokens"
        case ReinforcePpBaselineAdvantage():
            return "R − mean of the group, whitened over the batch's tokens"
        case RemaxAdvantage():
            return "reward-to-go − reward of the greedy response"
        case PassAtKAdvantage():
            return "best − second best of the group for the best, else 0"
        case GdpoAdvantage():
            return "Σ_k w_k·GRPO of reward k, whitened"
        case OptimalTokenBaselineAdvantage():
            return "reward-to-go − Σ G·W/Σ W of the group at each token, W = Σ (1 − 2π + Σπ²)"
        case GaeAdvantage():
            return f"GAE(γ {advantage.gamma:g}, λ {advantage.lam:g})"


def _std(name: str, ddof: int, eps: float) -> str:
    named = f"{name} [n−1]" if ddof else f"{name} [n]"
    return f"({named} + {eps:g})" if eps else f"({named})"


def _token_loss(clip: Clip) -> str:
    match clip:
        case NoClip():
            return "−r·A"
        case PpoClip() | ClipCov():
            first = "r" if isinstance(clip, ClipCov) or clip.delta is None else "min(r, δ)"
            text = f"−min({first}·A, clip(r, {_band(clip.low, clip.high)})·A)"
            return text if isinstance(clip, PpoClip) else f"{text}, or 0 if chosen by covariance"
        case GspoClip() | LuspoClip():
            s = "r" if clip.level == "token" else "s"
            text = f"−min({s}·A, clip({s}, {_band(clip.low, clip.high)})·A)"
            text = f"n_i·({text})" if isinstance(clip, LuspoClip) else text
            return text if s == "r" else f"{text}, s = exp(mean_t log r)"
        case CispoClip():
            absolute = clip.bounds == "absolute"
            low = 0.0 if clip.low is None else clip.low if absolute else 1 - clip.low
            high = clip.high if absolute else 1 + clip.high
            r, mean = _ratio_of(clip.level)
            return f"−sg(clip({r}, {low:g}, {high:g}))·A·log π{mean}"
        case SapoClip():
            r, mean = _ratio_of(clip.level)
            tau = f"τ = {clip.tau_positive:g} if A > 0 else {clip.tau_negative:g}"
            return f"−(4/τ)·σ(τ({r} − 1))·A, {tau}{mean}"
        case GmpoClip():
            return f"−A·exp(mean_t clip(log r, {-clip.low:g}, {clip.high:g})), one-sided by A"
        case VespoClip():
            return (
                "−sg(e^λ·w^k·e^(−λw))·A·log π, w = Π_t r, (k, λ) = "
                f"({clip.k_positive:g}, {clip.lambda_positive:g}) / "
                f"({clip.k_negative:g}, {clip.lambda_negative:g})"
            )
        case DppoTvClip() | DppoKlClip():
            weight = "r" if clip.cap is None else f"min(r, {clip.cap:g})"
            what = "Δp" if isinstance(clip, DppoTvClip) else "KL"
            main = f"−A·sg({weight})·log π" if clip.surrogate == "log_prob" else f"−A·{weight}"
            penalty = f" + {clip.log_ratio_penalty:g}·(log r)²" if clip.log_ratio_penalty else ""
            return f"{main} while {what} ≤ {clip.high:g} along A{penalty}"
        case GpgClip():
            return "−A·log π"
        case DroClip():
            return f"−(A·log π − {clip.beta / 2:g}·(log r)²)"
        case KlCov():
            return f"−r·A, + {clip.coef:g}·|log r| if chosen by covariance"


def _ratio_of(level: str) -> tuple[str, str]:
    return ("r", "") if level == "token" else ("s", ", s = exp(mean_t log r)")


def _dual(clip: Clip) -> str:
    dual_c: float | None = getattr(clip, "dual_c", None)
    return "" if dual_c is None else f"l ≤ −{dual_c:g}·A where A < 0 (dual clip)"


_USES = {"multiplies": "l ← w·l", "replaces": "l = −A·w·log π", "enters": "VESPO's w ← w·Π w"}


def _sampler(rule: SamplerCorrection) -> str:
    lines = []
    if rule.level != "none":
        low = "" if rule.lower is None else f"{rule.lower:g}"
        high = "" if rule.upper is None else f"{rule.upper:g}"
        what = f"{rule.action} {rule.level} ratio old/sampler to [{low or '0'}, {high or '∞'}]"
        lines.append(f"{_USES[rule.applies]}, w: {what}")
        if rule.normalise != "none":
            lines.append(f"w ← w/mean w of the {_MEANS[rule.normalise]}")
        if rule.pooling == "geometric":
            lines.append("w ← geometric mean of the response's w")
    above = "current" if rule.bypass else "old"
    return "\n".join([*lines, *(_rejection(r, f"{above}/sampler") for r in rule.rejection)])


_MEANS = {"kept": "tokens kept", "tokens": "update's tokens", "responses": "responses"}
_STATISTICS = {"token": "any token's", "sequence": "the summed", "geometric": "the mean"}


def _rejection(rule: Rejection, ratio: str) -> str:
    who = "token" if rule.scope == "token" else "response"
    what = "its" if rule.scope == "token" else _STATISTICS[rule.level]
    if rule.estimator == "k1":
        return f"{who} out if {what} log {ratio} leaves log [{rule.lower:.6g}, {rule.upper:.6g}]"
    if rule.estimator in ("tv", "binary_kl"):
        name = "|p − q|" if rule.estimator == "tv" else "binary KL(p‖q)"
        return (
            f"{who} out if {what} {name} of sampler p, {ratio.partition('/')[0]} q > {rule.upper:g}"
        )
    return f"{who} out if {what} {rule.estimator} of {ratio} exceeds {rule.upper:g}"


def _kl(kl: Kl) -> str:
    if kl.place == "reward":
        return f"R ← R − {kl.coefficient:g}·KL_{kl.estimator}(π_old, π_ref), before A"
    return f"l ← l + {kl.coefficient:g}·KL_{kl.estimator}(π, π_ref)"


def _band(low: float, high: float) -> str:
    return f"{1 - low:g}, {1 + high:g}"


_MICRO: dict[Micro, str] = {
    "global": "",
    "mean": ", by micro-batch, averaged",
    "rows": ", by micro-batch, weighed by rows",
    "sum": ", by micro-batch, added up",
}


def _aggregate(aggregation: Aggregation) -> str:
    match aggregation:
        case TokenMean():
            return "Σ l / Σ n over the whole update"
        case TokenMeanMicro():
            return f"Σ l / Σ n{_MICRO[aggregation.combine]}"
        case GenerationWindow():
            return f"Σ l / {_window(aggregation)}"
        case SeqMeanTokenMean():
            return f"Σ_i (Σ_t l / n_i) / {_rows(aggregation)}{_MICRO[aggregation.micro]}"
        case SeqMeanTokenSum():
            inner = "Σ_t l" if aggregation.variant == "standard" else "(Σ_t l / n_i)"
            return f"Σ_i {inner} / {_rows(aggregation)}{_MICRO[aggregation.micro]}"
        case SeqMeanTokenSumNorm():
            padded = aggregation.constant == "padded-width"
            constant = "padded width" if padded else f"{aggregation.constant:g}"
            if aggregation.rows == "mean":
                constant = f"({_rows(aggregation)}·{constant})"
            return f"Σ_i Σ_t l / {constant}{_MICRO[aggregation.micro]}"
        case PromptMean():
            return "mean over prompts of (Σ l / Σ n of the prompt)"
        case TokenSum():
            return "Σ l"


def _rows(config: SeqMeanTokenMean | SeqMeanTokenSum | SeqMeanTokenSumNorm) -> str:
    return "N" if config.empty_rows == "in" else "N (rows with tokens)"


def _window(window: GenerationWindow) -> str:
    if window.variant == "ms-swift":
        return "(Σ n of the window · accumulation steps)"
    if window.variant == "trl-1.10":
        return "(Σ n of the generation batch)"
    return "(Σ n of the generation batch · accumulation/steps)"
