"""Reads the arrays of a weights file that Keras wrote, in plain Python: such a file comes from anywhere.

The HDF5 library is no parser for files of strangers: it follows links to other files and has had memory errors. What
Keras writes needs little of the format: groups with a symbol table, and arrays of numbers stored in one piece. All else
is refused. Every structure is read at most once, and so many at most, so a file can neither send the reader in circles
nor have it remember more than there is.

Source: HDF5 File Format Specification 3.0, sections II.A (superblock 0), III.A.1 (B-trees 1), III.B-D (symbol tables,
local heaps), IV.A.1.a (object headers 1).
"""

from __future__ import annotations

import math
import struct
from typing import Any, Callable, Dict, Iterator, List, Tuple

import numpy as np

SIGNATURE = b"\x89HDF\r\n\x1a\n"
ROOT_ENTRY = 56  # of a superblock of version 0 or, four bytes later, 1
UNDEFINED = 2**64 - 1
MOST_PARTS = 2**20  # headers, groups, names: a hundred times those of a model of a thousand layers
PATH_BYTES = 1000  # the longest name of an array

_DATASPACE, _DATATYPE, _EXTERNAL, _LAYOUT, _FILTERS, _CONTINUATION, _SYMBOL_TABLE = 1, 3, 7, 8, 11, 16, 17
_LINKS = (2, 6)  # groups of a newer kind
_HARD_LINKS = (0, 1)  # cache types of a symbol; 2 is a link to a name
_KEPT = (_DATASPACE, _DATATYPE, _EXTERNAL, _LAYOUT, _FILTERS, _SYMBOL_TABLE)
_EXPONENT_BITS = {2: 5, 4: 8, 8: 11}


class Unreadable(Exception):
    """The file is damaged, or holds what Keras' weights never hold; the text says what."""


def read(data: bytes, pulse: Callable[[], None] = lambda: None) -> Dict[str, np.ndarray]:
    """Return every array by its path, ``layers/dense/vars/0``; views of the data, read-only.

    Raises:
        Unreadable.
    """
    try:
        return _File(data, pulse).arrays()
    except (struct.error, IndexError, ValueError, OverflowError, UnicodeDecodeError) as error:
        raise Unreadable("it is damaged (%s)" % error) from None


class _File:
    def __init__(self, data: bytes, pulse: Callable[[], None]):
        self._data, self._pulse = data, pulse
        self._visited: set = set()
        self._parts = 0

    def arrays(self) -> Dict[str, np.ndarray]:
        if self._data[:8] != SIGNATURE or self._data[8] > 1:
            raise Unreadable("it is no HDF5 file of the kind that Keras writes")
        if self._data[13:15] != b"\x08\x08":
            raise Unreadable("its addresses are not of 8 bytes")
        base = ROOT_ENTRY + 4 * self._data[8]
        found: Dict[str, np.ndarray] = {}
        groups = [("", self._number(base + 8))]
        while groups:
            prefix, address = groups.pop()
            messages = self._messages(address)
            if _SYMBOL_TABLE not in messages:
                found[prefix] = self._array(prefix, messages)
                continue
            tree, heap = struct.unpack_from("<QQ", messages[_SYMBOL_TABLE])
            for name, child in self._symbols(tree, heap):
                path = "%s/%s" % (prefix, name) if prefix else name
                if len(path) > PATH_BYTES:
                    raise Unreadable("it has a longer name than Keras gives")
                groups.append((path, child))
        if sum(array.nbytes for array in found.values()) > len(self._data):
            raise Unreadable("its arrays lie upon each other")
        return found

    def _count(self, parts: int) -> None:
        self._parts += parts
        if self._parts > MOST_PARTS:
            raise Unreadable("it has more parts than a model")

    def _at(self, address: int, signature: bytes = b"") -> int:
        """Check that a structure begins here, and that it was not read before."""
        self._pulse()
        self._count(1)
        if address in self._visited:
            raise Unreadable("one of its parts belongs to two others")
        self._visited.add(address)
        if self._data[address : address + len(signature)] != signature:
            raise Unreadable("a part of it is not where it should be")
        return address

    def _number(self, address: int) -> int:
        return struct.unpack_from("<Q", self._data, address)[0]

    def _messages(self, address: int) -> Dict[int, bytes]:
        """Return those messages of an object header that matter, by type; of repeated ones, the last."""
        version, count, size = struct.unpack_from("<BxHxxxxI", self._data, self._at(address))
        if version != 1:
            raise Unreadable("it has object headers of version %d" % version)
        blocks: List[Tuple[int, int]] = [(address + 16, size)]
        messages: Dict[int, bytes] = {}
        while blocks:
            position, length = blocks.pop(0)
            end = position + length
            while position + 8 <= end and count > 0:
                self._count(1)
                kind, size, flags = struct.unpack_from("<HHB", self._data, position)
                body = self._data[position + 8 : position + 8 + size]
                if len(body) != size:
                    raise Unreadable("it ends in the middle of a header")
                if kind == _CONTINUATION:
                    start, length = struct.unpack("<QQ", body)
                    blocks.append((self._at(start), length))
                elif kind in _LINKS or (kind in (_DATASPACE, _DATATYPE, _LAYOUT) and flags & 2):
                    raise Unreadable("it has groups or types of a kind that Keras does not write")
                elif kind in _KEPT:
                    messages[kind] = body
                position += 8 + size
                count -= 1
        return messages

    def _symbols(self, tree: int, heap: int) -> Iterator[Tuple[str, int]]:
        names = self._number(self._at(heap, b"HEAP") + 24)
        nodes = [tree]
        while nodes:
            address = nodes.pop()
            if self._data[address : address + 4] == b"TREE":
                kind, _, used = struct.unpack_from("<BBH", self._data, self._at(address) + 4)
                if kind != 0:
                    raise Unreadable("a group of it is not indexed as a group")
                self._count(used)
                nodes += [self._number(address + 24 + 16 * i + 8) for i in range(used)]
                continue
            (count,) = struct.unpack_from("<H", self._data, self._at(address, b"SNOD") + 6)
            self._count(count)
            for i in range(count):
                name, child, cached = struct.unpack_from("<QQI", self._data, address + 8 + 40 * i)
                if cached not in _HARD_LINKS:
                    raise Unreadable("it holds a link to another place")
                end = self._data.index(b"\0", names + name, names + name + PATH_BYTES)
                yield self._data[names + name : end].decode(), child

    def _array(self, path: str, messages: Dict[int, bytes]) -> np.ndarray:
        if _EXTERNAL in messages or _FILTERS in messages or not {_DATASPACE, _DATATYPE, _LAYOUT} <= set(messages):
            raise Unreadable('"%s" is not stored in one piece within it' % path)
        shape, dtype, layout = _shape(messages[_DATASPACE]), _dtype(path, messages[_DATATYPE]), messages[_LAYOUT]
        size = math.prod(shape) * dtype.itemsize
        if layout[0] == 3 and layout[1] == 1:
            address, stored = struct.unpack_from("<QQ", layout, 2)
            address = 0 if address == UNDEFINED and size == 0 else address
            body: Any = memoryview(self._data)[address : address + size]
        elif layout[0] == 3 and layout[1] == 0:
            (stored,) = struct.unpack_from("<H", layout, 2)
            body = layout[4 : 4 + size]
        else:
            raise Unreadable('"%s" is not stored in one piece within it' % path)
        if stored < size or len(body) != size:
            raise Unreadable('"%s" is longer than what is stored of it' % path)
        return np.frombuffer(body, dtype).reshape(shape)


def _shape(body: bytes) -> Tuple[int, ...]:
    version, rank = body[0], body[1]
    if version not in (1, 2) or (version == 2 and body[3] == 2):
        raise Unreadable("it has an array without a shape")
    return struct.unpack_from("<%dQ" % rank, body, 8 if version == 1 else 4)


def _dtype(path: str, body: bytes) -> np.dtype:
    kind, flags, (size,) = body[0] & 15, body[1], struct.unpack_from("<I", body, 4)
    order = ">" if flags & 1 else "<"
    if kind == 0 and size in (1, 2, 4, 8):
        return np.dtype("%s%s%d" % (order, "i" if flags & 8 else "u", size))
    if kind == 1 and size in _EXPONENT_BITS and body[13] == _EXPONENT_BITS[size]:
        return np.dtype("%sf%d" % (order, size))
    raise Unreadable('"%s" does not hold numbers of a kind that weights have' % path)
