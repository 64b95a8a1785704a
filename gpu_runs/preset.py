"""One training run as frozen data: a preset in, a checked and fully explicit configuration out.

A preset may name a recipe of ``dapolab.recipes``; ``resolve`` fits it to the run's own batch and
cap and writes out every setting, so that what is stored with a run says all of it.
"""

import difflib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from dapolab.collectors import new_collector
from dapolab.errors import ConfigError
from dapolab.scenario import Collector, ExactRefill, Objective, Rollout, check, read_toml
from dapolab.scenario.config import Config, Count, NonNegative, Positive, Share
from dapolab.scenario.load import lay_over
from gpu_runs.recipe import resolve, without_recipe

FOLDER = Path(__file__).parent / "presets"
ALIASES = {"seed": "run.seed", "steps": "run.steps", "dataset": "task.path", "recipe": "recipe"}
"""Short options of the command line; ``hf_path`` is one more and chooses the kind of model too."""
NOT_SUPPORTED = {
    "gae": "there is no value function",
    "remax": "no greedy response is sampled",
    "gdpo": "the tasks have one reward",
}
MAY_CHANGE = ("description", "run.steps", "run.checkpoint_every")
"""Settings that a run may be continued with."""


class DigitSumTask(Config):
    """Sum of labelled digits, from ``n_min`` to ``n_max`` of them; see ``gpu_runs.task``."""

    kind: Literal["digit_sum"] = "digit_sum"
    n_min: Count = 2
    n_max: Count = 12
    masked_share: Share = Field(0.1, description="prompts with a digit that nobody can see")


class MathTask(Config):
    """Problems of a Parquet or JSON-lines file, judged by math-verify."""

    kind: Literal["math"] = "math"
    path: str | None = Field(None, description="DAPO-Math-17k or a file with its columns")
    max_prompt_tokens: Count = 512


class ShippedModel(Config):
    """The warm-started toy that comes with the source."""

    kind: Literal["shipped"] = "shipped"


class FreshModel(Config):
    """A decoder of this shape, warm-started on the task's demonstrations before the run."""

    kind: Literal["fresh"] = "fresh"
    d_model: Count = 64
    n_layers: Count = 2
    n_heads: Count = 4
    n_kv_heads: Count = 4
    mlp: Literal["gelu", "swiglu"] = "swiglu"
    d_mlp: Count = 256
    max_positions: Count = 128
    warm_steps: int = Field(1100, ge=0, description="updates of the warm start")
    warm_learning_rate: Positive = 3e-3
    warm_batch: Count = 64


class LocalModel(Config):
    """A Qwen2, Qwen2.5 or Llama checkpoint with its tokenizer in a local folder."""

    kind: Literal["hf"] = "hf"
    path: str | None = Field(None, description="folder with config.json and safetensors")


class Data(Config):
    """The pool of prompts and the walk through it."""

    n_prompts: Count = Field(4096, description="training prompts; each epoch is shuffled anew")
    epochs: Count | None = Field(None, description="absent: as many as the steps need")
    seed: int = Field(7, ge=0, description="chooses the pool, whatever the run's seed")


class Train(Config):
    """The optimizer and what becomes of one rollout."""

    learning_rate: Positive = 3e-5
    warmup_updates: int = Field(0, ge=0, description="the rate rises linearly over these")
    beta1: Share = 0.9
    beta2: Share = 0.99
    adam_eps: Positive = 1e-8
    weight_decay: NonNegative = 0.0
    grad_clip: Positive | None = 1.0
    responses_per_update: Count | None = Field(None, description="absent: the whole rollout")
    epochs: Count = Field(1, description="passes over the responses of a rollout")
    shuffle: bool = Field(False, description="mini-batches of rows in random order, not of groups")
    micro_rows: Count | None = Field(
        None, description="rows of a micro-batch, for losses that depend on the split"
    )
    micro_tokens: Count = Field(
        8192, description="tokens computed at once, padding included; changes no loss"
    )
    when_no_signal: Literal["train", "skip", "error"] = Field(
        "train", description="a batch without any group with spread"
    )


class Engine(Config):
    """The generator."""

    slots: Count = 256
    temperature: Positive = 1.0
    poll_iterations: Count = Field(1, description="the policy looks every so many iterations")
    clock: Literal["wall", "process"] = Field(
        "wall",
        description="process: CPU seconds, which on one thread are those of an idle core",
    )


class Evaluation(Config):
    """The held-out set: fixed prompts, a stream of its own, no filter, no shaping."""

    every: Count = 5
    n_prompts: int = Field(64, ge=2)
    n_samples: Count = 8
    pass_at: tuple[Count, ...] = (1, 8)
    seed: int = Field(2026, ge=0, description="chooses the prompts, whatever the run's seed")

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if self.pass_at and max(self.pass_at) > self.n_samples:
            raise ValueError(
                f"pass_at {max(self.pass_at)} needs as many samples, n_samples is {self.n_samples}"
            )
        return self


class RunTable(Config):
    """How long, from which seed, and what is kept."""

    steps: Count = 40
    seed: int = Field(0, ge=0)
    checkpoint_every: Count = Field(1, description="steps; a kill loses those since the last one")
    dump: bool = Field(True, description="write every candidate, for dapolab fit")


class Preset(Config):
    """One run. Build it with ``load`` or ``build``, which resolve the recipe."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    description: str = ""
    recipe: str | None = Field(None, description="a recipe of dapolab.recipes, resolved below")
    task: Annotated[DigitSumTask | MathTask, Field(discriminator="kind")] = DigitSumTask()
    model: Annotated[ShippedModel | FreshModel | LocalModel, Field(discriminator="kind")] = (
        ShippedModel()
    )
    rollout: Rollout = Rollout(groups_per_step=32, group_size=8, cap_tokens=64)
    collector: Collector = ExactRefill()
    objective: Objective = Objective()
    data: Data = Data()
    train: Train = Train()
    engine: Engine = Engine()
    evaluation: Evaluation = Evaluation()
    run: RunTable = RunTable()

    @model_validator(mode="after")
    def _supported(self) -> Self:
        kind = self.objective.advantage.kind
        if kind in NOT_SUPPORTED:
            raise ValueError(f'advantage "{kind}" cannot be trained here: {NOT_SUPPORTED[kind]}')
        if not new_collector(self.collector, self.rollout).is_plain:
            raise ValueError(
                f'collector "{self.collector.kind}" is simulated, not run: with these settings it '
                "needs parts of groups, copies, or a memory of earlier steps"
            )
        if self.rollout.group_size == 1 and self.collector.kind != "none":
            raise ValueError(
                "rollout.group_size 1 has no spread to filter on: raise it, or set "
                'collector.kind = "none"'
            )
        return self

    @model_validator(mode="after")
    def _one_penalty(self) -> Self:
        penalty, overlong = self.objective.length.penalty, self.rollout.overlong
        if (penalty is None) != (overlong is None):
            raise ValueError("rollout.overlong and objective.length.penalty differ; give one")
        if penalty is not None and overlong is not None:
            said = (overlong.buffer_tokens, overlong.factor, self.rollout.cap_tokens)
            if said != (penalty.buffer_tokens, penalty.factor, penalty.cap_tokens):
                raise ValueError(
                    "rollout.overlong and objective.length.penalty punish differently; give one"
                )
        return self

    def fingerprint(self) -> str:
        """Return 16 hex digits that change when a setting changes that a run cannot go on with."""
        return hashlib.sha256(json.dumps(self._fixed(), sort_keys=True).encode()).hexdigest()[:16]

    def first_difference(self, other: "Preset") -> str | None:
        """Name the first setting that forbids continuing a run of the other; None if none does."""
        mine, theirs = _flat(self._fixed()), _flat(other._fixed())
        for key in dict.fromkeys((*mine, *theirs)):
            if mine.get(key) != theirs.get(key):
                return f"{key} is {theirs.get(key)} there and {mine.get(key)} here"
        return None

    def _fixed(self) -> dict[str, Any]:
        data = self.model_dump(mode="json")
        for key in MAY_CHANGE:
            table, _, name = key.rpartition(".")
            (data[table] if table else data).pop(name)
        return data


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def load(name: str | Path, overrides: Mapping[str, Any] | None = None) -> Preset:
    """Load a preset by name or file, settings laid over it.

    Parameters
    ----------
    name : one of ``preset_names()``, or the path of a TOML file.
    overrides : dotted keys and values; the short ones of ``ALIASES`` and ``hf_path`` as well. A
        ``recipe`` replaces all that the file says of objective, collector and updates.

    Raises
    ------
    ConfigError
        No such preset, wrong TOML, unknown key or recipe, value out of range: one line.
    """
    path = find(name)
    data = read_toml(path)
    changes = _dotted(overrides or {})
    if "recipe" in changes:
        data = without_recipe(data)
    lay_over(data, changes)
    return build(data, where=str(name))


def build(data: Mapping[str, Any], *, where: str = "preset") -> Preset:
    """Check tables as a preset, the recipe resolved; errors are one-line ConfigErrors."""
    return check(Preset, resolve(data, where=where), where=where)


def preset_names() -> list[str]:
    """Return the names of the presets that come with the source."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def find(name: str | Path) -> Path:
    """Return the file of a preset.

    Raises
    ------
    ConfigError
        Neither a file nor a name that comes with the source.
    """
    path = Path(name)
    if path.suffix == ".toml" or path.is_file():
        return path
    names = preset_names()
    if str(name) in names:
        return FOLDER / f"{name}.toml"
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.0)
    hint = f"; nearest: {near[0]}" if near else ""
    raise ConfigError(f"no preset {str(name)!r}: {', '.join(names)}, or a .toml file{hint}")


def _dotted(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Write short options out.

    Raises
    ------
    ConfigError
        A word without a table that is neither short option nor key of the preset.
    """
    found: dict[str, Any] = {}
    for key, value in overrides.items():
        if key == "hf_path":
            found |= {"model.kind": "hf", "model.path": value}
        elif "." not in key and key not in ALIASES and key not in Preset.model_fields:
            raise ConfigError(f"unknown option --{key}; nearest: --{_nearest(key)}")
        else:
            found[ALIASES.get(key, key)] = value
    return found


def _nearest(word: str) -> str:
    """Return the option most like a word, with its table."""
    dotted = {key.rpartition(".")[2]: key for key in reversed(_flat(Preset().model_dump()))}
    known = {**dotted, **{name: name for name in (*ALIASES, "hf_path", "device", "output")}}
    return known[difflib.get_close_matches(word, known, n=1, cutoff=0.0)[0]]
