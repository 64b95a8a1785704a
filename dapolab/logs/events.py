"""TensorBoard event files: scalars alone, read from the bytes.

A file is a sequence of records: length (8 bytes), its checksum, the message, its checksum
(tensorflow/core/lib/io/record_writer.h); a message is a protobuf ``Event`` (event.proto: wall_time
1, step 2, summary 5; summary.proto: value 1 with tag 1, simple_value 2, tensor 8). Two dozen lines
of the wire format spare the importer tensorboard and its dependencies; the checksums catch damage.
"""

import math
import struct
from collections.abc import Iterator
from typing import BinaryIO

from dapolab.logs.rows import LARGEST_STEP, RowStore
from dapolab.reading.lines import Source

LONGEST_RECORD_BYTES = 256 << 20
_FLOAT, _DOUBLE = 1, 2  # tensorflow/core/framework/types.proto


def _crc_table() -> tuple[int, ...]:
    table = []
    for n in range(256):
        for _ in range(8):
            n = (n >> 1) ^ 0x82F63B78 if n & 1 else n >> 1
        table.append(n)
    return tuple(table)


_TABLE = _crc_table()


def masked_crc(data: bytes) -> int:
    """Return TFRecord's checksum: CRC-32C, rotated by 15 bits and shifted by a constant."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def read_events(source: Source, store: RowStore, *, stream: str) -> int:
    """Add the scalars of one event file to ``store``, a row for each run of equal steps.

    Returns
    -------
    int : scalars read.

    Raises
    ------
    ConfigError
        A checksum that does not fit, or a message that is no event.
    """
    n_scalars = 0
    step, number = -1, 0
    row: dict[str, float] = {}
    for number, message in _records(source):
        try:
            at, scalars = _scalars(message)
        except (IndexError, struct.error, UnicodeDecodeError, ValueError):
            raise source.error(f"record {number} is no TensorBoard event") from None
        for tag, value in scalars:
            n_scalars += 1
            if at != step or tag in row:
                _put(store, step, row, line=number, stream=stream)
                step, row = at, {}
            row[tag] = value
    _put(store, step, row, line=number, stream=stream)
    return n_scalars


def _put(store: RowStore, step: int, row: dict[str, float], *, line: int, stream: str) -> None:
    if row and 0 <= step < LARGEST_STEP:
        store.add(step, row, line=line, stream=stream)


def _records(source: Source) -> Iterator[tuple[int, bytes]]:
    with source.path.open("rb") as file:
        number = 0
        while head := file.read(12):
            number += 1
            length = struct.unpack("<Q", head[:8])[0] if len(head) == 12 else 0
            if len(head) == 12 and struct.unpack("<I", head[8:])[0] != masked_crc(head[:8]):
                raise source.error(f"record {number}: the checksum of its length does not fit")
            if length > LONGEST_RECORD_BYTES:
                raise source.error(f"record {number}: longer than 256 MiB")
            body = _body(file, length) if len(head) == 12 else None
            if body is None:
                source.notes.append(
                    f"{source.name}: the last record ({number}) is cut off and was left out"
                )
                return
            message, crc = body
            source.progress.advance(length + 16)
            # pictures and histograms are long; only what may hold scalars is worth a checksum
            if len(message) < 1 << 16:
                if crc != masked_crc(message):
                    raise source.error(f"record {number}: its checksum does not fit: damaged")
                yield number, message


def _body(file: BinaryIO, length: int) -> tuple[bytes, int] | None:
    message, foot = file.read(length), file.read(4)
    if len(message) < length or len(foot) < 4:
        return None
    return message, struct.unpack("<I", foot)[0]


def _scalars(message: bytes) -> tuple[int, list[tuple[str, float]]]:
    step = 0
    found: list[tuple[str, float]] = []
    for number, value in _fields(message):
        if number == 2 and isinstance(value, int):
            step = value - (1 << 64) if value >> 63 else value
        elif number == 5 and isinstance(value, bytes):
            for inner, part in _fields(value):
                if inner == 1 and isinstance(part, bytes):
                    found += _value(part)
    return step, found


def _value(message: bytes) -> list[tuple[str, float]]:
    """Return the tag and number of one summary value; nothing for text, pictures, histograms."""
    tag, number = "", None
    for field, value in _fields(message):
        if field == 1 and isinstance(value, bytes):
            tag = value.decode()
        elif field == 2 and isinstance(value, float):
            number = value
        elif field == 8 and isinstance(value, bytes):
            number = _tensor_scalar(value)
    return [(tag, number)] if number is not None else []


def _tensor_scalar(message: bytes) -> float | None:
    """Return the number of a tensor of one float or double (tensor.proto); None for any other."""
    kind, number, has_shape = 0, None, False
    for field, value in _fields(message):
        if field == 1 and isinstance(value, int):
            kind = value
        elif field == 2 and isinstance(value, bytes):
            has_shape = bool(value)
        elif field == 4 and isinstance(value, bytes):  # tensor_content
            size = {_FLOAT: ("<f", 4), _DOUBLE: ("<d", 8)}.get(kind)
            if size and len(value) == size[1]:
                number = struct.unpack(size[0], value)[0]
        elif field in (5, 6):  # float_val, double_val, packed or not
            if isinstance(value, float):
                number = value
            elif isinstance(value, bytes) and len(value) == (4 if field == 5 else 8):
                number = struct.unpack("<f" if field == 5 else "<d", value)[0]
    return None if has_shape or kind not in (_FLOAT, _DOUBLE) else number


def _fields(message: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Yield (field number, value) of a protobuf message; a float of 4 bytes, a double of 8."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        kind = tag & 7
        if kind == 0:
            value, place = _varint(message, place)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, place = _varint(message, place)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError("a field of a kind that events do not have")
        part = message[place : place + size]
        if len(part) < size:
            raise ValueError("a field beyond the end")
        place += size
        yield tag >> 3, part if kind == 2 else _float(part)


def _float(part: bytes) -> float:
    value: float = struct.unpack("<d" if len(part) == 8 else "<f", part)[0]
    return value if math.isfinite(value) else math.nan


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
