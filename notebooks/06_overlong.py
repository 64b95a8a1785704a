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
# # Overlong
#
# What should happen to an answer that runs into the cap? DAPO gives two answers: punish it softly
# before it gets there, or mask it out of the loss. Here is what each of them teaches a policy that
# chooses among short and long, right and wrong answers.

# %%
import pandas as pd
from IPython.display import display

from dapolab.bandit import curve_table, final_estimates, find_study, parse_mode, train
from dapolab.report import Table
from dapolab.report.bandit_report import bandit_document, head
from dapolab.rules import judge_group, kept_only_by_shaping, overlong_penalty

STUDY = find_study("overlong")
RULE = STUDY.penalty
RULE

# %% [markdown]
# ## 1. The penalty by length

# %%
lengths = (50, 60, 70, 80, 90, 100)
rows = [{"tokens": n, "penalty": overlong_penalty(n, **RULE)} for n in lengths]
Table(pd.DataFrame(rows), "0 up to cap − buffer, then linear to −factor at the cap (DAPO Eq. 13).")

# %% [markdown]
# **How to read this.** The penalty is the same for right and wrong answers. In a group where most
# are right, a right answer inside the buffer falls below the mean of its group and is pushed
# *down*.
#
# ## 2. A group that teaches length alone

# %%
raw = (-1.0, -1.0, -1.0, -1.0)
shaped = tuple(r + overlong_penalty(n, **RULE) for r, n in zip(raw, (40, 70, 90, 100), strict=True))
print("shaped rewards", shaped)
print("filter on correctness:", judge_group(raw), "-> dropped")
print("filter on the shaped reward:", judge_group(shaped), "-> kept")
print("kept only because of shaping:", kept_only_by_shaping(raw, shaped=shaped))

# %% [markdown]
# **How to read this.** All four answers are wrong. Filtered on correctness the group leaves;
# filtered on the shaped reward it stays, with a positive advantage for the shortest wrong answer.
#
# ## 3. What a policy makes of it

# %%
bandit = STUDY.bandit()
modes = [parse_mode(word, base=STUDY.base, penalty=RULE) for word in STUDY.modes]
candidates = max(mode.training.n_candidates for mode in modes)
runs = [train(bandit, m, seeds=range(30), seed=0, candidates=candidates) for m in modes]
ends = {run.mode: final_estimates(run) for run in runs}
page = bandit_document(
    title="-", lead="-", curves=curve_table(runs), estimates=ends, how_to_read=()
)
display(*(figure for figure in page.figures() if figure.name != "clip"))

# %%
shown = ("length/right", "length/wrong", "reward/accuracy", "rollout/effective_fill_ratio")
rows = [{"mode": name} | {head(m): found.get(m) for m in shown} for name, found in ends.items()]
Table(pd.DataFrame(rows), "After training, means over seeds with 99 % intervals.")

# %% [markdown]
# **How to read this.** Compare each row with `no-length-rule`. The penalty shortens right and
# wrong answers a little. `mask-truncated` leaves cut answers in the baseline but takes their
# gradient away, `exclude-truncated` takes them out of the baseline as well: nobody pushes them
# down any more, so wrong answers stay longer and fewer are right than with no rule at all. The two
# filters differ in the groups that they keep: the one on shaped rewards trains length where all
# answers are right.
#
# ## Exercises
#
# 1. Halve `factor`: `RULE = STUDY.penalty | {"factor": 0.5}`. Is the effect on length halved?
# 2. A penalty that covers the whole range (`buffer_tokens` = `cap_tokens`) is refused for longer
#    buffers. What does it do to a short right answer beside a shorter one?
# 3. Which mode would you choose if cut answers are often right, only unfinished?
