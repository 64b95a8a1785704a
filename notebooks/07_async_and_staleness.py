# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Async and staleness
#
# A synchronous trainer waits twice: the learner for the longest answer, the rollout engines for
# the learner. Run them side by side and both waits shrink, and the answers that are trained come
# from older weights. How much of each?

# %%
from pathlib import Path

import pandas as pd

from dapolab.compare.split import COST, GAIN, best_split
from dapolab.report import FigureSpec, Table
from dapolab.report.dots import Dots, Panel, dot_panels
from dapolab.scenario import load
from dapolab.sim.run import simulate
from dapolab.stats import mean_estimate
from dapolab.theory import pipeline

ROOT = Path("..") if Path("../sims").is_dir() else Path()
ASYNC = ROOT / "sims/scenarios/small-async.toml"

# %% [markdown]
# ## 1. Three ways to share time
#
# The table `[learner.schedule]` of a scenario says how rollout and training share time. Everything
# else stays: the same prompts, two replicas, two GPUs for the learner. (Loops with steps replace
# each dropped group; a streaming filter in such a loop would abort the long answers and look
# cheap.)

# %%
BARRIER = {"collector.kind": "replenish"}
SCHEDULES = {
    "in turns": BARRIER | {"learner.schedule": {"kind": "sync"}},
    "one step off": BARRIER | {"learner.schedule": {"kind": "one_step_off"}},
    "admission, η = 1": {},
    "admission, η = 4": {"learner.schedule.control.staleness": 4},
}
shown = {
    "time/step_seconds": "seconds a step",
    "pipeline/learner_busy_share": "learner busy",
    "staleness/mean_versions": "mean staleness",
    "staleness/max_versions": "oldest",
    "bias/length_ratio_total": "trained / mixed length",
}
rows = []
for name, changes in SCHEDULES.items():
    scenario = load(ASYNC, {"run.steps": 12} | changes)
    runs = [simulate(scenario, seed=0, replication=r).steps.iloc[3:-1] for r in range(8)]
    rows.append({"schedule": name})
    for metric, head in shown.items():
        means = pd.Series([steps[metric].mean() for steps in runs]).dropna()
        rows[-1][head] = mean_estimate(means) if len(means) > 1 else None
Table(
    pd.DataFrame(rows), "Means over replications with 99 % intervals; the ends of a run left out."
)

# %% [markdown]
# **How to read this.** The step gets shorter as more of it overlaps; the learner is busier; and
# the price stands in the staleness columns, in versions of the weights between an answer's start
# and its training. Averages are mild. The oldest answers are the longest ones.
#
# ## 2. What theory says
#
# With $K$ groups always in flight and $B$ trained a step, the mean staleness is $K/B$ plus what
# waits in the queue, whatever the lengths are (an identity along the path). And a split of the
# GPUs gains from the part of the rollout that no GPU shortens, and from nothing else:

# %%
law = pipeline.streaming_staleness(n_slots=32, batch_responses=16, mean_duration_s=20.0)
print(f"32 in flight, 16 a step: {law.mean_versions:.1f} versions")
rows = [
    {"wait of the longest": wait, "rollout's share of GPUs": best.rollout_share, "gain": best.gain}
    for wait in (0.0, 10.0, 30.0, 60.0)
    for best in [pipeline.best_split(60.0, train_s=40.0, latency_s=wait)]
]
Table(
    pd.DataFrame(rows), "60 s of rollout and 40 s of training on all GPUs; gain over taking turns."
)

# %% [markdown]
# **How to read this.** Without a tail the best split gains nothing: each half has fewer GPUs. All
# of the gain is the wait that is hidden.
#
# ## 3. Which split?
#
# On the command line:
#
#     dapolab split sims/scenarios/small-async.toml --gpus 4

# %%
small = load(ASYNC, {"run.steps": 12, "run.replications": 8})
found = best_split(small, 4, seed=0, n_jobs=1)
costs = {name: found.confirmed[name][COST] for name in found.confirmed}
FigureSpec(
    name="splits",
    figure=dot_panels(list(costs), [Panel("", [Dots("cost", costs)], values=True)], x_label="s"),
    title="Seconds a trained group, on fresh seeds",
    alt="; ".join(f"{name}: {e.mean:.2f} s" for name, e in costs.items()),
    how_to_read="Left is cheaper. Only splits that may be the best are run again; colocated is the "
    "loop that takes turns on all GPUs.",
)

# %%
rows = [{"split": name, "gain": found.confirmed[name].get(GAIN)} for name in found.confirmed]
Table(pd.DataFrame(rows), "Colocated cost over the split's, paired; above 1 the split is cheaper.")

# %% [markdown]
# ## Exercises
#
# 1. Replace admission by `{"kind": "age_drop", "max_age": 1}`. What happens to the trained
#    lengths, and why does staleness now look better than it is?
# 2. Set `learner.schedule.weights` to `drained`. Which column pays?
# 3. At which `learner.update_s_per_token` does taking turns win?
