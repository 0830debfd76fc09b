"""What a ``bytea`` holds: the bytes of an array, or an image file."""

from __future__ import annotations

import hashlib
import struct
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple

import numpy as np

MOST_PIXELS = 2**26  # of an image file: a few bytes may claim to be any number


class Unreadable(ValueError):
    """A value is not what its column's encoder says, and why."""


class Broken(NamedTuple):
    """Values that cannot be read.

    Attributes:
        rows: How many.
        reason: What is wrong with the first one.
        where: A condition that finds it, as SQL.
    """

    rows: int
    reason: str
    where: str


def read_all(blobs: Sequence[Optional[bytes]], kind: str, settings: dict, sql: str) -> Tuple[np.ndarray, np.ndarray, Optional[Broken]]:
    """Read one value a row.

    Args:
        blobs: None for NULL.
        kind, settings: Of the feature: ``tensor`` or ``image``.
        sql: What gives them.

    Returns:
        (values (rows, *shape), missing bool (rows,): NULL or unreadable, what is unreadable or None).
    """
    empty = np.zeros(shape_of(kind, settings), np.uint8 if kind == "image" else _dtype(settings))
    values, missing = np.repeat(empty[None], len(blobs), axis=0), np.zeros(len(blobs), bool)
    broken: Optional[Broken] = None
    for i, blob in enumerate(blobs):
        missing[i] = blob is None
        if blob is None:
            continue
        try:
            values[i] = READERS[kind](blob, settings)
        except Unreadable as error:
            missing[i] = True
            where = "md5(%s) = '%s'" % (sql, hashlib.md5(blob).hexdigest())
            broken = broken._replace(rows=broken.rows + 1) if broken else Broken(1, str(error), where)
    return values, missing, broken


def shape_of(kind: str, settings: dict) -> Tuple[int, ...]:
    """The shape of a row."""
    return tuple(settings["shape"]) if kind == "tensor" else (settings["height"], settings["width"], settings["channels"])


def _dtype(settings: dict) -> np.dtype:
    return np.dtype("float32" if settings["dtype"] == "float16" else settings["dtype"])


def _tensor(blob: bytes, settings: dict) -> np.ndarray:
    """Little-endian numbers, in C order."""
    stored, shape = np.dtype(settings["dtype"]).newbyteorder("<"), settings["shape"]
    wanted = stored.itemsize * int(np.prod(shape, dtype=int))
    if len(blob) != wanted:
        raise Unreadable("there are %d bytes, %s of shape %s takes %d" % (len(blob), settings["dtype"], list(shape), wanted))
    return np.frombuffer(blob, stored).astype(_dtype(settings)).reshape(shape)


def _image(blob: bytes, settings: dict) -> np.ndarray:
    """A PNG or JPEG file as uint8 (height, width, channels); decoded by TensorFlow, which has to be started."""
    import tensorflow as tf

    try:
        height, width = _size(tf, blob)
        if height * width > MOST_PIXELS:
            raise Unreadable("the image has %d x %d pixels" % (width, height))
        decode = tf.io.decode_png if blob[:4] == _PNG else tf.io.decode_jpeg
        pixels = decode(blob, channels=settings["channels"])
    except (tf.errors.InvalidArgumentError, struct.error):
        raise Unreadable("the image is damaged") from None
    wanted = settings["height"], settings["width"]
    if (height, width) == wanted:
        return pixels.numpy()
    if settings.get("resize") is None:
        raise Unreadable("the image has %d x %d pixels, not %d x %d" % (width, height, *wanted[::-1]))
    if settings.get("crop"):  # as Keras' Resizing layer does it with crop_to_aspect_ratio
        high = max(1, min(height, int(width * wanted[0] / wanted[1])))
        wide = max(1, min(width, int(height * wanted[1] / wanted[0])))
        pixels = tf.image.crop_to_bounding_box(pixels, (height - high) // 2, (width - wide) // 2, high, wide)
    resized = tf.image.resize(pixels, wanted, settings["resize"]).numpy()
    return np.clip(np.round(resized), 0, 255).astype(np.uint8)


_PNG = b"\x89PNG"


def _size(tf: Any, blob: bytes) -> Tuple[int, int]:
    if blob[:4] == _PNG:
        width, height = struct.unpack_from(">II", blob, 16)
        return height, width
    if blob[:2] == b"\xff\xd8":
        height, width, _ = tf.image.extract_jpeg_shape(blob).numpy().tolist()
        return height, width
    raise Unreadable("it is neither a PNG nor a JPEG file")


READERS: Dict[str, Callable[[bytes, dict], np.ndarray]] = {"tensor": _tensor, "image": _image}
