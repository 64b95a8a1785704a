"""One line on what the run will really compute."""

from dapolab.check.run import Run

LOSSES = {"ppo": "PPO", "vanilla": "PPO", "bypass_mode": "PPO"}


def summarise(run: Run) -> str:
    """Return aggregation, clip, advantage, filter and updates per rollout in one line."""
    parts = [
        f"loss {LOSSES.get(run.loss, run.loss)}, {run.aggregation or 'aggregation unknown'}",
        f"clip {_clip(run)}",
        *([run.sampler_words] if run.sampler_words else []),
        f"advantage {run.advantage or 'unknown'}",
        _kl(run),
        run.filter_words,
        _updates(run),
    ]
    loop = run.trainer + (f" (assumed: {run.assumed})" if run.assumed else "")
    text = f"{run.framework} {run.version_text}, {loop}: " + "; ".join(parts)
    return " ".join(text.split())  # a value may hold line breaks


def _clip(run: Run) -> str:
    if run.clip_shape == "none":
        return "none"
    if run.clip_shape == "absolute":
        return f"weight <= {_number(run.eps_high)}"
    low, high = (_bound(run.eps_low, -1), _bound(run.eps_high, 1))
    shown = f"[{low}, {high}]"
    if run.clip_shape in ("log", "probability"):
        shown = f"[-{_number(run.eps_low)}, {_number(run.eps_high)}] on the {run.clip_shape}"
        shown += " ratio" if run.clip_shape == "log" else " difference"
    if run.dual_c is not None and run.clip_shape in ("ratio", "sequence"):
        shown += f", dual {run.dual_c:g}"
    if run.denominator == "sampler":
        return f"{shown} on current/sampler"
    if run.n_updates is not None and run.n_updates <= 1:
        return f"{shown}, which never acts"
    return shown


def _kl(run: Run) -> str:
    terms = (
        (run.kl_loss_estimator, run.kl_loss_coef, "the loss"),
        (run.kl_reward_estimator, run.kl_reward_coef, "the reward"),
    )
    shown = [f"KL {name} x {_number(coef)} in {place}" for name, coef, place in terms if name]
    return ", ".join(shown) or "no KL"


def _bound(eps: float | None, sign: int) -> str:
    return "?" if eps is None else f"{1 + sign * eps:.6g}"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:g}"


def _updates(run: Run) -> str:
    n, syncs = run.n_updates, run.facts.get("syncs_every")
    if n is None:
        return "updates per rollout unknown"
    if isinstance(syncs, int) and syncs > 1:
        return f"{n * syncs:.4g} updates from one weight sync to the next ({syncs} x {n:.4g})"
    if n < 1:
        return f"{n:.3g} updates per rollout"
    return f"{n:.4g} update{'' if n == 1 else 's'} per rollout"
