"""Rows of any length, brought to one: steps of numbers, and tokens. Only numpy is needed here.

What is missing at the end (or, with ``"pad": "pre"``, at the beginning) of a row is filled up: with ``PAD`` among numbers, which a
``Masking`` layer in front of the model makes zeros and tells the layers behind it of; with code 0 among tokens, as Keras'
``Embedding(…, mask_zero=True)`` wants it.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from cerebro_udf.siphash import siphash

# 2 ** -126, which no arithmetic on data gives, and JSON keeps: PostgreSQL writes large floating-point numbers as integers.
PAD = float(np.finfo(np.float32).tiny)
PADDING, UNSEEN = "", None  # what stands for them among tokens; their codes are 0 and 1
RESERVED = 2
UNKNOWN = "[UNK]"  # how Keras writes the token that stands for those not seen: itself never in a vocabulary

# As Keras' TextVectorization has them: only ASCII letters are made lower, only ASCII blanks split.
_PUNCTUATION = re.compile(r'[!"#$%&()\*\+,-\./:;<=>?@\[\\\]^_`{|}~\']')
_BLANKS = re.compile("[ \t\n\v\f\r]+")
_LOWER = {ord(letter): letter.lower() for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
STANDARDS = ("lower_and_strip_punctuation", "lower", "strip_punctuation", "none")
SPLITS = ("whitespace", "character")


class Numbered(dict):
    """Gives every new key the next number."""

    def __missing__(self, key):
        self[key] = number = len(self)
        return number


def places(count: int, settings: dict) -> Tuple[slice, slice]:
    """Which steps of a row of so many are kept, and where they stand."""
    length = settings["length"]
    kept = min(count, length)
    source = slice(count - kept, count) if settings["truncate"] == "pre" else slice(0, kept)
    return source, slice(length - kept, length) if settings["pad"] == "pre" else slice(0, kept)


def steps(rows: Sequence[Optional[np.ndarray]], width: int, settings: dict) -> np.ndarray:
    """Bring rows of numbers to one length.

    Args:
        rows: Of any numeric dtype, (steps,) or (steps, width); None counts as one of no steps.
        settings: ``length``, ``pad`` and ``truncate`` (``pre`` or ``post``).

    Returns:
        float64 (rows, length, width), ``PAD`` where a row has no step. A row's own number ``PAD`` counts as 0.
    """
    out = np.full((len(rows), settings["length"], width), PAD)
    for target, row in zip(out, rows):
        if row is not None:
            source, place = places(len(row), settings)
            kept = row[source].reshape(-1, width).astype(np.float64)
            kept[kept == PAD] = 0.0
            target[place] = kept
    return out


def split(text: str, settings: dict) -> List[str]:
    """Cut a text into tokens, as Keras' TextVectorization does under the same ``standardize`` and ``split``; some may be empty."""
    standardize = settings.get("standardize", STANDARDS[0])
    if standardize.startswith("lower"):
        text = text.translate(_LOWER)
    if standardize.endswith("strip_punctuation"):
        text = _PUNCTUATION.sub("", text)
    return list(text) if settings.get("split") == "character" else _BLANKS.split(text)


def beginning() -> Numbered:
    """The codes of tokens before the first row is seen."""
    return Numbered({PADDING: 0, UNSEEN: 1})


def hashed(rows: Sequence[Optional[Sequence[str]]], settings: dict) -> np.ndarray:
    """As :func:`coded`, a token's code being its hash: 2 + SipHash-2-4 of its UTF-8 bytes modulo ``size`` - 2, ``size`` of the settings."""
    tokens = list({token for row in rows for token in row or ()})
    codes = RESERVED + siphash([token.encode() for token in tokens]) % np.uint64(settings["size"] - RESERVED)
    return coded(rows, {**dict(zip(tokens, codes.tolist())), **beginning()}, settings)


def coded(rows: Sequence[Optional[Sequence[str]]], codes: Dict[Optional[str], int], settings: dict) -> np.ndarray:
    """Bring rows of tokens to one length, as codes.

    Args:
        rows: Tokens; empty texts count as none. A row without a token is one that was never seen.
        codes: Code by token; see :func:`beginning`.
        settings: As for :func:`steps`.

    Returns:
        int32 (rows, length).
    """
    out = np.zeros((len(rows), settings["length"]), np.int32)
    for target, row in zip(out, rows):
        kept: List[Any] = [token for token in row or () if token != PADDING] or [UNSEEN]
        source, place = places(len(kept), settings)
        target[place] = [codes[token] for token in kept[source]]
    return out
