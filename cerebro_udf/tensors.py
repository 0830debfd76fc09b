"""Raw columns to tensors, as the encoders of a run say. Only numpy is needed here."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from cerebro_udf import refusals, sequences, sparse
from cerebro_udf.encoders import Place, affine, fed, indicator, is_category, label_names, model_part, places

CHUNK_ROWS = 8_192  # rows encoded at once, bounds the float64 intermediate


class Text(NamedTuple):
    """A column of texts, every distinct value kept once.

    Attributes:
        codes: int32 (rows,), or (rows, length) of tokens; index into ``values``.
        values: The distinct values, in the order of their first row; None is NULL. Of tokens the first two
            are ``sequences.PADDING`` and ``UNSEEN``.
    """

    codes: np.ndarray
    values: List[Optional[str]]


Column = Union[np.ndarray, Text, sparse.Rows, Sequence[Any]]


class Encoding:
    """An encoders object made ready to be applied many times.

    Args:
        encoders: What :func:`merge` returned.
    """

    def __init__(self, encoders: dict):
        self.encoders = encoders
        self._tensors: Dict[str, List[Place]] = {}
        for place in places(encoders):
            self._tensors.setdefault(place.tensor, []).append(place)
        self._fed = fed(model_part(encoders))
        self._index: Dict[str, Dict[Optional[str], int]] = {}
        for feature in encoders["features"]:
            if feature["kind"] == "tokens" and "vocabulary" in feature:
                index = {token: i + sequences.RESERVED for i, token in enumerate(feature["vocabulary"])}
                self._index[feature["name"]] = {sequences.PADDING: 0, **index}
            elif "vocabulary" in feature:
                index = {value: i + 1 for i, value in enumerate(feature["vocabulary"])}
                if "value" in feature.get("nulls", ()):
                    index[None] = index.get(feature["nulls"]["value"], 0)
                self._index[feature["name"]] = index
        self._affine = {feature["name"]: affine(feature) for feature in encoders["features"] if not is_category(feature)}
        self._classes = [{value: i for i, value in enumerate(label.get("classes", ()))} for label in encoders["labels"]]

    def encode(
        self,
        columns: Dict[str, Column],
        labels: Sequence[Column] = (),
        pulse: Callable[[], None] = lambda: None,
    ) -> Dict[str, np.ndarray]:
        """Encode raw columns of n rows.

        Args:
            columns: By feature name: numbers (n,), arrays (n, *shape), texts as :class:`Text` or strings, tokens as :class:`Text` or
                lists, hashed ones as lists or codes int32 (n, length), sparse rows as :class:`sparse.Rows` or pairs of lists; NULL is
                NaN or None.
            labels: Those columns, of each output or none.
            pulse: Called again and again; may raise.

        Returns:
            What ``encoders.fed`` says, each (n, *shape), or ``sparse.Rows`` of n rows: ``numbers`` and ``codes`` of an input, where its
            features have such; those of ``encoders.label_names``: int32 (n,) of class indexes or float32 (n, *shape). Arrays are new, in
            C order.

        Raises:
            BadData: a label value that the run has never seen.
        """
        result = {}
        for tensor, found in self._tensors.items():
            if is_category(found[0].feature):
                codes = [self._encode_category(place.feature, columns[place.feature["name"]], pulse) for place in found]
                result[tensor] = np.stack(codes, axis=1)
            elif found[0].feature["kind"] == "sparse":
                column = columns[found[0].feature["name"]]
                result[tensor] = column if isinstance(column, sparse.Rows) else sparse.of_lists(column)
            elif found[0].feature["kind"] == "tokens":
                result[tensor] = self._encode_tokens(found[0].feature, columns[found[0].feature["name"]], pulse)
            else:
                result[tensor] = self._encode_numbers(found, *self._fed[tensor], columns, pulse)
        for column, name, label, classes in zip(labels, label_names(self.encoders), self.encoders["labels"], self._classes):
            result[name] = self._encode_label(label, classes, column, pulse)
        return result

    def _encode_tokens(self, feature: dict, column: Column, pulse: Callable[[], None]) -> np.ndarray:
        if feature["tokens"].get("hash"):
            codes = column if isinstance(column, np.ndarray) else sequences.hashed(column, feature["tokens"])
            return _chunked(codes, lambda values: values, np.int32, pulse)
        if not isinstance(column, Text):
            known = sequences.beginning()
            column = Text(sequences.coded(column, known, feature["tokens"]), list(known))
        index = self._index[feature["name"]]
        table = np.array([index.get(token, 1) for token in column.values], np.int32)
        return _chunked(column.codes, table.__getitem__, np.int32, pulse)

    def _encode_numbers(
        self, found: List[Place], shape: Tuple[int, ...], dtype: str, columns: Dict[str, Column], pulse: Callable[[], None]
    ) -> np.ndarray:
        rows = len(columns[found[0].feature["name"]])
        out = np.empty((rows, *shape), dtype)
        for start in range(0, rows, CHUNK_ROWS):
            chunk = out[start : start + CHUNK_ROWS]
            for feature, _, axis, first, stop in found:
                values = np.asarray(columns[feature["name"]])[start : start + CHUNK_ROWS]
                absent = np.isnan(values) if "nulls" in feature else None
                if absent is not None:
                    values = np.where(absent, feature["nulls"]["value"], values)
                shift_scale = self._affine[feature["name"]]
                if shift_scale is not None and dtype == "float32":
                    padding = values == sequences.PAD if feature["kind"] == "sequence" else None
                    values = _scaled(values, *shift_scale)
                    if padding is not None:
                        values[padding] = sequences.PAD
                if indicator(feature):
                    values = np.stack([values, absent], 1)
                target = chunk[(slice(None),) * (1 + axis) + (slice(first, stop),)]
                target[...] = values.reshape(target.shape)
            pulse()
        return out

    def _encode_category(self, feature: dict, column: Column, pulse: Callable[[], None]) -> np.ndarray:
        if "boundaries" in feature:
            return _chunked(np.asarray(column), lambda values: _buckets(feature, values), np.int32, pulse)
        index = self._index[feature["name"]]
        if isinstance(column, Text):
            table = np.array([index.get(value, 0) for value in column.values], np.int32)
            return _chunked(column.codes, table.__getitem__, np.int32, pulse)
        return np.array([index.get(value, 0) for value in column], np.int32)

    def _encode_label(self, label: dict, classes: Dict[Any, int], column: Column, pulse: Callable[[], None]) -> np.ndarray:
        if label["task"] != "classification":
            scaled = affine(label)
            return _chunked(np.asarray(column), lambda values: values if scaled is None else _scaled(values, *scaled), np.float32, pulse)
        if isinstance(column, Text):
            kept = np.flatnonzero(np.bincount(column.codes, minlength=len(column.values)))  # others are of rows that were skipped
            table = np.zeros(len(column.values), np.int32)
            table[kept] = _class_indexes(label, classes, [column.values[code] for code in kept])
            return _chunked(column.codes, table.__getitem__, np.int32, pulse)

        def numbers(values: np.ndarray) -> np.ndarray:
            distinct, inverse = np.unique(values, return_inverse=True)
            return _class_indexes(label, classes, distinct.tolist())[inverse]

        return _chunked(np.asarray(column), numbers, np.int32, pulse)


def _class_indexes(label: dict, classes: Dict[Any, int], distinct: Sequence[Any]) -> np.ndarray:
    unseen = [value for value in distinct if value not in classes]
    if unseen:
        raise refusals.unseen_class(label["name"], unseen[0])
    return np.array([classes[value] for value in distinct], np.int32)


def _scaled(values: np.ndarray, shift: np.ndarray, scale: np.ndarray) -> np.ndarray:
    values = values.astype(np.float64)
    values -= shift
    values /= scale
    return values


def _buckets(feature: dict, values: np.ndarray) -> np.ndarray:
    boundaries = np.array(feature["boundaries"], np.float64)
    if "nulls" not in feature:
        return np.searchsorted(boundaries, values, "right")
    absent = np.isnan(values)
    codes = np.searchsorted(boundaries, np.where(absent, feature["nulls"]["value"], values), "right")
    return np.where(absent, len(boundaries) + 1, codes) if indicator(feature) else codes


def _chunked(values: np.ndarray, function: Callable[[np.ndarray], np.ndarray], dtype, pulse: Callable[[], None]) -> np.ndarray:
    """Apply a function to so many rows at a time that ``pulse`` is called often enough."""
    out = np.empty(values.shape, dtype)
    for start in range(0, len(values), CHUNK_ROWS):
        out[start : start + CHUNK_ROWS] = function(values[start : start + CHUNK_ROWS])
        pulse()
    return out
