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
# # Your rollouts: fit, compare, advise
#
# From a dump of rollouts to a setting of your trainer, in three steps. The dump here is drawn from
# a workload whose truth is known, so that the fit can be held against it; put your own file in its
# place (exercise 1).

# %%
from pathlib import Path
from tempfile import mkdtemp

import pandas as pd
from IPython.display import display

from dapolab.advise import advise, options_of
from dapolab.compare import compare, select_collectors
from dapolab.records import ReadOptions, read_records
from dapolab.report import Table
from dapolab.report.fit_report import fit_document
from dapolab.scenario import load
from dapolab.workload import PromptStream
from dapolab.workload.fit import fit_workload

ROOT = Path("..") if Path("../sims").is_dir() else Path()
SMALL = ROOT / "sims/scenarios/small.toml"
scenario = load(SMALL, {"run.steps": 4, "run.replications": 6})

# %% [markdown]
# ## 0. A dump
#
# One row an answer: its prompt, its tokens, whether it is right. A CSV with such columns is
# enough; the dumps of verl, TRL, slime, AReaL and seven others are read as they are.

# %%
truth = scenario.workload
cap, size = scenario.rollout.cap_tokens, scenario.rollout.group_size
groups = PromptStream(truth, group_size=size, cap_tokens=cap, seed=7).draw(0, 32)
dump = pd.DataFrame({"prompt_id": groups.prompt_id_P.repeat(size)})
dump["n_tokens"] = groups.n_tokens_PG.ravel()
dump["correct"] = groups.correct_PG.ravel().astype(int)
file = Path(mkdtemp()) / "rollouts.csv"
dump.to_csv(file, index=False)
dump.head(3)

# %% [markdown]
# ## 1. Fit
#
# On the command line:
#
#     dapolab fit rollouts.csv --cap 4096 --selection all -o mine.toml

# %%
records = read_records(file, options=ReadOptions(selection="all", cap_tokens=cap))
fitted = fit_workload(
    records.table, selection="all", cap_tokens=cap, n_draws=100, seed=0, source=file.name
)
names = ("median_tokens", "sigma", "prompt_share", "mean_logit", "sd_logit", "correlation")
fits = {name: fitted.estimates[name] for name in names}
rows = [(name, e.value, e.low, e.high, getattr(truth, name)) for name, e in fits.items()]
columns = ["parameter", "fitted", "low", "high", "truth"]
Table(
    pd.DataFrame(rows, columns=columns),
    "With 99 % intervals over prompts, beside what drew the dump.",
)

# %%
page = fit_document(title="-", lead="-", figures=fitted.figures)
display(*page.figures()[:2])
for name, why in fitted.not_identified:
    print(f"not identified: {name}: {why}")

# %% [markdown]
# **How to read this.** One interval in a hundred leaves out the truth by chance. What a dump cannot
# tell is listed and not guessed: answers cut at the cap are neither right nor wrong by themselves,
# and whether they would ever have stopped is not in the file.
#
# ## 2. Compare
#
# The same prompts, lengths and right answers under several policies:
#
#     dapolab compare sims/scenarios/small.toml --workload mine.toml

# %%
mine = load(
    SMALL, {"run.steps": 4, "run.replications": 6, "workload": fitted.workload.model_dump()}
)
kinds = "exact_refill,rounds,replenish,streaming"
result = compare(mine, select_collectors(mine, kinds), seed=0, n_jobs=1)
metrics = ("per_trained_group/seconds", "share/tail", "bias/trained_length")
rows = [{"policy": p} | {m: e.get(m) for m in metrics} for p, e in result.estimates.items()]
Table(pd.DataFrame(rows), "Means over replications with 99 % intervals.")

# %% [markdown]
# **How to read this.** A policy whose interval overlaps the cheapest one's is not worse, it is not
# told apart. The last column is what the cheap ones pay with: far from 1, short answers are
# trained.
#
# ## 3. Advise
#
# The policies above are ideas; your trainer has keys.
#
#     dapolab advise mine.toml --target 8 --framework verl --hardware qwen3-8b-h100-tp1

# %%
options = options_of("verl", n_groups=mine.rollout.groups_per_step)
advice = advise(mine, options[:3], framework="verl", seed=0, n_jobs=1)
rows = [{"key": key, "value": value} for key, value in advice.settings.items()]
Table(pd.DataFrame(rows), f"Recommended: {advice.option}; verl's default here: {advice.baseline}.")

# %%
rows = [(turn.accuracy, turn.gain, ", ".join(turn.best_set)) for turn in advice.turns]
columns = ["pass rate", "recommended / default", "best"]
Table(
    pd.DataFrame(rows, columns=columns),
    "The same choice as the model gets better; below 1 is cheaper.",
)

# %% [markdown]
# **How to read this.** The gain comes from fresh seeds, never from those that chose the option.
# The last table is the reason to look again during a run: as pass rates rise, more groups are all
# right, and the best generation batch grows.
#
# ## Exercises
#
# 1. Set `file` to your own dump. A verl dump has no token counts: add
#    `ReadOptions(chars_per_token=3.6, …)`. What is listed as not identified?
# 2. Keep only the mixed groups of the dump and say `selection="kept_mixed"`. What happens to the
#    interval of `mean_logit`?
# 3. Which of verl's options wins for `mean_logit` 2 instead of −0.3, and why?
