"""Pickles of plain data, read without unpickling: no name in the file is looked up or called.

A pickle is a program for a small stack machine (CPython's ``pickletools`` documents every
opcode). This interpreter knows those that build numbers, texts, lists, tuples and dicts, and what
``torch.save`` writes around tensors, which stay opaque. A file that names anything else, or uses
any other opcode, is refused before anything happens.
"""

import struct
from collections.abc import Callable
from typing import Any

from dapolab.records.pickle_names import Opaque, RefusedPickleError, call, name_of

LONGEST_INTEGER_BYTES = 16
_MARK = object()


def load_plain(data: bytes) -> Any:
    """Return what a pickle of plain data holds.

    Raises
    ------
    RefusedPickleError
        Broken, cut, or anything but plain data and tensors; the message names what it is.
    """
    machine = _Machine(data)
    try:
        return machine.run()
    except RefusedPickleError:
        raise
    except (IndexError, KeyError, struct.error, TypeError, ValueError, RecursionError) as error:
        raise RefusedPickleError(
            f"broken at byte {machine.place} ({type(error).__name__})"
        ) from None


class _Machine:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        data, stack, steps = self.data, self.stack, _STEPS
        while True:
            code = data[self.place]
            self.place += 1
            if code == 0x4B:  # K, a byte: most of a list of tokens is this or the next
                stack.append(data[self.place])
                self.place += 1
            elif code == 0x4D:  # M, two bytes
                stack.append(data[self.place] | data[self.place + 1] << 8)
                self.place += 2
            elif code == 0x2E:  # STOP
                return stack.pop()
            else:
                step = steps.get(code)
                if step is None:
                    raise RefusedPickleError(f"opcode {chr(code)!r} is not of plain data")
                step(self)

    def take(self, n_bytes: int) -> bytes:
        part = self.data[self.place : self.place + n_bytes]
        if len(part) < n_bytes:
            raise RefusedPickleError("it is cut off")
        self.place += n_bytes
        return part

    def number(self, form: str) -> int:
        return int(struct.unpack(form, self.take(struct.calcsize(form)))[0])

    def line(self) -> str:
        end = self.data.index(b"\n", self.place)
        part = self.data[self.place : end]
        self.place = end + 1
        return part.decode()

    def items(self) -> list[Any]:
        """Take everything above the last mark."""
        place = len(self.stack) - 1
        while self.stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise RefusedPickleError("a mark is missing")
        found = self.stack[place + 1 :]
        del self.stack[place:]
        return found


def _global(machine: _Machine) -> None:
    module = machine.line()
    machine.stack.append(name_of(module, machine.line()))


def _stack_global(machine: _Machine) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    machine.stack.append(name_of(module, name))


def _reduce(machine: _Machine) -> None:
    arguments, function = machine.stack.pop(), machine.stack.pop()
    machine.stack.append(call(function, arguments))


def _newobj(machine: _Machine) -> None:
    _reduce(machine)


def _build(machine: _Machine) -> None:
    machine.stack.pop()  # the state of an opaque thing: nobody asks for it
    if not isinstance(machine.stack[-1], Opaque | dict):
        raise RefusedPickleError("it sets the state of something that has none")


def _persistent(machine: _Machine) -> None:
    machine.stack.append(Opaque("storage", (machine.stack.pop(),)))


def _set_items(machine: _Machine) -> None:
    pairs = machine.items()
    table = machine.stack[-1]
    if not isinstance(table, dict) or len(pairs) % 2:
        raise RefusedPickleError("items for something that is no dict")
    table.update(zip(pairs[::2], pairs[1::2], strict=True))


def _set_item(machine: _Machine) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    if not isinstance(machine.stack[-1], dict):
        raise RefusedPickleError("an item for something that is no dict")
    machine.stack[-1][key] = value


def _appends(machine: _Machine) -> None:
    found = machine.items()
    if not isinstance(machine.stack[-1], list):
        raise RefusedPickleError("items for something that is no list")
    machine.stack[-1].extend(found)


def _append(machine: _Machine) -> None:
    value = machine.stack.pop()
    if not isinstance(machine.stack[-1], list):
        raise RefusedPickleError("an item for something that is no list")
    machine.stack[-1].append(value)


def _dict_of(machine: _Machine) -> None:
    pairs = machine.items()
    machine.stack.append(dict(zip(pairs[::2], pairs[1::2], strict=True)))


def _tuple(n: int) -> Callable[[_Machine], None]:
    def step(machine: _Machine) -> None:
        if len(machine.stack) < n:
            raise RefusedPickleError("its stack runs empty")
        found = tuple(machine.stack[len(machine.stack) - n :])
        del machine.stack[len(machine.stack) - n :]
        machine.stack.append(found)

    return step


def _push(make: Callable[[_Machine], Any]) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(make(machine))


def _text(form: str) -> Callable[[_Machine], None]:
    return _push(lambda m: m.take(m.number(form)).decode("utf-8", "surrogatepass"))


def _bytes(form: str) -> Callable[[_Machine], None]:
    return _push(lambda m: m.take(m.number(form)))


def _remember(index: Callable[[_Machine], int]) -> Callable[[_Machine], None]:
    def step(machine: _Machine) -> None:
        machine.memo[index(machine)] = machine.stack[-1]

    return step


def _recall(form: str) -> Callable[[_Machine], None]:
    return _push(lambda m: m.memo[m.number(form)])


def _long(form: str) -> Callable[[_Machine], None]:
    def make(machine: _Machine) -> int:
        n_bytes = machine.number(form)
        if n_bytes > LONGEST_INTEGER_BYTES:
            raise RefusedPickleError(f"an integer of {n_bytes} bytes")
        return int.from_bytes(machine.take(n_bytes), "little", signed=True)

    return _push(make)


def _skip(n_bytes: int) -> Callable[[_Machine], None]:
    def step(machine: _Machine) -> None:
        machine.take(n_bytes)

    return step


_STEPS: dict[int, Callable[[_Machine], None]] = {
    ord(sign): step
    for sign, step in {
        "\x80": _skip(1),  # PROTO
        "\x95": _skip(8),  # FRAME
        "(": _push(lambda m: _MARK),
        "0": lambda m: m.stack.pop() and None,  # POP
        "N": _push(lambda m: None),
        "\x88": _push(lambda m: True),
        "\x89": _push(lambda m: False),
        "J": _push(lambda m: m.number("<i")),
        "\x8a": _long("<B"),
        "\x8b": _long("<I"),
        "G": _push(lambda m: struct.unpack(">d", m.take(8))[0]),
        "X": _text("<I"),
        "\x8c": _text("<B"),
        "\x8d": _text("<Q"),
        "B": _bytes("<I"),
        "C": _bytes("<B"),
        "\x8e": _bytes("<Q"),
        "}": _push(lambda m: {}),
        "]": _push(lambda m: []),
        ")": _push(lambda m: ()),
        "t": _push(lambda m: tuple(m.items())),
        "l": _push(lambda m: m.items()),
        "d": _dict_of,
        "\x85": _tuple(1),
        "\x86": _tuple(2),
        "\x87": _tuple(3),
        "a": _append,
        "e": _appends,
        "s": _set_item,
        "u": _set_items,
        "q": _remember(lambda m: m.number("<B")),
        "r": _remember(lambda m: m.number("<I")),
        "\x94": _remember(lambda m: len(m.memo)),
        "h": _recall("<B"),
        "j": _recall("<I"),
        "c": _global,
        "\x93": _stack_global,
        "R": _reduce,
        "\x81": _newobj,
        "b": _build,
        "Q": _persistent,
        "\x8f": _push(lambda m: Opaque("builtins set", ())),
        "\x90": lambda m: m.items() and None,  # ADDITEMS
        "\x91": _push(lambda m: Opaque("builtins frozenset", tuple(m.items()))),
    }.items()
}
