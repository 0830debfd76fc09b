"""The state codec: named arrays as one safetensors blob, with a checksum and a format version.

A blob opens in any safetensors reader. Names of a trial's state (``docs/replay.md``): ``model/0`` … (the
model's variables by position), ``optimizer/0`` …, ``metric/0`` …. No pickle, no Python objects, no names of
Keras' making.

Layout: u64 little-endian length of the header, a JSON header that is padded with blanks to 8 bytes, tensor
bytes.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from cerebro_udf.errors import StateMismatch

FORMAT = 1
MAXIMUM_HEADER_BYTES = 100_000_000  # the limit of the safetensors format itself

_TO_CODE = {
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "bool": "BOOL",
}
_FROM_CODE = {code: np.dtype(name) for name, code in _TO_CODE.items()}
_UNSET = b"crc32:00000000"


def _checksum(header: bytes, of_arrays: int) -> bytes:
    """CRC-32 of the tensor bytes and then of the header, in which it stands as zero."""
    return b"crc32:%08x" % zlib.crc32(header, of_arrays)


def pack(
    arrays: Mapping[str, np.ndarray], metadata: Optional[Mapping[str, str]] = None, pulse: Callable[[], None] = lambda: None
) -> bytes:
    """Write arrays into a blob.

    Args:
        arrays: Any shapes, of numeric or boolean dtype; bfloat16 too. Order is kept.
        metadata: Strings to carry along; the keys ``format``, ``checksum`` and ``bfloat16`` are taken.
        pulse: Called after every array; may raise.

    Returns:
        The blob. Equal arrays and metadata give equal bytes.
    """
    header: Dict[str, dict] = {"__metadata__": {}}
    chunks: List[memoryview] = []
    bfloat16, offset, checksum = [], 0, 0
    for name, array in arrays.items():
        array = np.asarray(array)
        shape = list(array.shape)
        if array.dtype.name == "bfloat16":  # numpy has no name of its own for it
            array = np.ascontiguousarray(array).view(np.uint16)
            bfloat16.append(name)
        array = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        chunk = memoryview(array.reshape(-1).view(np.uint8))
        header[name] = {
            "dtype": _TO_CODE[array.dtype.name],
            "shape": shape,
            "data_offsets": [offset, offset + chunk.nbytes],
        }
        chunks.append(chunk)
        offset += chunk.nbytes
        checksum = zlib.crc32(chunk, checksum)
        pulse()
    header["__metadata__"] = {  # the checksum comes before whatever could look like it
        "format": str(FORMAT),
        "checksum": _UNSET.decode(),
        "bfloat16": json.dumps(bfloat16),
        **(metadata or {}),
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    text = text.replace(_UNSET, _checksum(text, checksum), 1)
    return b"".join([struct.pack("<Q", len(text)), text, *chunks])


def unpack(blob: bytes) -> Tuple[Dict[str, np.ndarray], Dict[str, str]]:
    """Read a blob.

    Returns:
        (arrays, metadata). The arrays are read-only views of the blob; bfloat16 comes back as bfloat16 where
        ``ml_dtypes`` is installed (TensorFlow brings it).

    Raises:
        StateMismatch: the blob is damaged, or of a newer format.
    """
    header, metadata, body = _checked([blob])
    try:
        bfloat16 = set(json.loads(metadata["bfloat16"]))
        arrays = {name: _array(body, entry, name in bfloat16) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise _damaged(str(error)) from None
    if sum(array.nbytes for array in arrays.values()) > len(body):
        raise _damaged("its arrays lie upon each other")
    return arrays, metadata


def verify(chunks: Sequence[bytes]) -> None:
    """Compare a blob, in the chunks that it is sent in, with its checksum, without reading its arrays.

    Raises:
        StateMismatch: the blob is damaged, or of a newer format.
    """
    _checked(chunks)


def _checked(chunks: Sequence[bytes]) -> Tuple[Dict[str, dict], Dict[str, str], memoryview]:
    """A blob's entries, its metadata, and what of its arrays is in the first chunk, which holds the whole header."""
    try:
        (length,) = struct.unpack_from("<Q", chunks[0])
        if length > min(len(chunks[0]) - 8, MAXIMUM_HEADER_BYTES):
            raise ValueError("the header is longer than the blob")
        text = bytes(memoryview(chunks[0])[8 : 8 + length])
        header = json.loads(text)
        metadata = header.pop("__metadata__")
        version, checksum = int(metadata["format"]), metadata["checksum"].encode()
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise _damaged(str(error)) from None
    if version > FORMAT:
        raise StateMismatch(
            "the state was written by a newer version of cerebro",
            detail="Its format is %d; this version reads up to %d." % (version, FORMAT),
            hint="Install the same version on every segment.",
        )
    body = memoryview(chunks[0])[8 + length :]
    of_arrays = zlib.crc32(body)
    for chunk in chunks[1:]:
        of_arrays = zlib.crc32(chunk, of_arrays)
    if checksum != _checksum(text.replace(checksum, _UNSET, 1), of_arrays):
        raise _damaged("the checksum differs")
    return header, metadata, body


def serving(blob: bytes) -> Dict[str, np.ndarray]:
    """Return the model's variables of a state as they serve: moving averages in the place of weights that have one.

    Which they are is in the metadata of a trial's state, under ``averages``: from a weight's name to its average's.

    Raises:
        StateMismatch: the blob is damaged.
    """
    return _serving(*unpack(blob))


def learnt(blob: bytes) -> Dict[str, np.ndarray]:
    """Return what :func:`serving` does without the states of random generators, which a model has more or fewer of as its rows are
    varied; ``model/<position>`` counts the other variables alone.

    Raises:
        StateMismatch: the blob is damaged.
    """
    arrays, metadata = unpack(blob)
    served = _serving(arrays, metadata)
    try:
        drawn = set(json.loads(metadata.get("generators", "[]")))
        kept = sorted((name for name in served if name not in drawn), key=lambda name: int(name[len("model/") :]))
    except (ValueError, TypeError, RecursionError) as error:
        raise _damaged(str(error)) from None
    return {"model/%d" % i: served[name] for i, name in enumerate(kept)}


def _serving(arrays: Dict[str, np.ndarray], metadata: Dict[str, str]) -> Dict[str, np.ndarray]:
    try:
        averages = json.loads(metadata.get("averages", "{}"))
        return {name: arrays[averages.get(name, name)] for name in arrays if name.startswith("model/")}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(str(error)) from None


def _array(body: memoryview, entry: dict, bfloat16: bool) -> np.ndarray:
    start, stop = entry["data_offsets"]
    array = np.frombuffer(body[start:stop], _FROM_CODE[entry["dtype"]]).reshape(entry["shape"])
    if bfloat16:
        import ml_dtypes

        return array.view(ml_dtypes.bfloat16)
    return array


def _damaged(reason: str) -> StateMismatch:
    return StateMismatch(
        "the state is damaged",
        detail="Reading it failed: %s." % reason,
        hint="Resume the run; it goes on from the state before.",
    )


def add(blobs: Iterable[bytes]) -> bytes:
    """Add accumulators of the same program, given in shard order; sums are made in float64.

    Raises:
        StateMismatch: a blob is damaged, or they belong to different programs.
    """
    total: Dict[str, np.ndarray] = {}
    dtypes: Dict[str, np.dtype] = {}
    metadata: Optional[Dict[str, str]] = None
    for blob in blobs:
        arrays, found = unpack(blob)
        if metadata is None:
            metadata = found
            dtypes = {name: array.dtype for name, array in arrays.items()}
            total = {name: array.astype(np.float64) for name, array in arrays.items()}
            continue
        check(arrays, {name: (array.shape, dtypes[name]) for name, array in total.items()})
        for name, array in arrays.items():
            total[name] = total[name] + array
    if metadata is None:
        raise ValueError("nothing to add")
    return pack(
        {name: array.astype(dtypes[name]) for name, array in total.items()},
        {key: value for key, value in metadata.items() if key not in ("format", "checksum", "bfloat16")},
    )


def check(arrays: Mapping[str, np.ndarray], expected: Mapping[str, Tuple[tuple, object]]) -> None:
    """Compare arrays with the expected names, shapes and dtypes.

    Args:
        expected: name -> (shape, dtype or its name).

    Raises:
        StateMismatch: names the first difference.
    """
    for name, (shape, dtype) in expected.items():
        if name not in arrays:
            raise _other_program('it has no "%s"' % name)
        array = arrays[name]
        if tuple(array.shape) != tuple(shape) or array.dtype.name != np.dtype(dtype).name:
            raise _other_program(
                '"%s" is %s %s, not %s %s'
                % (name, array.dtype.name, list(array.shape), np.dtype(dtype).name, list(shape))
            )
    for name in arrays:
        if name not in expected:
            raise _other_program('it has "%s" besides' % name)


def _other_program(difference: str) -> StateMismatch:
    return StateMismatch(
        "the state belongs to another program",
        detail="Compared with the program, %s." % difference,
        hint="Use the run's own model definition and options.",
    )
