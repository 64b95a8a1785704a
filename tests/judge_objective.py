"""The objective in plain Python, one token a loop: written from the formulas, shares no code.

Clips are the maximum of two products, as papers print them; micro-batches are looped over as a
training loop does, each with its own denominators.
"""

import math
from collections.abc import Callable, Sequence

Rows = Sequence[Sequence[float]]


def clamp(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


# ---------------------------------------------------------------------------- surrogates


def token_losses(clip: dict, logp: Rows, old: Rows, A: Rows, mask: Rows) -> list[list[float]]:
    """Loss of each token; whatever it is outside the mask is not to be looked at."""
    out = []
    for row in range(len(logp)):
        n = sum(mask[row])
        valid = [t for t in range(len(mask[row])) if mask[row][t]]
        bound = clip.get("log_ratio_clamp") or math.inf
        ratio = {t: clamp(logp[row][t] - old[row][t], -bound, bound) for t in valid}
        losses = [0.0] * len(mask[row])
        mean = sum(mask[row][t] * ratio[t] for t in valid) / n if n else 0.0
        total = sum(mask[row][t] * ratio[t] for t in valid)
        for t in valid:
            losses[t] = one_loss(
                clip, logp[row][t], old[row][t], ratio[t], A[row][t], mean, total, n
            )
        if clip["kind"] == "gmpo" and n:
            picked = 0.0
            for t in valid:
                cut = clamp(ratio[t], -clip["low"], clip["high"])
                sign = (A[row][t] > 0) - (A[row][t] < 0)
                picked += mask[row][t] * sign * min(sign * ratio[t], sign * cut)
            mean_A = sum(mask[row][t] * A[row][t] for t in valid) / n
            for t in valid:
                losses[t] = -mean_A * math.exp(picked / n)
        out.append(losses)
    return out


def one_loss(
    clip: dict, logp: float, old: float, d: float, A: float, mean: float, total: float, n: float
) -> float:
    kind = clip["kind"]
    low, high = clip.get("low"), clip.get("high")
    if kind == "none":
        return -A * math.exp(d)
    if kind == "ppo":
        return two_products(math.exp(d), A, clip)
    if kind in ("gspo", "luspo"):
        s = d if clip["level"] == "token" else mean
        if clip.get("log_ratio_cap") is not None:
            s = min(s, clip["log_ratio_cap"])
        return two_products(math.exp(s), A, clip) * (n if kind == "luspo" else 1.0)
    if kind == "cispo":
        band = clip["bounds"] == "band"
        bottom = 0.0 if low is None else (1 - low if band else low)
        r = math.exp(d if clip["level"] == "token" else mean)
        return -clamp(r, bottom, 1 + high if band else high) * A * logp
    if kind == "sapo":
        tau = clip["tau_positive"] if A > 0 else clip["tau_negative"]
        r = math.exp(d if clip["level"] == "token" else mean)
        return -4 / tau / (1 + math.exp(-tau * (r - 1))) * A
    if kind == "vespo":
        side = "positive" if A >= 0 else "negative"
        k, lam = clip[f"k_{side}"], clip[f"lambda_{side}"]
        w = math.exp(total)
        return -math.exp(lam) * w**k * math.exp(-lam * w) * A * logp
    if kind in ("dppo_tv", "dppo_kl"):
        p, q = math.exp(logp), math.exp(logp - d)
        if kind == "dppo_tv":
            keep = p - q <= high if A > 0 else p - q >= -low
        else:
            kl = q * math.log(q / p) + (1 - q) * math.log((1 - q + 1e-8) / (1 - p + 1e-8))
            keep = (kl <= high or p <= q) if A > 0 else (kl <= low or p >= q)
        r = math.exp(d) if clip["cap"] is None else min(math.exp(d), clip["cap"])
        factor = logp if clip["surrogate"] == "log_prob" else 1.0
        return (-A * r * factor if keep else 0.0) + clip["log_ratio_penalty"] * d**2
    if kind == "gpg":
        return -logp * A
    if kind == "dro":
        return -(logp * A - clip["beta"] / 2 * d * d)
    return 0.0


def two_products(r: float, A: float, clip: dict) -> float:
    free = r if clip.get("delta") is None else min(r, clip["delta"])
    loss = max(-A * free, -A * clamp(r, 1 - clip["low"], 1 + clip["high"]))
    if clip.get("dual_c") is not None and A < 0:
        loss = min(loss, -A * clip["dual_c"])
    return loss


# ---------------------------------------------------------------------------- aggregation


def global_loss(config: dict, losses: Rows, mask: Rows, group: Sequence[int]) -> float:
    """Aggregate with the denominators of all rows."""
    kind = config["kind"]
    sums = [
        sum(m * x for m, x in zip(*pair, strict=True) if m)
        for pair in zip(mask, losses, strict=True)
    ]
    counts = [sum(m) for m in mask]
    rows = range(len(counts))
    filled = [i for i in rows if counts[i]]
    n_rows = len(counts) if config.get("empty_rows") == "in" else len(filled)
    if not filled:
        return 0.0
    if kind in ("token-mean", "token-mean-micro"):
        return sum(sums) / sum(counts)
    if kind == "token-sum":
        return sum(sums)
    if kind == "seq-mean-token-mean":
        return sum(sums[i] / counts[i] for i in filled) / n_rows
    if kind == "seq-mean-token-sum":
        if config["variant"] == "verl-3a27a98":
            return sum(sums[i] / counts[i] for i in filled) / n_rows
        return sum(sums) / n_rows
    if kind == "seq-mean-token-sum-norm":
        constant = config["constant"]
        width = len(mask[0]) if constant == "padded-width" else constant
        return sum(sums) / width / (1 if config["rows"] == "sum" else n_rows)
    assert kind == "prompt-mean"
    total, n_filled = 0.0, 0
    ids = sorted(set(group))
    for g in ids:
        members = [i for i in rows if group[i] == g]
        tokens = sum(counts[i] for i in members)
        if tokens:
            total += sum(sums[i] for i in members) / tokens
            n_filled += 1
    return total / (len(ids) if config["empty_groups"] == "in" else n_filled)


def accumulated(
    combine: str,
    local: Callable[[list[int]], float],
    rank: Sequence[int],
    micro: Sequence[int],
) -> float:
    """Run the loops of a trainer: micro-batches weighed and added, ranks averaged."""
    ranks = sorted(set(rank))
    total = 0.0
    for r in ranks:
        mine = [i for i in range(len(rank)) if rank[i] == r]
        micros = sorted({micro[i] for i in mine})
        for m in micros:
            rows = [i for i in mine if micro[i] == m]
            weight = {"mean": 1 / len(micros), "rows": len(rows) / len(mine), "sum": 1.0}[combine]
            total += weight * local(rows)
    return total / len(ranks)
