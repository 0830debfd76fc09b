"""PostgreSQL's binary form of arrays (``array_send``), read by strided numpy views.

Layout, big-endian: int32 number of dimensions, int32 flags, int32 element type; per dimension int32 length
and int32 lower bound; per element int32 length in bytes (-1: NULL) and the value.
"""

from __future__ import annotations

import struct
from typing import List, Optional, Sequence, Tuple

import numpy as np

from cerebro_udf.errors import RaggedArrays

# Element type -> what the query casts it to.
SENT = {
    "smallint": "int2",
    "integer": "int4",
    "bigint": "int8",
    "real": "float4",
    "double precision": "float8",
    "numeric": "float8",
    "boolean": "bool",
}
# That -> how it comes.
ELEMENTS = {"int2": ">i2", "int4": ">i4", "int8": ">i8", "float4": ">f4", "float8": ">f8", "bool": "u1"}


def parse(
    blobs: Sequence[Optional[bytes]], element: str, column: str, shape: Optional[Tuple[int, ...]]
) -> Tuple[np.ndarray, np.ndarray, Optional[Tuple[int, ...]]]:
    """Read one array per row.

    Args:
        blobs: What ``array_send`` returned; None for NULL.
        element: A value of :data:`ELEMENTS`.
        column: Its name, for the error.
        shape: The shape of earlier rows, None if there were none.

    Returns:
        (values, nulls, shape): values of native byte order (rows without NULL, *shape); nulls bool (rows,),
        true where the array or one of its elements is NULL; the shape, None while every row is NULL.

    Raises:
        RaggedArrays: a row of another shape; names both.
    """
    nulls = np.zeros(len(blobs), bool)
    values = _parse_equal(blobs, element, column, shape) if blobs and None not in blobs else None
    if values is None:
        size = np.dtype(element).itemsize
        for i, blob in enumerate(blobs):
            if blob is None:
                nulls[i] = True
                continue
            found = _shape(blob)
            shape = _same(shape, found, column)
            nulls[i] = len(blob) < _length(found, size)
        whole = [blob for blob, null in zip(blobs, nulls) if not null]
        if whole:
            values = _parse_equal(whole, element, column, shape)
        else:
            values = np.empty((0, *(shape or ())), np.dtype(element).newbyteorder("="))
            return values, nulls, shape
    return values, nulls, values.shape[1:]


def _parse_equal(blobs: Sequence[bytes], element: str, column: str, shape) -> Optional[np.ndarray]:
    """Read arrays of equal shape without NULLs; None if they aren't such."""
    dtype = np.dtype(element)
    found = _shape(blobs[0])
    length, header = _length(found, dtype.itemsize), 12 + 8 * _dimensions(blobs[0])
    if set(map(len, blobs)) != {length}:
        return None
    joined = b"".join(blobs)
    rows, words = len(blobs), header // 4
    headers = np.ndarray((rows, words), ">i4", joined, 0, (length, 4))
    shaping = [0, *range(3, words, 2)]  # neither flags nor lower bounds
    if (headers[:, shaping] != headers[0, shaping]).any():
        return None
    _same(shape, found, column)
    count = int(np.prod(found, dtype=int))
    values = np.ndarray((rows, count), dtype, joined, min(header + 4, length), (length, 4 + dtype.itemsize))
    return values.astype(dtype.newbyteorder("=")).reshape(rows, *found)


def _dimensions(blob: bytes) -> int:
    return struct.unpack_from(">i", blob)[0]


def _shape(blob: bytes) -> Tuple[int, ...]:
    dimensions = _dimensions(blob)
    return struct.unpack_from(">" + "i4x" * dimensions, blob, 12) if dimensions else (0,)


def _length(shape: Tuple[int, ...], size: int) -> int:
    """Return the bytes of an array of that shape without NULLs; the empty array has no dimensions."""
    return 12 if shape == (0,) else 12 + 8 * len(shape) + int(np.prod(shape, dtype=int)) * (4 + size)


def _same(shape, found, column: str) -> Tuple[int, ...]:
    if shape is not None and shape != found:
        raise RaggedArrays(
            'the arrays of column "%s" differ in shape' % column,
            detail="A row has shape %s, the rows before have shape %s." % (list(found), list(shape)),
            hint="All arrays of a column must have the same dimensions.",
        )
    return found


def parse_scalars(blobs: List[bytes], count: int) -> Tuple[np.ndarray, np.ndarray]:
    """Read ``array_send(ARRAY[a::float8, …])`` of ``count`` scalars per row.

    Returns:
        (values float64 (rows, count), nulls bool (rows, count)); NULLs are 0 in values.
    """
    rows, length = len(blobs), 20 + 12 * count
    if set(map(len, blobs)) == {length}:
        values = np.ndarray((rows, count), ">f8", b"".join(blobs), 24, (length, 12)).astype(np.float64)
        return values, np.zeros((rows, count), bool)
    values, nulls = np.zeros((rows, count)), np.zeros((rows, count), bool)
    whole = [i for i, blob in enumerate(blobs) if len(blob) == length]
    if whole:
        values[whole] = parse_scalars([blobs[i] for i in whole], count)[0]
    for i, blob in enumerate(blobs):
        if len(blob) == length:
            continue
        position = 20
        for j in range(count):
            nulls[i, j] = blob[position] == 0xFF  # the length is -1
            if not nulls[i, j]:
                (values[i, j],) = struct.unpack_from(">d", blob, position + 4)
                position += 8
            position += 4
    return values, nulls
