"""Which column of a plain table is what: common names by default, the user's word first."""

from collections.abc import Iterable, Mapping

from dapolab.records.options import ROLES
from dapolab.scenario import ConfigError

# Per role, best name first. Lower case; compared without case.
NAMES: dict[str, tuple[str, ...]] = {
    "set": ("set", "run", "split", "env_id", "env", "dataset", "experiment", "checkpoint"),
    "prompt_id": (
        "prompt_id",
        "problem_id",
        "example_id",
        "question_id",
        "task_id",
        "prompt_idx",
        "prompt_index",
        "problem_idx",
    ),
    "group_id": ("group_id", "group", "group_idx", "group_index"),
    "sample": ("sample", "sample_id", "sample_idx", "rollout_idx", "traj_idx", "attempt"),
    "step": ("step", "global_step", "training_step", "iteration", "epoch"),
    "wave": ("wave", "gen_batch"),
    "n_tokens": (
        "n_tokens",
        "tokens",
        "completion_tokens",
        "response_tokens",
        "output_tokens",
        "response_length",
        "completion_length",
        "num_tokens",
        "n_output_tokens",
        "gen_tokens",
        "trace_tokens",
        "est_tokens",
        "length",
    ),
    "n_prompt_tokens": (
        "n_prompt_tokens",
        "prompt_tokens",
        "prompt_length",
        "prompt_len",
        "input_tokens",
    ),
    "reward": ("reward", "score", "rewards", "total_reward", "final_reward"),
    "correct": ("correct", "is_correct", "acc", "passed"),
    "truncated": ("truncated", "is_truncated", "clipped", "is_clipped"),
    "stop_reason": ("stop_reason", "finish_reason"),
    "kept": ("kept", "is_kept"),
    "t_start_s": ("t_start_s", "start_s"),
    "t_end_s": ("t_end_s", "end_s"),
    "cap_tokens": ("cap_tokens", "max_tokens", "max_new_tokens", "max_response_length"),
    "n_samples": ("n_samples", "num_samples", "k", "n", "val_n"),
    "n_correct": ("n_correct", "num_correct", "n_right"),
    "pass_rate": ("pass_rate", "solve_rate", "mean_correct"),
    "chars": ("chars", "n_chars", "num_chars", "output_chars"),
    "text": ("completion", "response", "output", "generation", "text"),
    "prompt_text": ("prompt", "input", "question", "problem"),
}
PER_RESPONSE = ("sample", "n_tokens", "correct", "truncated", "text", "chars", "reward")
MEASURES = (*PER_RESPONSE[1:], "stop_reason", "n_correct", "pass_rate")
IDS = ("prompt_id", "group_id", "prompt_text")


class ColumnMap:
    """Roles of the columns of one file.

    Raises
    ------
    ConfigError
        A column named by the user is not in the file.
    """

    def __init__(self, seen: Iterable[str], *, asked: Mapping[str, str], where: str) -> None:
        names = list(seen)
        self.of_role: dict[str, str] = {}
        for role, name in asked.items():
            if name and name not in names:
                shown = ", ".join(names[:30])
                raise ConfigError(
                    f"{where}: --columns {role}={name}: no such column; columns: {shown}"
                )
            self.of_role[role] = name
        taken = {name for name in asked.values() if name}
        lowered = {name.lower(): name for name in reversed(names) if name not in taken}
        for role, known in NAMES.items():
            if role in asked:
                continue
            match = next((lowered[name] for name in known if name in lowered), None)
            if match is not None:
                self.of_role[role] = match
        self.of_role = {role: name for role, name in self.of_role.items() if name}
        self._settle_counts()

    def _settle_counts(self) -> None:
        """Where rows are responses, counts and pass rates only annotate them."""
        if any(role in self.of_role for role in PER_RESPONSE):
            for role in ("n_samples", "n_correct", "pass_rate"):
                self.of_role.pop(role, None)
        elif "n_correct" not in self.of_role and "pass_rate" not in self.of_role:
            self.of_role.pop("n_samples", None)

    @property
    def counts(self) -> bool:
        """Whether a row is a group (n of k right) rather than a response."""
        return "n_correct" in self.of_role or "pass_rate" in self.of_role

    def has(self, *roles: str) -> bool:
        """Tell whether any of the roles has a column."""
        return any(role in self.of_role for role in roles)

    def describe(self) -> str:
        """Return the line that tells the user which column was taken for what."""
        chosen = [f"{role}={self.of_role[role]}" for role in ROLES if role in self.of_role]
        return "columns: " + ", ".join(chosen)

    def check(self, seen: Iterable[str], *, where: str) -> None:
        """Require an id and something to learn from.

        Raises
        ------
        ConfigError
            Neither; the message lists the columns and the option that maps them.
        """
        shown = ", ".join(list(seen)[:30]) or "none"
        if not self.has(*IDS):
            raise ConfigError(
                f"{where}: no column with a prompt or group id; columns: {shown}; "
                "say --columns prompt_id=NAME"
            )
        if not self.has(*MEASURES):
            raise ConfigError(
                f"{where}: no length, reward or correctness; columns: {shown}; "
                "say --columns n_tokens=NAME,correct=NAME,reward=NAME"
            )
