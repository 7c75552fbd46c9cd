"""Damaged files: seeded changes of good ones, from single bits to headers that still parse but say something else."""

import copy
import io
import json
import random
import re
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

NUMBERS = [b"0", b"-1", b"1", b"65536", b"-9223372036854775809", b"18446744073709551615", b"1e308", b"-1e308", b"1e400"]
NUMBERS += [b"nan", b"-inf", b"0.5", b"9" * 400, b"9" * 5000, b"x", b"true", b"1_0", b"\xd9\xa3", b""]
VALUES: list[Any] = [None, True, False, 0, -1, 3, 2**31, 2**63, 2**70, 1e308, float("nan"), float("inf"), "", "x", "0"]
VALUES += ["\0", "\ud800", "../x", [], [1], [[1]], {}, {"a": 1}, [None, "x"], "nan"]
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2}
BYTES |= {"U8": 1, "BOOL": 1, "C64": 8, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}
KINDS = list(BYTES)

Mutation = Callable[[bytes, random.Random], bytes]


def mutants(data: bytes, count: int, seed: int, *mutations: Mutation) -> Iterator[bytes]:
    """So many damaged copies, each by one to three of the mutations."""
    draw = random.Random(seed)
    for _ in range(count):
        mutant = data
        chosen = [draw.choice(mutations) for _ in range(draw.choice((1, 1, 1, 2, 3)))]
        # Bytes last: the HDF5 library crashes when it writes to a damaged file.
        for mutation in sorted(chosen, key=lambda each: each is change_bytes):
            mutant = mutation(mutant, draw)
        yield mutant


def change_bytes(data: bytes, draw: random.Random) -> bytes:
    """Bits flipped, an end cut off, bytes put in, taken out or repeated."""
    at = draw.randrange(len(data) + 1)
    kind = draw.randrange(5)
    if kind == 0 and data:
        changed = bytearray(data)
        for _ in range(draw.choice((1, 1, 4, 32))):
            changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        return bytes(changed)
    if kind == 1:
        return data[:at]
    if kind == 2:
        return data[:at] + draw.randbytes(draw.choice((1, 2, 8, 100))) + data[at:]
    if kind == 3:
        return data[:at] + data[at + draw.choice((1, 2, 8, 100)) :]
    return data[:at] + draw.choice((b"\0", b"\xff")) * 8 + data[at + 8 :]


def change_lines(data: bytes, draw: random.Random) -> bytes:
    """Lines left out, repeated, swapped, cut in two or joined."""
    lines = data.split(b"\n")
    at, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    kind = draw.randrange(6)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(other, lines[at])
    elif kind == 2:
        lines[at], lines[other] = lines[other], lines[at]
    elif kind == 3:
        words = lines[at].split(b" ")
        lines[at : at + 1] = [b" ".join(words[: len(words) // 2]), b" ".join(words[len(words) // 2 :])]
    elif kind == 4:
        lines[at : at + 2] = [b" ".join(lines[at : at + 2])]
    else:
        lines.insert(at, draw.choice((b"", b" ", b"#", b"\r", b"\xef\xbb\xbf", b"\xff", "ü 写".encode(), b"[x]")))
    return b"\n".join(lines)


def change_words(data: bytes, draw: random.Random) -> bytes:
    """Numbers become others or none at all; words change places."""
    words = re.split(rb"([\s,=\[\]]+)", data)
    numbers = [n for n, word in enumerate(words) if n % 2 == 0 and re.match(rb"[-+.\d]", word)] or [0]
    at = draw.choice(numbers)
    if draw.random() < 0.7:
        words[at] = draw.choice(NUMBERS)
    else:
        other = draw.randrange(0, len(words), 2)
        words[at], words[other] = words[other], words[at]
    return b"".join(words)


def change_floats(data: bytes, draw: random.Random) -> bytes:
    """Eight bytes become a number that is hard to bear."""
    at = draw.randrange(max(1, len(data) - 8))
    values = (float("nan"), float("inf"), -1e308, 0.0, 1e308, -1.0)
    whole = (-1, 2**63 - 1, -(2**63), 2**40, 0)
    new = struct.pack("<d", draw.choice(values)) if draw.random() < 0.5 else struct.pack("<q", draw.choice(whole))
    return data[:at] + new + data[at + 8 :]


def change_value(value: Any, draw: random.Random) -> Any:
    """Something in a nest of lists and dictionaries becomes something else; the rest stays."""
    value = copy.deepcopy(value)
    places = [(value, key) for key in _keys(value)]
    for inner, key in places:
        places += [(inner[key], one) for one in _keys(inner[key])]
    if not places:
        return draw.choice(VALUES)
    inner, key = draw.choice(places)
    kind = draw.randrange(6)
    if kind == 0:
        del inner[key]
    elif kind == 1:
        same = [(other, one) for other, one in places if one == key and other is not inner] or places
        other, one = draw.choice(same)
        inner[key], other[one] = copy.deepcopy(other[one]), copy.deepcopy(inner[key])
    elif kind == 2:
        inner[key] = draw.choice(([inner[key]], {"x": inner[key]}, str(inner[key]), _deep(inner[key])))
    elif kind == 3 and isinstance(inner[key], int | float):
        inner[key] = draw.choice((-inner[key], inner[key] + 1, inner[key] * 2**40, float(inner[key]), str(inner[key])))
    elif kind == 4 and isinstance(inner, dict):
        inner["more"] = inner[key]
    else:
        inner[key] = draw.choice(VALUES)
    return value


def _deep(value: Any) -> Any:
    for _ in range(200):
        value = [value]
    return value


def _keys(value: Any) -> list[Any]:
    return list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []


def change_json(data: bytes, draw: random.Random) -> bytes:
    try:
        value = json.loads(data)
    except ValueError:
        return change_bytes(data, draw)
    return json.dumps(change_value(value, draw)).encode()


def change_safetensors(data: bytes, draw: random.Random) -> bytes:
    """A header that parses but says something else of the tensors, their sizes or the file; or other numbers."""
    try:
        length = struct.unpack("<Q", data[:8])[0]
        header, rest = json.loads(data[8 : 8 + length]), data[8 + length :]
        names = [name for name in header if name != "__metadata__"]
        name = draw.choice(names)
        start, end = header[name]["data_offsets"]
        kind = draw.randrange(7)
        if kind == 0:
            header = change_value(header, draw)
        elif kind == 1:
            notes = header["__metadata__"]
            key = draw.choice(list(notes))
            notes[key] = json.dumps(change_value(json.loads(notes[key]), draw))
        elif kind == 2:
            _other_type(header[name], draw)
        elif kind == 3:
            _other_shape(header[name], draw)
        elif kind == 4:
            other = draw.choice(names)
            header[name], header[other] = header[other], header[name]
        elif kind == 5:
            # A tensor that is gone: the others close ranks.
            del header[name]
            for other in names:
                if other != name and header[other]["data_offsets"][0] >= end:
                    header[other]["data_offsets"] = [offset - (end - start) for offset in header[other]["data_offsets"]]
            rest = rest[:start] + rest[end:]
        else:
            rest = rest[:start] + _other_numbers(rest[start:end], header[name]["dtype"], draw) + rest[end:]
        text = json.dumps(header).encode()
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, struct.error, OverflowError):
        return change_bytes(data, draw)
    return struct.pack("<Q", len(text)) + text + rest


def change_hdf5(data: bytes, draw: random.Random) -> bytes:
    """A file whose datasets are gone, groups, texts, of any size, or of other numbers."""
    import h5py

    memory = io.BytesIO(data)
    try:
        with h5py.File(memory, "r+") as file:
            names: list[str] = []
            file.visit(names.append)
            name = draw.choice(names)
            small = isinstance(file[name], h5py.Dataset) and file[name].size is not None and file[name].size < 10_000
            values = file[name][()] if small else np.zeros(3)
            del file[name]
            kind = draw.randrange(9)
            if kind == 0:
                file.create_group(name)
            elif kind == 1:
                file[name] = draw.choice(("text", ["a", "b"], [b"1", b"2"], h5py.Empty("f4"), 3, True))
            elif kind == 2:
                file.create_dataset(name, draw.choice(((2**40,), (2**20, 2**20), (0,), (1, 0, 4))), "f4", chunks=True)
            elif kind == 3:
                file[name] = h5py.SoftLink(draw.choice(("/nowhere", "/", "/" + name)))
            elif kind == 4:
                file[name] = np.zeros(3, [("a", "f4"), ("b", "i2")])
            elif kind == 5:
                file[name] = np.append(values, values)
            elif kind < 8:
                values = np.array(values, np.float64).ravel()
                if len(values):
                    values[draw.randrange(len(values))] = draw.choice((np.nan, np.inf, -1, 0, 1e308))
                file[name] = values
        return memory.getvalue()
    except (OSError, RuntimeError, LookupError, ValueError, TypeError, OverflowError, MemoryError):
        return change_bytes(data, draw)


def _other_type(tensor: dict[str, Any], draw: random.Random) -> None:
    """Another type of as many bytes, or as many bytes of another type."""
    was, now = BYTES[tensor["dtype"]], draw.choice(KINDS)
    tensor["dtype"] = now
    if was != BYTES[now] and tensor["shape"]:
        tensor["shape"][0] = tensor["shape"][0] * was // BYTES[now]


def _other_shape(tensor: dict[str, Any], draw: random.Random) -> None:
    """As many numbers in another shape."""
    shape, count = tensor["shape"], 1
    for side in shape:
        count *= side
    tensor["shape"] = draw.choice(([count], [1, *shape], [*shape, 1], shape[::-1], [count, 1, 1], [1, count]))


def _other_numbers(data: bytes, kind: str, draw: random.Random) -> bytes:
    layout = {"F64": "d", "F32": "f", "F16": "e", "I64": "q", "I32": "i", "I16": "h", "U8": "B", "BOOL": "B"}[kind]
    size = struct.calcsize("<" + layout)
    at = size * draw.randrange(max(1, len(data) // size))
    if layout in "dfe":
        value: float = draw.choice((float("nan"), float("inf"), 0.0, -1.0, -6e4, 6e4))
    else:
        bits = 8 * size
        below = (-1, -3, -(2 ** (bits - 1))) if layout in "qih" else ()
        value = draw.choice((0, 1, 2, 3, 2 ** (bits - 1) - 1, *below))
    return data[:at] + struct.pack("<" + layout, value) + data[at + size :] if data else data
