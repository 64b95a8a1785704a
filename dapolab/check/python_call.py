"""TRL's GRPOConfig(…) call in a Python file: its literal keywords, parsed and never run."""

import ast

from dapolab.check.reading import Setting, Source
from dapolab.check.values import Unknown, Value
from dapolab.errors import ConfigError


def read_python(text: str, *, name: str) -> Source:
    """Read the literal keywords of the ``…GRPOConfig(…)`` call with the most of them."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{name or 'Python'}: broken Python ({error})") from None
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _called(node).endswith("GRPOConfig")
    ]
    if not calls:
        raise ConfigError(f"{name or 'Python'}: no GRPOConfig(…) call found")
    call = max(calls, key=lambda node: len(node.keywords))
    names = _constants(tree)
    settings = tuple(
        Setting(word.arg, _literal(word.value, names), word.value.lineno)
        for word in call.keywords
        if word.arg
    )
    return Source("python", settings, _called(call))


def _called(node: ast.Call) -> str:
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _constants(tree: ast.Module) -> dict[str, Value]:
    """Return the module's ``NAME = literal`` lines; a name assigned twice has no one value."""
    found: dict[str, Value] = {}
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in (t for t in targets if isinstance(t, ast.Name)):
            value = _literal(node.value, {}) if isinstance(node, ast.Assign) else None
            again = target.id in found or node not in tree.body
            found[target.id] = Unknown(f"{target.id} is set more than once") if again else value
    return found


def _literal(node: ast.expr, names: dict[str, Value]) -> Value:
    if isinstance(node, ast.Name):
        return names.get(node.id, Unknown(f"{node.id} is not a constant of the file"))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.Div):
        return _calculated(node, names)
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return Unknown("not a plain value")
    if isinstance(value, tuple):
        value = list(value)
    if value is None or isinstance(value, bool | int | float | str | list):
        return value
    return Unknown("not a plain value")


def _calculated(node: ast.BinOp, names: dict[str, Value]) -> Value:
    """Return the value of +, -, * or / on two plain numbers, nothing larger."""
    left, right = node.left, node.right
    if isinstance(left, ast.BinOp) or isinstance(right, ast.BinOp):
        return Unknown("a calculation of more than two numbers")
    values = (_literal(left, names), _literal(right, names))
    if not all(isinstance(v, int | float) and abs(v) < 1e15 for v in values):
        return Unknown("not a plain value")
    a, b = values
    assert isinstance(a, int | float)
    assert isinstance(b, int | float)
    if isinstance(node.op, ast.Div):
        return a / b if b else Unknown("a division by 0")
    return (
        a + b if isinstance(node.op, ast.Add) else a - b if isinstance(node.op, ast.Sub) else a * b
    )
