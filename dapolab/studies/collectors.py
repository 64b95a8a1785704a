"""The catalogue of collection policies: who runs each, its rule, what it costs, one step drawn."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pandas as pd

from dapolab.compare import compare, select_collectors
from dapolab.report import Document, FigureSpec, Section, Table
from dapolab.report.document import Block
from dapolab.report.dots import Dots, Panel, dot_panels
from dapolab.report.gantt import STATUS_WORDS, admitted, gantt
from dapolab.scenario import COLLECTOR_PRESETS, DEFAULT, ConfigError, Scenario, load
from dapolab.scenario.about import About
from dapolab.scenario.collector import AnyCollector
from dapolab.stats import Estimate
from dapolab.studies.bandits import estimate_table, estimates_from
from dapolab.studies.study import Study, Tables, Tick

SCENARIO = Path("sims/scenarios/gemma4-12b-gpqa.toml")
"""The fitted public workload that costs are measured on."""
_COST = "per_trained_group/seconds"
_RATIO = "ratio/seconds"
_TOKENS = "ratio/completion_tokens"
_LENGTH = "bias/length_ratio_policy"
_STALE = "staleness/mean_versions"
_FILL = "rollout/effective_fill_ratio"
_FULL = 0.99
_SHOWN = {
    _RATIO: "seconds × exact refill",
    _TOKENS: "tokens × exact refill",
    _LENGTH: "trained length × mixed",
    _STALE: "versions old",
    _FILL: "batch filled",
    "run/p_fails": "runs that fail",
}
_WORDS = (
    "A step wants B groups of G answers to one prompt each. A group is mixed if it has right and "
    "wrong answers, and teaches something then alone; q is the share of mixed ones, the others are "
    "degenerate. η is how many times B is launched, M how many times B may be tried. Drawn is the "
    "third step of a small invented run (B = 4, G = 4, 32 slots)."
)
_DRAWN = {
    "rollout.groups_per_step": 4,
    "rollout.group_size": 4,
    "hardware.slots": 32,
    "run.steps": 3,
    "run.replications": 2,
}
"""A step small enough to be seen slot by slot; the third one, so that memory shows."""


def _measure(seed: int, quick: bool, tick: Tick) -> Tables:
    if not SCENARIO.exists():
        raise ConfigError(f"{SCENARIO}: not here; run in a checkout of the repository")
    changes: dict[str, Any] = {"run.replications": 6, "run.steps": 3} if quick else {}
    scenario = load(SCENARIO, changes)
    done = compare(scenario, select_collectors(scenario, "all"), seed=seed)
    tick()
    found: dict[str, dict[str, Estimate]] = {}
    for name in done.policies:
        found[name] = {m: e for m, e in done.estimates[name].items() if m in (_COST, *_SHOWN)}
        found[name] |= {
            f"ratio/{m.partition('/')[2]}": e for m, e in done.ratios.get(name, {}).items()
        }
    best = pd.DataFrame({"policy": list(done.best.get(_COST, ()))})
    responses, waves = _steps_drawn(load(DEFAULT, _DRAWN), seed=seed)
    tick()
    return {
        "estimates": estimate_table(found),
        "best": best,
        "responses": responses,
        "waves": waves,
        "about": _about(),
        "workload": pd.DataFrame(
            {
                "name": [scenario.name],
                "B": [scenario.rollout.groups_per_step],
                "G": [scenario.rollout.group_size],
                "cap": [scenario.rollout.cap_tokens],
                "replications": [scenario.run.replications],
                "steps": [scenario.run.steps],
            }
        ),
    }


def _steps_drawn(scenario: Scenario, *, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the responses and waves of one later step of every policy."""
    from dapolab.sim.run import simulate

    responses, waves = [], []
    for name, collector in select_collectors(scenario, "all").items():
        one = scenario.model_copy(update={"collector": collector})
        run = simulate(one, seed=seed, record_steps=scenario.run.steps, keep_groups=False)
        if run.responses.empty:
            continue
        step = int(run.responses["step"].max())
        columns = ["replica", "submit_s", "admit_s", "end_s", "status"]
        mine = run.responses[run.responses["step"] == step][columns]
        responses.append(mine.assign(policy=name))
        if len(run.waves):
            waves.append(
                run.waves[run.waves["step"] == step][["start_s", "end_s"]].assign(policy=name)
            )
    return (
        pd.concat(responses, ignore_index=True).round(4),
        pd.concat(waves, ignore_index=True).round(4),
    )


def _about() -> pd.DataFrame:
    """Return the words of every kind, and of every preset."""
    rows: list[dict[str, str]] = []
    for config in get_args(AnyCollector):
        about: About = config.ABOUT
        kind = str(config.model_fields["kind"].default)
        rows.append(
            {
                "policy": kind,
                "who": about.who,
                "rule": about.rule,
                "wins": about.wins,
                "bias": about.bias,
                "staleness": about.staleness,
                "preset_of": "",
            }
        )
    for name, preset in COLLECTOR_PRESETS.items():
        kind = str(preset.config.model_dump()["kind"])
        rows.append({"policy": name, "rule": preset.about, "preset_of": kind})
    return pd.DataFrame(rows)


def _document(tables: Tables, provenance: Mapping[str, str]) -> Document:
    estimates = estimates_from(tables["estimates"])
    best = tables["best"]["policy"].tolist()
    workload = {str(k): v for k, v in tables["workload"].iloc[0].items()}
    return Document(
        title="Collection policies: the catalogue",
        lead=_lead(estimates, best, workload),
        sections=(
            Section("All at a glance", (*_figures(estimates, best), _overview(estimates, tables))),
            *_policies(estimates, tables),
        ),
        notes=(
            f"costs are of one fitted public workload ({workload['name']}: B={workload['B']}, "
            f"G={workload['G']}, cap {workload['cap']:,} tokens) on one assumed law of hardware: "
            "another workload ranks otherwise, so run compare or advise on your own",
            "a simulation of waiting and cost: it says nothing of what a policy teaches the model",
        ),
        provenance=dict(provenance)
        | {"replications × steps": f"{workload['replications']} × {workload['steps']}"},
    )


def _lead(
    estimates: Mapping[str, Mapping[str, Estimate]],
    best: list[str],
    workload: Mapping[str, Any],
) -> str:
    def cost(name: str) -> float:
        return estimates[name][_RATIO].mean if _RATIO in estimates[name] else 1.0

    def words(names: list[str]) -> str:
        shown = ", ".join(f"`{name}` ({cost(name):.2f})" for name in names[:3])
        return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")

    fresh = [n for n, e in estimates.items() if _stale(e) == 0 and _fill(e) >= _FULL]
    tied = " (they cannot be told apart)" if len(best) > 1 else ""
    return (
        "Fourteen ways to collect a training batch, and the frameworks' own settings of them, on "
        f"the same prompts and answers. On {workload['name']} the cheapest in seconds a trained "
        f"group that carries signal, as a ratio to exact refill: {words(best)}{tied}. Among those "
        "that train a full batch, be it of groups without signal, and no stale token: "
        f"{words(sorted(fresh, key=cost)[:3])}. "
        "What a policy saves in waiting it often takes from the long answers: read the bias "
        "beside the cost."
    )


def _stale(found: Mapping[str, Estimate]) -> float:
    return found[_STALE].mean if _STALE in found else 0.0


def _fill(found: Mapping[str, Estimate]) -> float:
    return found[_FILL].mean if _FILL in found else 0.0


def _figures(
    estimates: Mapping[str, Mapping[str, Estimate]], best: list[str]
) -> tuple[FigureSpec, ...]:
    order = sorted(
        (name for name in estimates if _RATIO in estimates[name]),
        key=lambda name: estimates[name][_RATIO].mean,
    )
    if not order:
        return ()
    cost = Dots("seconds", {name: estimates[name][_RATIO] for name in order})
    length = Dots("length", {n: estimates[n][_LENGTH] for n in order if _LENGTH in estimates[n]})
    figure = dot_panels(
        order,
        [
            Panel("seconds a trained group ÷ exact refill", (cost,), reference=1.0, values=True),
            Panel("trained length ÷ mixed", (length,), reference=1.0),
        ],
        ringed=best,
        x_label="ratio; 1 is exact refill at the left, no bias at the right",
    )
    first = order[0]
    return (
        FigureSpec(
            name="cost-and-bias",
            figure=figure,
            title="What each policy costs, and which lengths it trains",
            alt=f"Cheapest is {first} at {estimates[first][_RATIO].mean:.2f} of exact refill; "
            f"dearest {order[-1]} at {estimates[order[-1]][_RATIO].mean:.2f}.",
            how_to_read="Left of the line at the left: cheaper than exact refill. Left of the line "
            "at the right: the policy trains shorter answers than those of all mixed groups. Bars "
            "are 99 % intervals that hold together; ringed policies may be the cheapest."
            + _unfiltered(estimates),
        ),
    )


def _unfiltered(estimates: Mapping[str, Mapping[str, Estimate]]) -> str:
    """Return why a policy without a filter is off the line, if it is."""
    found = estimates.get("none", {}).get(_LENGTH)
    if found is None or found.low is None or found.high is None or found.low <= 1 <= found.high:
        return ""
    return (
        f" A policy that trains the groups without signal too has the ratio of none "
        f"({found.mean:.2f}) for that reason alone: their answers have other lengths."
    )


def _overview(estimates: Mapping[str, Mapping[str, Estimate]], tables: Tables) -> Table:
    about = tables["about"].fillna("").set_index("policy")
    rows = []
    for name, found in estimates.items():
        of = about.loc[name, "preset_of"] if name in about.index else ""
        kind = of or (name if name in about.index else _kind_of(name, set(about.index)))
        row: dict[str, object] = {"policy": name, "kind": kind}
        row |= {words: found.get(metric) for metric, words in _SHOWN.items()}
        if not any(metric.startswith("ratio/") for metric in found):
            # the baseline, over itself
            row |= {_SHOWN[m]: Estimate.exact(1.0, unit="ratio") for m in (_RATIO, _TOKENS)}
        rows.append(row)
    links = {str(row["policy"]): str(row["kind"]) for row in rows}
    frame = pd.DataFrame(rows, dtype=object)
    caption = (
        "Ratios to exact refill are paired by replication. A dash: the policy has no such number. "
        "A name leads to what it does; a _2x variant launches 2·B groups at once."
    )
    fails = [found["run/p_fails"].mean for found in estimates.values() if "run/p_fails" in found]
    if fails and not any(fails):
        frame = frame.drop(columns=_SHOWN["run/p_fails"])
        caption += " No run failed."
    return Table(frame, caption, links=links)


def _kind_of(name: str, kinds: set[str]) -> str:
    """Return the kind of a variant of the scenario, which is named after it."""
    return max((k for k in kinds if name.startswith(f"{k}_")), key=len, default="")


def _policies(estimates: Mapping[str, Mapping[str, Estimate]], tables: Tables) -> list[Section]:
    about = tables["about"].fillna("")
    sections = [Section("Each policy", (_WORDS,))]
    for row in about[about["preset_of"] == ""].to_dict("records"):
        name = str(row["policy"])
        presets = about[about["preset_of"] == name]
        blocks: list[Block] = [
            f"**Who runs it.** {row['who']}",
            f"**Rule.** {row['rule']}",
            f"**When it wins.** {row['wins']}",
            f"**Bias.** {row['bias']}",
            f"**Staleness.** {row['staleness']}",
        ]
        if len(presets):
            lines = (f"- `{p['policy']}`: {p['rule']}" for p in presets.to_dict("records"))
            blocks.append("\n".join(lines))
        figure = _step_figure(name, tables)
        sections.append(Section(name, (*blocks, *((figure,) if figure else ())), level=3))
    return sections


def _step_figure(name: str, tables: Tables) -> FigureSpec | None:
    responses, waves = tables["responses"], tables["waves"]
    mine = responses[responses["policy"] == name]
    if admitted(mine).empty:
        return None
    figure, _ = gantt(mine, waves[waves["policy"] == name], policies=[name])
    counts = mine["status"].value_counts()
    said = ", ".join(f"{n} {STATUS_WORDS.get(str(s), s)}" for s, n in counts.items())
    waited = mine["end_s"].max() - mine["submit_s"].min()
    return FigureSpec(
        name=f"step-{name.replace('_', '-')}",
        figure=figure,
        title=f"One step of {name}, slot by slot",
        alt=f"Responses of one step of {waited:.0f} seconds: {said}.",
        how_to_read="A bar is a response in its slot, coloured by what became of its group; white "
        "is a slot that waits, slots that no response ever held are not drawn. Dashed lines are "
        "barriers: the next wave starts when the last answer of this one has ended.",
    )


COLLECTORS = Study(
    "collectors",
    "which policies are there, who runs them, what do they cost?",
    2,
    _measure,
    _document,
)
