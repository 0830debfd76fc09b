"""The parts of a ``.keras`` archive, taken out of a zip file that may come from anywhere."""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from dataclasses import dataclass
from typing import Callable, Optional

from cerebro_udf.errors import InvalidArgument, NotSupported, OutOfMemory
from cerebro_udf.segment import memory

CONFIG, WEIGHTS, METADATA, ABOUT = "config.json", "model.weights.h5", "metadata.json", "cerebro.json"
# The largest that a part may say it is; what it unpacks to is never more.
LONGEST = {CONFIG: 2**24, ABOUT: 2**24, WEIGHTS: 2**31, METADATA: 2**20}
BLOCK_BYTES = 2**22
# An archive of Keras has three parts. Each entry of a zip file's directory takes ten times its size once it is read.
ENTRY, MOST_ENTRIES = b"PK\x01\x02", 100
# The others of Python's unpack whatever a block of them holds, and a block may hold gigabytes.
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
HINT = 'Write it with model.save("model.keras") of Keras 3; ONNX and SavedModel are not read.'
HINT_KERAS2 = (
    "Give create_model what to_json() of Keras 2 writes, without the weights. Or make that model in Keras 3,"
    " hand the weights over by get_weights() and set_weights(), and save it there."
)
_KERAS2 = re.compile(rb'"keras_version"\s*:\s*"2\.')


@dataclass
class Archive:
    """What is read of it: the model's config, its weights file, and what ``export_model`` added, if it wrote it."""

    config: str
    weights: bytes
    about: Optional[str]


def read(data: bytes, pulse: Callable[[], None]) -> Archive:
    """Take an archive apart, in memory.

    Raises:
        InvalidArgument: it is no such archive, or damaged, or packed in another way than Keras packs.
        NotSupported: it holds files that Keras would read beside the model (vocabularies of adapted layers).
        OutOfMemory: its parts do not fit the memory that is left.
    """
    if data.count(ENTRY) > MOST_ENTRIES:
        raise InvalidArgument("the archive holds what Keras does not write", "It has more than %d parts." % MOST_ENTRIES, HINT)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as members:
            _check(members)
            if METADATA in members.namelist() and _KERAS2.search(_member(members, METADATA, pulse)):
                raise InvalidArgument("the archive was saved by Keras 2", "So says its %s." % METADATA, HINT_KERAS2)
            return Archive(
                _member(members, CONFIG, pulse).decode(), _member(members, WEIGHTS, pulse),
                _member(members, ABOUT, pulse).decode() if ABOUT in members.namelist() else None,
            )  # fmt: skip
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, OSError, RuntimeError, NotImplementedError) as error:
        raise InvalidArgument("argument archive is not a .keras archive", "Reading it failed: %s." % error, HINT) from None


def _check(members: zipfile.ZipFile) -> None:
    infos = members.infolist()
    names = [info.filename for info in infos]
    for name in names:
        if name.startswith("assets/"):
            raise NotSupported(
                "the archive holds files beside its weights",
                'One is "%s".' % name[:100],
                "Give vocabularies to their layers as lists, and save the model again.",
            )
        if name not in LONGEST or names.count(name) > 1:
            raise InvalidArgument("the archive holds what Keras does not write", 'One is "%s".' % name[:100], HINT)
    for name in (CONFIG, WEIGHTS):
        if name not in names:
            raise InvalidArgument("the archive lacks %s" % name, "It holds %s." % (", ".join(names) or "nothing"), HINT)
    for info in infos:
        if info.compress_type not in METHODS or info.flag_bits & 1:
            raise InvalidArgument("the archive is packed as Keras does not pack", 'One such part is "%s".' % info.filename, HINT)
        if info.file_size > LONGEST[info.filename]:
            raise NotSupported(
                "a part of the archive is too large", '"%s" takes %.2f GB unpacked.' % (info.filename, info.file_size / 1e9),
                "Import a smaller model.",
            )  # fmt: skip
    size, available = sum(info.file_size for info in infos), memory.available()
    if 4 * size > available:  # unpacked, as arrays, in the model, and packed again
        raise OutOfMemory(
            "the archive does not fit the memory that is left",
            "It takes %.2f GB unpacked, several times over; %.2f GB are available." % (size / 1e9, available / 1e9),
            "Import a smaller model.",
        )


def _member(members: zipfile.ZipFile, name: str, pulse: Callable[[], None]) -> bytes:
    blocks = []
    with members.open(name) as stream:
        while True:
            pulse()
            block = stream.read(BLOCK_BYTES)
            if not block:
                return b"".join(blocks)
            blocks.append(block)
