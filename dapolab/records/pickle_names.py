"""Names in a pickle that plain data and tensors need, and what stands in for them.

None of them is looked up: a call of one makes a dict, bytes, a number, or an ``Opaque``.
"""

import struct
from dataclasses import dataclass
from typing import Any

# What data of trainers is made of besides plain values. Calling one of these here makes an Opaque,
# a dict, bytes or a number; the function of that name is never reached.
CONTAINERS = frozenset({"collections OrderedDict", "builtins dict"})
OPAQUE = frozenset(
    {
        "torch._utils _rebuild_tensor_v2",
        "torch._utils _rebuild_parameter",
        "torch._utils _rebuild_device_tensor_from_numpy",
        "torch._tensor _rebuild_from_type_v2",
        "torch Size",
        "torch device",
        "torch Tensor",
        "builtins set",
        "builtins frozenset",
        "__builtin__ set",  # as protocol 2 writes it
        "__builtin__ frozenset",
        "numpy ndarray",
        "numpy dtype",
        "numpy.core.multiarray _reconstruct",
        "numpy._core.multiarray _reconstruct",
        "numpy.core.numeric _frombuffer",
        "numpy._core.numeric _frombuffer",
    }
)
SCALARS = frozenset({"numpy.core.multiarray scalar", "numpy._core.multiarray scalar"})
ENCODE = "_codecs encode"
_STORAGES = ("Storage", "float32", "float64", "bfloat16", "float16", "int64", "int32", "bool")
_NUMPY = {"f8": "d", "f4": "f", "f2": "e", "i8": "q", "i4": "i", "i2": "h", "b1": "?", "u8": "Q"}


class RefusedPickleError(ValueError):
    """A pickle that is broken, or holds more than plain data."""


@dataclass(frozen=True)
class Name:
    """The name of something in Python; never looked up."""

    name: str


class Opaque:
    """What a known call would have made: a tensor, an array, a set. Only its parts are kept."""

    def __init__(self, name: str, parts: tuple[Any, ...]) -> None:
        self.name = name
        self.parts = parts


def name_of(module: Any, name: Any) -> Name:
    """Return the name, if it is of plain data.

    Raises
    ------
    RefusedPickleError
        Any other name.
    """
    full = f"{module} {name}"
    is_storage = str(module) in ("torch", "torch.storage") and str(name).endswith(_STORAGES)
    if is_storage or full in CONTAINERS | OPAQUE | SCALARS or full == ENCODE:
        return Name(full)
    raise RefusedPickleError(
        f"it names {str(module)[:60]}.{str(name)[:60]}, which is no plain data"
    )


def call(function: Any, arguments: Any) -> Any:
    """Return what stands in for the result of a call.

    Raises
    ------
    RefusedPickleError
        A call of something that is no known name.
    """
    if not isinstance(function, Name) or not isinstance(arguments, tuple):
        raise RefusedPickleError("it calls something that is no known name")
    if function.name in CONTAINERS:
        return dict(arguments[0]) if arguments else {}
    if function.name == ENCODE:
        return str(arguments[0]).encode("latin1")
    if function.name in SCALARS:
        return _scalar(*arguments)
    return Opaque(function.name, arguments)


def _scalar(dtype: Any, content: Any) -> Any:
    kind = dtype.parts[0] if isinstance(dtype, Opaque) and dtype.parts else None
    if kind not in _NUMPY or not isinstance(content, bytes):
        return None
    return struct.unpack("<" + _NUMPY[kind], content)[0]
