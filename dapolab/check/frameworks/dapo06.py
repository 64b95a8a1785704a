"""agentic-rl-lab 06-dapo: its train.py command line (commit 5fc44d8)."""

from dapolab.check.reading import Reading, Source
from dapolab.check.run import Filter, Overlong, Run
from dapolab.check.values import Value

# 06-dapo/train.py, parse_args
DEFAULTS: dict[str, Value] = {
    "algorithm": "dapo",
    "data": None,
    "max_steps": None,
    "max_train_samples": 0,
    "base_model": None,
    "lora_rank": 32,
    "groups_per_step": 4,
    "group_size": 8,
    "max_candidate_multiplier": 2,
    "max_prompt_tokens": 512,
    "max_tokens": 4096,
    "overlong_cache": 1024,
    "rollout_concurrency": 16,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "learning_rate": 4e-5,
    "beta1": 0.9,
    "beta2": 0.95,
    "seed": 42,
    "save_every": 25,
    "run_name": None,
    "metrics_output": None,
    "swanlab_project": None,
    "swanlab_workspace": None,
    "swanlab_mode": "online",
}
MOST_RESPONSES = 128  # MAX_COMPLETIONS_PER_BATCH, train.py:47
GAP = 2.0  # rewards +1 and -1, reward.py


def reading(source: Source, *, version: str) -> Reading:
    """Return the arguments over train.py's defaults."""
    return Reading("06-dapo", version, source, DEFAULTS)


def understand(reading: Reading) -> Run:
    """Return what a 06-dapo step computes (train.py:172-307, rollout.py:288-359)."""
    dapo = reading.text("algorithm") != "grpo"
    B, G = reading.integer("groups_per_step"), reading.integer("group_size")
    most = reading.integer("max_candidate_multiplier")
    cap = reading.integer("max_tokens")
    buffer = reading.number("overlong_cache")
    candidates = B * most if B and most else None
    words = f"groups without 0 < correct < G dropped, exact refill, at most {candidates} candidates"
    if not dapo:
        words = "groups without 0 < correct < G dropped, no refill (the batch shrinks)"
    return Run(
        reading=reading,
        trainer="06-dapo" if dapo else "06-grpo",
        names=_NAMES,
        group_size=G,
        batch_groups=B,
        batch_responses=B * G if B and G else None,
        update_responses=B * G if B and G else None,
        n_updates=1.0,
        denominator="sampler",
        eps_low=0.2,
        eps_high=0.28 if dapo else 0.2,
        aggregation="token mean over the step" if dapo else "mean over responses of token means",
        advantage="group mean / (std ddof 1, + 1e-8)",
        prompt_tokens=reading.integer("max_prompt_tokens"),
        cap_tokens=cap,
        overlong=Overlong(buffer, cap, 1.0, GAP) if dapo else None,
        filter=Filter("correct", "exact" if dapo else "none", max_candidates=candidates),
        filter_words=words,
        temperature=reading.number("temperature"),
        top_p=reading.number("top_p"),
        top_k=reading.integer("top_k"),
    )


_NAMES = {
    "batch_groups": "groups_per_step",
    "n_updates": "algorithm",
    "denominator": "algorithm",
    "eps_low": "algorithm",
    "eps_high": "algorithm",
    "cap_tokens": "max_tokens",
    "overlong": "algorithm",
    "buffer_tokens": "overlong_cache",
    "factor": "overlong_cache",
    "filter": "max_candidate_multiplier",
}
