"""From a preset to the things of a run: device, task, model, generator, learner."""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from dapolab.errors import ConfigError
from gpu_runs.collect import collect_step
from gpu_runs.forward import Policy
from gpu_runs.generate import Generator
from gpu_runs.model import Decoder, ModelConfig
from gpu_runs.preset import FreshModel, LocalModel, MathTask, Preset, ShippedModel
from gpu_runs.prompts import PromptStream, noise_seed
from gpu_runs.rollout import Rollout
from gpu_runs.score import Scores
from gpu_runs.task import DigitSum, Problem, Task
from gpu_runs.update import Learner

Clock = Callable[[], float]


def choose_device(name: str) -> torch.device:
    """Return the device; on a CPU torch is held to one thread.

    A second thread gains little on these sizes and loses much beside another process.

    Raises
    ------
    ConfigError
        CUDA is asked for and this torch sees none.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"--device {name}: choose auto, cpu or cuda")
    has_cuda = torch.cuda.is_available()
    if name == "cuda" and not has_cuda:
        raise ConfigError(
            f"--device cuda: torch {torch.__version__} sees no CUDA device; use --device cpu"
        )
    device = torch.device("cuda" if name != "cpu" and has_cuda else "cpu")
    if device.type == "cpu":
        torch.set_num_threads(1)
    return device


@dataclass
class World:
    """Everything of one run, at its start."""

    preset: Preset
    device: torch.device
    task: Task
    model: Decoder
    prompts: PromptStream
    heldout: list[Problem]
    scores: Scores
    generator: Generator
    examiner: Generator
    """Samples the held-out set, with noise of its own."""
    learner: Learner
    clock: Clock
    """Of everything that is timed."""

    def collect(self, step: int) -> Rollout:
        """Collect one step as the preset says."""
        return collect_step(
            self.generator,
            self.prompts,
            scores=self.scores,
            collector=self.preset.collector,
            rollout=self.preset.rollout,
            step=step,
            poll_iterations=self.preset.engine.poll_iterations,
            clock=self.clock,
        )


def build_world(preset: Preset, device: torch.device) -> World:
    """Make the task, load or warm-start the model, and put generator and learner around it.

    Raises
    ------
    ConfigError
        A file is missing or does not fit, or prompts and cap do not fit the model.
    """
    task, model = make_task_and_model(preset, device)
    rule = preset.objective
    clock = time.process_time if preset.engine.clock == "process" else time.perf_counter
    half = torch.bfloat16 if device.type == "cuda" else None

    def policy(of: Decoder) -> Policy:
        return Policy(of, temperature=preset.engine.temperature, autocast=half)

    def generator(purpose: str) -> Generator:
        return Generator(
            model,
            task,
            slots=preset.engine.slots,
            cap_tokens=preset.rollout.cap_tokens,
            seed=noise_seed(preset.run.seed, purpose),
            temperature=preset.engine.temperature,
            dtype=half,
            clock=clock,
        )

    pool = task.problems("train", preset.data.n_prompts, seed=preset.data.seed)
    exam = preset.evaluation
    heldout = task.problems("heldout", exam.n_prompts, seed=exam.seed)
    _check_fits(model, [*pool, *heldout], cap_tokens=preset.rollout.cap_tokens)
    return World(
        preset=preset,
        device=device,
        task=task,
        model=model,
        prompts=PromptStream(pool, seed=preset.run.seed, n_epochs=preset.data.epochs),
        heldout=heldout,
        scores=Scores(task, rule.length, filter_metric=preset.rollout.filter_metric),
        generator=generator("rollout"),
        examiner=generator("held-out"),
        learner=Learner(
            policy(model),
            objective=rule,
            train=preset.train,
            reference=policy(copy.deepcopy(model)) if rule.kl is not None else None,
            seed=preset.run.seed,
            clock=clock,
        ),
        clock=clock,
    )


def _check_fits(model: Decoder, problems: list[Problem], *, cap_tokens: int) -> None:
    longest = max(len(problem.prompt) for problem in problems)
    most = model.config.max_positions
    if longest + cap_tokens > most:
        raise ConfigError(
            f"rollout.cap_tokens {cap_tokens} and a prompt of {longest} tokens exceed the model's "
            f"{most} positions; lower the cap"
        )


def make_task_and_model(preset: Preset, device: torch.device) -> tuple[Task, Decoder]:
    """Return the task and the policy at the start of training, fp32 weights on the device.

    Raises
    ------
    ConfigError
        The task and the model do not belong together, or a path is missing.
    """
    if isinstance(preset.task, MathTask):
        return _math(preset, preset.task, device)
    settings = preset.task
    task = DigitSum(n_min=settings.n_min, n_max=settings.n_max, masked_share=settings.masked_share)
    if isinstance(preset.model, ShippedModel):
        from gpu_runs.weights import load_model

        return task, load_model(device=device)
    if isinstance(preset.model, FreshModel):
        return task, _fresh(preset.model, task, device)
    raise ConfigError('model.kind "hf" reads text; set task.kind = "math" and task.path')


def _fresh(settings: FreshModel, task: DigitSum, device: torch.device) -> Decoder:
    """Warm-start a decoder of the preset's shape; the same for every seed of the run."""
    from gpu_runs.sft import Recipe, warm_start

    shape = ("d_model", "n_layers", "n_heads", "n_kv_heads", "mlp", "d_mlp", "max_positions")
    config = ModelConfig(
        vocab_size=task.vocab_size, **{name: getattr(settings, name) for name in shape}
    )
    recipe = Recipe(
        n_steps=settings.warm_steps,
        batch=settings.warm_batch,
        learning_rate=settings.warm_learning_rate,
    )
    return warm_start(task, config, recipe, seed=0, device=device)


def _math(preset: Preset, settings: MathTask, device: torch.device) -> tuple[Task, Decoder]:
    """Read problems, tokenizer and checkpoint of a mathematics run."""
    from gpu_runs.hf import read_hf, read_tokenizer
    from gpu_runs.math_task import MathTask as Mathematics
    from gpu_runs.math_task import read_math

    if not isinstance(preset.model, LocalModel) or preset.model.path is None:
        raise ConfigError("--hf-path DIR is missing: a local Qwen2, Qwen2.5 or Llama checkpoint")
    if settings.path is None:
        raise ConfigError("--dataset FILE is missing: problems as Parquet or JSON lines")
    tokenizer = read_tokenizer(preset.model.path)
    n_positions = settings.max_prompt_tokens + preset.rollout.cap_tokens
    model = read_hf(preset.model.path, device=device, max_positions=n_positions)
    problems = read_math(settings.path)
    task = Mathematics(problems, tokenizer, max_prompt_tokens=settings.max_prompt_tokens)
    if task.vocab_size > model.config.vocab_size:
        raise ConfigError(
            f"{preset.model.path}: the tokenizer has {task.vocab_size} tokens, the model "
            f"{model.config.vocab_size}: they do not belong together"
        )
    return task, model
