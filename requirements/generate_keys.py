"""Write the key tables of ``dapolab check`` from the frameworks' own parsers and configurations.

Run in an environment that has the package in question (the conformance environment has all):

    python requirements/generate_keys.py verl trl openrlhf

slime and NeMo RL are no packages: give a checkout, its commit and the commit's date.

    python requirements/generate_keys.py slime --checkout DIR --commit 002fa9d --date 2026-09-30

Each table is dapolab/check/keys/<package>-<version>.json. ``tests/conformance/test_check_keys.py``
regenerates those of packages and demands that they are equal to the stored ones.
"""

import argparse
import ast
import dataclasses
import importlib.metadata
import importlib.util
import json
import warnings
from pathlib import Path
from typing import Any

KEYS = Path(__file__).resolve().parents[1] / "dapolab" / "check" / "keys"
VERL_CONFIGS = {
    "ppo_trainer": "trainer/config",
    "ppo_megatron_trainer": "trainer/config",
    "fully_async_ppo_trainer": "experimental/fully_async_policy/config",
    "fully_async_ppo_megatron_trainer": "experimental/fully_async_policy/config",
    "one_step_off_ppo_trainer": "experimental/one_step_off_policy/config",
    "one_step_off_ppo_megatron_trainer": "experimental/one_step_off_policy/config",
}


def package_folder(name: str) -> Path:
    """Return where a package lies, without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{name} is not installed here")
    return Path(spec.origin).parent


def flatten(table: Any, prefix: str = "") -> dict[str, Any]:
    """Return dotted keys with their values; an empty table stays a value of its own."""
    if not isinstance(table, dict) or not table:
        return {prefix: table}
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def verl() -> dict[str, Any]:
    """Compose verl's own Hydra configurations; others are stored as differences to the first."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    root = package_folder("verl")
    search = f"hydra.searchpath=[file://{root / 'trainer/config'}]"
    tables: dict[str, dict[str, Any]] = {}
    for name, folder in VERL_CONFIGS.items():
        with (
            warnings.catch_warnings(),
            initialize_config_dir(str(root / folder), version_base=None),
        ):
            warnings.simplefilter("ignore")  # searchpath of the file itself needs verl imported
            config = compose(name, overrides=[search])
        tables[name] = flatten(OmegaConf.to_container(config, resolve=False))
    base = tables.pop("ppo_trainer")
    return {"keys": base, "variants": {name: difference(base, t) for name, t in tables.items()}}


def difference(base: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return what ``other`` sets differently and which keys of ``base`` it lacks."""
    return {
        "set": {k: v for k, v in other.items() if k not in base or base[k] != v},
        "absent": sorted(set(base) - set(other)),
    }


def trl() -> dict[str, Any]:
    """Read the fields that ``trl grpo`` accepts: GRPOConfig's, and those of its other parts."""
    from trl import GRPOConfig, ModelConfig
    from trl.scripts.grpo import GRPOScriptArguments
    from trl.scripts.utils import DatasetMixtureConfig

    command_only: dict[str, Any] = {}
    for part in (GRPOScriptArguments, ModelConfig, DatasetMixtureConfig):
        command_only |= fields(part)
    return {"keys": fields(GRPOConfig), "command_only": command_only}


def fields(part: type) -> dict[str, Any]:
    """Return a dataclass's fields that its constructor takes, with their plain defaults."""
    found = {}
    for item in dataclasses.fields(part):
        default = item.default
        if item.default_factory is not dataclasses.MISSING:
            default = item.default_factory()
        if item.init:
            found[item.name] = default if plain(default) else None
    return found


def plain(value: Any) -> bool:
    """Say whether a value can stand in JSON as it is."""
    if isinstance(value, list):
        return all(map(plain, value))
    return type(value) in (type(None), bool, int, float, str)


def openrlhf() -> dict[str, Any]:
    """Read the flags of ``openrlhf.cli.train_ppo_ray`` off its syntax tree."""
    tree = ast.parse((package_folder("openrlhf") / "cli" / "train_ppo_ray.py").read_text())
    keys: dict[str, Any] = {}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "add_argument":
            words = {w.arg: w.value for w in call.keywords}
            default = words.get("default", ast.Constant(None))
            for flag in flags(call.args[0]):
                keys[flag] = literal(default)
    return {"keys": keys}


def flags(node: ast.expr) -> list[str]:
    """Return a flag's name; one for each entity where it is built from ``prefix``."""
    if isinstance(node, ast.Constant):
        return [str(node.value).removeprefix("--")]
    if isinstance(node, ast.JoinedStr):
        end = "".join(str(p.value) for p in node.values if isinstance(p, ast.Constant))
        return [f"{entity}{end.removeprefix('--')}" for entity in ("actor", "critic")]
    return []


def literal(node: ast.expr) -> Any:
    """Return a literal default, None where it is computed."""
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return list(value) if isinstance(value, tuple) else value


# ------------------------------------------------------------------------------------- checkouts

SLIME = "slime/utils/arguments.py"
NEMO = {
    "nemo_rl/algorithms/grpo.py": ("GRPOConfig", "AsyncGRPOConfig", "RewardScalingConfig"),
    "nemo_rl/algorithms/reward_functions.py": ("RewardShapingConfig",),
    "nemo_rl/algorithms/advantage_estimator.py": ("AdvEstimatorConfig",),
    "nemo_rl/algorithms/loss/loss_functions.py": ("ClippedPGLossConfig",),
}


def slime(checkout: Path) -> dict[str, Any]:
    """Read the arguments that slime adds to Megatron's, or whose defaults it sets anew."""
    keys: dict[str, Any] = {}
    for call in ast.walk(ast.parse((checkout / SLIME).read_text(encoding="utf-8"))):
        if not isinstance(call, ast.Call):
            continue
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        flag = {"add_argument": 0, "reset_arg": 1}.get(name)
        if flag is None or len(call.args) <= flag:
            continue
        words = {w.arg: w.value for w in call.keywords}
        action = words.get("action")
        for key in flags(call.args[flag]):
            keys[key.replace("-", "_")] = argument_default(words)
            if getattr(action, "attr", "") == "BooleanOptionalAction":
                keys[f"no_{key.replace('-', '_')}"] = None
    return {"keys": keys, "files": [SLIME]}


def argument_default(words: dict[str | None, ast.expr]) -> Any:
    """Return what an argument is when it is not given; a flag is then false."""
    if literal(words.get("action", ast.Constant(None))) in ("store_true", "store_false"):
        return False
    return literal(words.get("default", ast.Constant(None)))


def nemo_rl(checkout: Path) -> dict[str, Any]:
    """Read the fields of the classes behind the sections ``grpo`` and ``loss_fn``."""
    classes: dict[str, ast.ClassDef] = {}
    for file, names in NEMO.items():
        tree = ast.parse((checkout / file).read_text(encoding="utf-8"))
        found = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef)}
        classes |= {name: found[name] for name in names}
    keys = class_fields(classes, "GRPOConfig", "grpo")
    keys |= class_fields(classes, "ClippedPGLossConfig", "loss_fn")
    return {"keys": keys, "files": sorted(NEMO)}


def class_fields(classes: dict[str, ast.ClassDef], name: str, prefix: str) -> dict[str, Any]:
    """Return a class's annotated fields with their literal defaults, nested classes dotted."""
    keys: dict[str, Any] = {}
    for item in classes[name].body:
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        key = f"{prefix}.{item.target.id}"
        words = {n.id for n in ast.walk(item.annotation) if isinstance(n, ast.Name)}
        inner = sorted(words & set(classes))
        if inner:
            keys |= class_fields(classes, inner[0], key)
        else:
            keys[key] = literal(item.value or ast.Constant(None))
    return keys


TABLES = {"verl": verl, "trl": trl, "openrlhf": openrlhf}
CHECKOUTS = {"slime": slime, "nemo-rl": nemo_rl}


def document(package: str) -> dict[str, Any]:
    """Return a package's whole table, version included."""
    version = importlib.metadata.version(package)
    return {"package": package, "version": version} | TABLES[package]()


def checkout_document(package: str, checkout: Path, *, commit: str, date: str) -> dict[str, Any]:
    """Return the table of a framework that is read from a checkout."""
    return {"package": package, "version": commit, "date": date} | CHECKOUTS[package](checkout)


def text(table: dict[str, Any]) -> str:
    """Return the file's text: sorted, one key a line, so that changes read well."""
    return json.dumps(table, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the tables of the packages named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="+", choices=sorted([*TABLES, *CHECKOUTS]))
    parser.add_argument("--checkout", type=Path, help="of slime or NeMo RL")
    parser.add_argument("--commit", help="of the checkout, as it is to be named")
    parser.add_argument("--date", help="of that commit")
    given = parser.parse_args()
    for package in given.packages:
        if package in TABLES:
            table = document(package)
        elif given.checkout and given.commit and given.date:
            table = checkout_document(package, given.checkout, commit=given.commit, date=given.date)
        else:
            parser.error(f"{package} needs --checkout, --commit and --date")
        path = KEYS / f"{package}-{table['version']}.json"
        path.write_text(text(table), encoding="utf-8")
        print(path.name)  # noqa: T201


if __name__ == "__main__":
    main()
