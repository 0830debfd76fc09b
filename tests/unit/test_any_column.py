"""Columns of any type, values and encoder, from what the server sends to the tensors that a model is fed with, against plain numpy.

The server is played by a cursor that gives what PostgreSQL gives: arrays in its own layout, texts, NULLs. Whatever cannot be trained on
has to be refused with the name of its column.
"""

from __future__ import annotations

import json
import re
import struct
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Optional

import numpy as np
from hypothesis import HealthCheck, Phase, assume, event, given, settings
from hypothesis import strategies as st

from cerebro_udf import columns, encoders, errors, tensors
from cerebro_udf.segment import arrays, export, predict, shard

import keras  # isort: skip  (the package says first how TensorFlow has to start)

LARGEST = float(np.finfo(np.float32).max)
MODERATE = 1e-30, 1e30  # that archives, whose layers keep their arguments in single precision, give exactly
ELEMENTS = {"smallint": 2**15, "integer": 2**31, "bigint": 2**63}
SCALARS = ["smallint", "integer", "bigint", "real", "double precision", "numeric(20,4)", "boolean", "timestamp with time zone", "interval"]
TEXTS = ["text", "character varying(9)", "uuid", "enum", "date"]
NAMES = st.text("aB \"'%{}$\\/é漢;.", min_size=1, max_size=6)
WORDS = ["NULL", "null", "", " ", "a", "A", "é", "漢字", "[UNK]", "[NULL]", "it's", '"', "\\", "%s", "0", "nan"]
DATES = ["2024-02-29", "1969-12-31", "0044-03-15 BC", "10000-01-01", "infinity", "-infinity"]


@dataclass
class Made:
    """A column: its specification, one value for each row as the server has it, and what its kept NULLs become."""

    feature: dict
    values: list
    policy: Any

    name = property(lambda self: self.feature["name"])
    kind = property(lambda self: self.feature["kind"])
    encoder = property(lambda self: columns.encoder_name(self.feature.get("encoder")))


# ---- what the server sends


def as_array(value: Any, dtype: str) -> Optional[bytes]:
    """The bytes of an array as PostgreSQL holds them; elements may be None."""
    if value is None:
        return None
    shape, flat = np.shape(value), np.array(value, object).ravel().tolist()
    if not flat:
        return struct.pack("=iii", 0, 0, 0)
    present = [item is not None for item in flat]
    header = struct.pack("=%di" % (3 + 2 * len(shape)), len(shape), 0, 0, *shape, *[1] * len(shape))
    data = np.array([item for item in flat if item is not None], dtype).tobytes()
    if all(present):
        return header + data
    bitmap = np.packbits(present, bitorder="little").tobytes()
    offset = -(-(len(header) + 4 + len(bitmap)) // 8) * 8
    return header[:4] + struct.pack("=i", offset) + header[8:] + bitmap.ljust(offset - 4 - len(header), b"\0") + data


class Server:
    """Answers the query of a scan from rows in Python's values."""

    def __init__(self, made: list[Made]):
        self.made, self.rows = {column.name: column for column in made}, range(0)

    def quote_ident(self, name: str) -> str:
        return '"%s"' % name.replace('"', '""')

    def cursor(self, query: str):
        body = query[len("SELECT ") : query.index(" FROM (SELECT ")]
        self.outputs, found = {}, []
        for match in re.finditer(r'"((?:[^"]|"")*)"| AS (\w+)(?=, |$)', body):
            if match[2] is None:
                found.append(match[1].replace('""', '"'))
            else:
                self.outputs[match[2]], found = found, []
        self.left = self.rows
        return self

    def fetch(self, count: int) -> list[dict]:
        taken, self.left = self.left[:count], self.left[count:]
        return [{output: self._sent(output, names, row) for output, names in self.outputs.items()} for row in taken]

    def _sent(self, output: str, names: list[str], row: int) -> Any:
        values = [self.made[name].values[row] for name in names]
        if output == "numbers":
            return as_array(values, "=f8")
        (value,), (made,) = values, [self.made[name] for name in names]
        if output.startswith(("array", "sequence")):
            return as_array(value, arrays.ELEMENTS[columns.of(made.feature["type"]).cast])
        return value

    def close(self) -> None:
        pass


# ---- what may come


def numbers(type_: str, missing: bool):
    if type_ in ELEMENTS:
        most = ELEMENTS[type_]
        plain = st.one_of(st.integers(-9, 9), st.integers(max(-most, -(2**53)), min(most - 1, 2**53)))
    elif type_ == "boolean":
        plain = st.booleans()
    else:
        width = 32 if type_ == "real" else 64
        moderate = st.floats(-1e9, 1e9, width=width, allow_subnormal=False)
        tried = st.one_of(moderate, st.floats(width=width))
        tried = tried.filter(lambda x: x == 0 or not (abs(x) < MODERATE[0] or MODERATE[1] < abs(x) <= LARGEST))
        plain = st.one_of(st.integers(-3, 3).map(float), tried)
        plain = plain if missing else plain.filter(lambda x: abs(x) <= LARGEST)
    return st.one_of(plain, plain, plain, st.none()) if missing else plain


ENDS = st.sampled_from(["pre", "post"])


@st.composite
def encoders_for(draw, type_: str) -> Any:
    """An encoder that fits the type, with settings where it has such; sparse rows, of two columns, have tests of their own."""
    fitting = [encoder for encoder in columns.encoders_of(type_) if encoder != "sparse"]
    chosen = draw(st.sampled_from(fitting if type_ == "text[]" else [None, *fitting]))
    length = {"length": draw(st.integers(1, 3)), "pad": draw(ENDS), "truncate": draw(ENDS)}
    given = {
        "tokens": {**length, "size": draw(st.integers(3, 6))},
        "sequence": {**length, "as": draw(st.sampled_from(columns.NUMBER_ENCODERS))},
        "bucketize": draw(st.sampled_from([{"buckets": 3}, {"boundaries": [-1.0, 0.5]}])),
    }
    return {chosen: given[chosen]} if chosen in given else chosen


def values_of(feature: dict, missing: bool, draw: Any) -> st.SearchStrategy:
    """Values as the server has them: numbers, texts, lists."""
    type_, kind = feature["type"], feature["kind"]
    element = type_.replace("[]", "")
    if kind == "tokens" and not type_.endswith("[]"):
        return st.sampled_from(WORDS).map(lambda word: "%s  a %s." % (word, word))
    if kind == "tokens":
        return st.lists(st.sampled_from(WORDS) if element == "text" else numbers(element, False).map(columns.spelled), max_size=4)
    if kind == "sequence":
        return st.lists(numbers(element, missing), max_size=4)
    if kind == "array":
        size = draw(st.sampled_from([1, 3]))
        return st.lists(numbers(element, missing), min_size=size, max_size=size + (draw(st.integers(0, 9)) == 9))
    if kind == "number":
        return numbers(type_, missing)
    spelled = {
        "text": st.sampled_from(WORDS), "date": st.sampled_from(DATES), "boolean": st.sampled_from(["false", "true"]),
        "integer": st.integers(-(2**15), 2**15 - 1).map(str),
    }  # fmt: skip
    return spelled[columns.of(type_).spelling]


@st.composite
def features(draw, name: str, rows: int) -> Made:
    arrays_ = [type_ + "[]" for type_ in ("smallint", "bigint", "real", "boolean", "text")]
    type_ = draw(st.sampled_from([*SCALARS, *TEXTS, *arrays_]))
    feature = columns.specification(name, type_, draw(encoders_for(type_)))
    missing = draw(st.booleans())
    value = values_of(feature, missing, draw)
    policies: list = ["error", "skip"]
    if feature["kind"] == "text":
        policies += ["indicator", {"value": "a"}]
    elif feature["kind"] == "number":
        bucketed = columns.encoder_name(feature["encoder"]) == "bucketize"
        policies += ["indicator", {"value": 2.5}] if bucketed else ["indicator", {"value": "mean"}, {"value": 2.5, "indicator": True}]
    policy = draw(st.sampled_from(policies))
    if policy not in ("error", "skip"):
        feature["nulls"] = {"indicator": True} if policy == "indicator" else policy
    value = st.one_of(value, value, value, st.none()) if missing else value
    return Made(feature, draw(st.lists(value, min_size=rows, max_size=rows)), policy)


LABELS = {
    "integer": st.integers(-1, 1), "text": st.sampled_from(WORDS), "real": numbers("real", False), "bigint": st.integers(2**60, 2**60 + 2),
}  # fmt: skip


@st.composite
def tables(draw):
    """Features, the label, (first row, last row + 1) of each shard, the share of rows for validation."""
    rows = draw(st.one_of(st.integers(0, 6), st.integers(0, 40)))
    label, *others = draw(st.lists(NAMES, min_size=2, max_size=4, unique=True))
    type_ = draw(st.sampled_from(list(LABELS)))
    values = draw(st.lists(LABELS[type_], min_size=rows, max_size=rows))
    labelled = Made({"name": label, "type": type_, "task": None, "kind": None}, values, "error")
    cuts = sorted(draw(st.lists(st.integers(0, rows), max_size=3)))
    shards = list(zip([0, *cuts], [*cuts, rows]))
    return [draw(features(name, rows)) for name in others], labelled, shards, draw(st.sampled_from([0.0, 0.3]))


def settled(value: Any) -> Any:
    """What becomes of JSON in a column of jsonb: 1.0 comes back as 1."""

    def number(text: str):
        return int(Decimal(text)) if Decimal(text) == Decimal(text).to_integral_value() else float(text)

    return json.loads(json.dumps(value, allow_nan=False), parse_float=number)


# ---- what should become of it


def infinite(x: float) -> bool:
    return abs(x) > LARGEST


def kept_steps(made: Made, row: list) -> list:
    length, truncate = made.feature[made.kind]["length"], made.feature[made.kind]["truncate"]
    return row[-length:] if truncate == "pre" else row[:length]


def usable(made: Made, value: Any) -> bool:
    """Whether a row with this value can be trained on."""
    kept = "nulls" in made.feature
    if value is None:
        return kept
    if made.kind in ("array", "sequence"):
        if None in value or not value:
            return False
        value = [float(x) for x in (kept_steps(made, value) if made.kind == "sequence" else value)]
        return all(x == x and not infinite(x) for x in value)
    if made.kind == "tokens":
        return isinstance(value, str) or None not in value
    if made.kind == "text" or isinstance(value, str):
        return True
    return kept if value != value else not infinite(float(value))


def scaled(encoder: str, x: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers (n, width) as they are fed, and by how much rounding in double precision may have them differ."""
    if encoder == "none":
        return x, np.zeros(1)
    low, width = known.min(axis=0), np.ptp(known, axis=0)
    if encoder == "standardize":
        first = known[0]
        low, width = first + (known - first).mean(axis=0), (known - first).std(axis=0)
    width = np.where(width > 0, width, 1.0)
    return (x - low) / width, 16 * np.finfo(float).eps * np.abs(known).max(axis=0) / width


def tokens(made: Made, value: Any) -> list:
    if isinstance(value, str):
        value = re.split("[ \t\n\v\f\r]+", re.sub(r"""[!-/:-@\[-`{-~]""", "", re.sub("[A-Z]", lambda m: m[0].lower(), value)))
    return kept_steps(made, [token for token in value if token] or [None])


def expected(made: Made, rows: list[int], train: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """What the model is fed with of a feature, (rows, …), and how far off that may be."""
    feature, values, known = made.feature, [made.values[row] for row in rows], [made.values[row] for row in train]
    null = feature.get("nulls", {})
    if made.kind == "tokens":
        counts = Counter(token for value in known for token in tokens(made, value) if token not in (None, "[UNK]"))
        vocabulary = sorted(counts, key=lambda token: (-counts[token], token))[: feature["tokens"]["size"] - 2]
        found = []
        for value in values:
            codes = [vocabulary.index(token) + 2 if token in vocabulary else 1 for token in tokens(made, value)]
            zeros = [0] * (feature["tokens"]["length"] - len(codes))
            found.append(zeros + codes if feature["tokens"]["pad"] == "pre" else codes + zeros)
        return np.array(found), np.zeros(1)
    if made.kind == "text":
        vocabulary = sorted({value for value in known if value is not None}) + [None] * ("indicator" in null)
        values = [null["value"] if value is None and "value" in null else value for value in values]
        return np.array([[vocabulary.index(value) + 1 if value in vocabulary else 0] for value in values]), np.zeros(1)
    if made.kind == "sequence":
        steps = np.array([x for value in known for x in kept_steps(made, value)], float).reshape(-1, 1)
        length, rows_, slack = feature["sequence"]["length"], [], np.zeros(1)
        for value in values:
            x, slack = scaled(made.encoder or "standardize", np.array(kept_steps(made, value), float).reshape(-1, 1), steps)
            fill = np.full((length - len(x), 1), np.finfo(np.float32).tiny)
            rows_.append(np.concatenate([fill, x] if feature["sequence"]["pad"] == "pre" else [x, fill]))
        return np.array(rows_), slack
    if made.kind == "array":
        return scaled(made.encoder or "standardize", np.array(values, float), np.array(known, float))
    x, known = (np.array([np.nan if v is None else float(v) for v in part]) for part in (values, known))
    absent, known = np.isnan(x), known[~np.isnan(known)]
    given = null.get("value", "mean")
    given = known[0] + (known - known[0]).mean() if given == "mean" else float(given)
    whole = np.where(absent, given, x)
    if made.encoder == "bucketize":
        bounds = feature["encoder"]["bucketize"].get("boundaries") or sorted(
            {min(v for v in known if (known < v).mean() >= k / 3) for k in (1, 2) if any((known < v).mean() >= k / 3 for v in known)}
        )
        codes = (whole[:, None] >= np.array(bounds)).sum(axis=1)
        return np.where(absent & ("indicator" in null), len(bounds) + 1, codes)[:, None], np.zeros(1)
    found, slack = scaled(made.encoder or "standardize", whole[:, None], known[:, None])
    return np.concatenate([found, absent[:, None]], axis=1) if "indicator" in null else found, slack


def merged(made: Made, rows: list[int]) -> bool:
    """Whether single precision makes numbers of these rows equal that are different, among those beyond its whole numbers."""
    values = np.array([x for row in rows for x in np.ravel(made.values[row]).tolist() if x is not None and x == x], float)
    large = np.unique(values[np.abs(values) >= 2**24])
    with np.errstate(over="ignore"):
        return len(np.unique(large.astype(np.float32))) < len(large)


def out_of_range(made: Made, count: int, train: list[int]) -> bool:
    """Whether single precision does not hold a number of a table, or double precision holds too little of those to train on."""
    if made.kind not in ("number", "array", "sequence", None) or made.feature["type"] == "text":
        return False

    def numbers_of(row: int) -> list:
        value = made.values[row]
        value = kept_steps(made, value or []) if made.kind == "sequence" else value if isinstance(value, list) else [value]
        return [float(x) for x in value if x is not None and x == x]

    if any(LARGEST < abs(x) < np.inf for row in range(count) for x in numbers_of(row)):
        return True
    rows = [found for found in map(numbers_of, train) if found]
    if made.kind is None or (made.kind == "array" and len(set(map(len, rows))) > 1):
        return False
    known = np.array([[x] for found in rows for x in found] if made.kind == "sequence" else rows)
    if not known.size:
        return False
    low, high = known.min(axis=0), known.max(axis=0)
    size = np.maximum(np.abs(low), np.abs(high))
    if made.feature["type"].startswith(("bigint", "numeric")):
        if (((high - low) / np.spacing(size) < 1_000) & ((high > low) | (size >= 2**53))).any():
            return True
    return made.encoder in (None, "standardize", "minmax") and bool(((high > low) & (high - low < 1e-37)).any())


def may_be_refused(made: list[Made], label: Made, rows: list[int], train: list[int], parts: list[tuple], validation: float) -> set[str]:
    """The errors that such a table deserves: SQLSTATE, and what of it they name."""
    count = parts[-1][1]
    reasons = {"22000 "} if not rows or not train or (validation and len(train) == len(rows)) else set()
    for column in [*made, label]:
        bad = [row for row in range(count) if not usable(column, column.values[row])]
        if bad and column.policy != "skip":
            reasons.add("22004 " + column.name)
        if column.kind == "array" and len({len(v) for v in column.values if v is not None}) > 1:
            reasons.add("2202E " + column.name)
        known = [column.values[row] for row in train if column.values[row] is not None and column.values[row] == column.values[row]]
        if not known and (column.kind == "number" and ("nulls" in column.feature or column.encoder in ("bucketize", "minmax"))):
            reasons.add("22000 " + column.name)
        if column.kind == "tokens" and not any(set(tokens(column, column.values[row])) - {None, "[UNK]"} for row in train):
            reasons.add("22000 " + column.name)
        if column.encoder == "bucketize" and "buckets" in column.feature["encoder"]["bucketize"]:
            if all(sum(v < other for v in known) * 3 < len(known) for other in known):
                reasons.add("22000 " + column.name)
        if (column.encoder or column.feature.get("encoder")) == "none" and any(
            merged(column, [row for row in rows if first <= row < stop]) for first, stop in parts
        ):
            reasons.add("22003 " + column.name)
        if out_of_range(column, count, train):
            reasons.add("22003 " + column.name)
    if len({label.values[row] for row in rows}) < 2:
        reasons.add("22000 " + label.name)
    return reasons


def as_json(made: Made, value: Any) -> Any:
    """A value as PostgreSQL writes it into JSON; dates and times are texts that the server reads again."""
    if isinstance(value, list):
        spelling = columns.of(made.feature["type"]).spelling if made.kind == "tokens" else None
        if spelling in ("integer", "boolean"):
            return [item if item is None else columns.whole(item) if spelling == "integer" else item == "true" for item in value]
        return [as_json(made, item) for item in value]
    if made.kind == "text" and value is not None:
        return {"integer": int, "boolean": "true".__eq__}.get(columns.of(made.feature["type"]).spelling, str)(value)
    if columns.read_by_server(made.feature) is not None and made.kind == "number" and value is not None:
        return repr(value)
    if isinstance(value, float) and not abs(value) < float("inf"):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    return value


def read_by_server(sql: str, text: str) -> Any:
    return float(text) if "date_part" in sql else text


def assert_predicted(made: list[Made], found: dict, encoding: tensors.Encoding, order: list[int], whole: dict) -> None:
    """Rows in JSON are fed as rows of the table are, and refused where those are left out."""
    given = {}
    for column in made:
        feature = next(feature for feature in found["features"] if feature["name"] == column.name)
        further = feature, columns.read_by_server(feature)
        values = [as_json(column, column.values[row]) for row in order]
        given[column.name] = predict._column(feature, values, further[1], read_by_server)
        for value in column.values:
            if not usable(column, value):
                try:
                    predict._column(feature, [as_json(column, value)], further[1], read_by_server)
                except errors.CerebroError as error:
                    assert column.name in error.message and error.hint, error
                else:
                    raise AssertionError((column, value))
    for name, tensor in encoding.encode(given).items():
        np.testing.assert_allclose(tensor, whole[name], rtol=1e-5, atol=1e-6)


def fed(table: tuple) -> Optional[tuple]:
    """Features, encoders, and what a model is fed with of all rows in this order; None for a table that was refused as it deserves."""
    made, label, parts, validation = table
    count = parts[-1][1]
    number = Made({"name": "number of the row", "type": "integer", "kind": "number", "encoder": "minmax"}, list(range(count)), "error")
    columns_ = [*made, number]
    nulls = {column.name: column.policy if isinstance(column.policy, str) and column.policy != "indicator" else "error" for column in made}
    read, server = [], Server([*columns_, label])
    spec = {
        "reads": [{"relation": "t", "where": None, "columns": {column.name: column.name for column in [*columns_, label]}}],
        "features": [column.feature for column in columns_],
        "labels": [{**{k: v for k, v in label.feature.items() if k != "kind"}, "output": None}],
        "seed": 3, "validation": validation, "memory_bytes": None,
    }  # fmt: skip
    rows = [row for row in range(count) if all(usable(column, column.values[row]) for column in [*made, label])]
    train = rows
    try:
        for first, stop in parts:
            server.rows = range(first, stop)
            read.append(shard.read(server, spec))
        train = [int(row) for part in read for row in part.columns("train")[0][number.name]]
        held = [int(row) for part in read for row in part.columns("validation")[0][number.name]]
        assert sorted(train + held) == rows
        assert sum(part.skipped for part in read) + len(rows) == count
        inputs = [{"name": column.name, "features": [column.name], "stack": None} for column in columns_]
        label_specs = spec["labels"]
        stats = [settled(part.stats()) for part in read]
        found = settled(encoders.merge(spec["features"], label_specs, stats, nulls, validation, inputs))
        encoding = tensors.Encoding(found)
        encoded = [part.encode(encoding) for part in read]
    except errors.CerebroError as error:
        reasons = may_be_refused(made, label, rows, train, parts, validation)
        told = "%s %s" % (error, error.detail or "")
        event(error.sqlstate)
        assert error.hint and any(error.sqlstate == reason[:5] and reason[6:] in told for reason in reasons), (error, error.detail, reasons)
        return None
    assert not may_be_refused(made, label, rows, train, parts, validation)
    event("fed")
    order = [row for part, numbers in (("train", train), ("validation", held)) for row in numbers]
    halves = [shard_[part] for part in ("train", "validation") for shard_ in encoded]
    whole = {name: np.concatenate([half[name] for half in halves]) for name in halves[0]}
    return columns_, found, encoding, order, train, whole


@settings(max_examples=400, deadline=None, derandomize=True)
@given(tables())
def test_a_table_of_any_columns_becomes_the_tensors_that_numpy_makes_of_it_or_is_refused_by_name(table):
    result = fed(table)
    if result is None:
        return
    columns_, found, encoding, order, train, whole = result
    label = table[1]
    for place in encoders.places(found):
        column = next(column for column in columns_ if column.name == place.feature["name"])
        tensor = whole[place.tensor]
        assert (tensor.shape[1:], str(tensor.dtype)) == encoders.fed(found["model"])[place.tensor]
        answer, slack = expected(column, order, train)
        with np.errstate(over="ignore", invalid="ignore"):
            close = np.abs(tensor - answer) <= slack + 1e-6 * np.abs(answer) + 1e-37
            assert (close | (np.abs(answer) > LARGEST)).all(), (column, tensor, answer)
    assert_predicted(columns_, found, encoding, order, whole)
    labels = [label.values[row] for row in order]
    if label.feature["type"] == "real":
        np.testing.assert_array_equal(whole["label"], np.array(labels, np.float32))
    else:
        assert [found["labels"][0]["classes"][code] for code in whole["label"]] == labels


def as_archive(made: Made, feature: dict, order: list[int]) -> Any:
    """Values as the input of an exported archive takes them: NaN, or what its metadata say, for NULL and for what fills rows up."""
    values, null, dtype = [made.values[row] for row in order], export._null(feature), export._dtype(feature)
    if made.kind in ("sequence", "tokens") and made.feature["type"].endswith("[]"):
        fill, longest = ("", 1) if made.kind == "tokens" else (np.nan, 1)
        longest = max([longest, *map(len, values)])
        return np.array([[*value, *[fill] * (longest - len(value))] for value in values], str if made.kind == "tokens" else float)
    if made.kind == "array":
        return np.array(values, float)
    if dtype == "float64":
        return np.array([[np.nan if value is None else float(value)] for value in values])
    spelled = {"int64": columns.whole, "bool": "true".__eq__, "string": str}[dtype]
    # What stands for NULL is none of the vocabulary's values, but may be one that was held out: that is as unknown as any other.
    return np.array([[null if value is None else "never seen" if spelled(value) == null else spelled(value)] for value in values])


# Without the phase that shrinks what has failed, which would build models for minutes.
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(tables())
def test_an_archive_feeds_its_model_with_the_same_tensors(table):
    result = fed(table)
    assume(result is not None)
    columns_, found, _, order, _, whole = result
    inputs, names = export._inputs(found)
    model = keras.Model(inputs, export._encoded(found, {column: inputs[name] for column, name in names.items()}, lambda: None))
    by_name = {column.name: column for column in columns_}
    given_ = {
        names[feature["name"]]: keras.ops.convert_to_tensor(as_archive(by_name[feature["name"]], feature, order), export._dtype(feature))
        for feature in found["features"]
    }
    answers = model(given_)
    for name, answer in answers.items() if isinstance(answers, dict) else [(next(iter(whole)), answers)]:
        np.testing.assert_allclose(np.asarray(answer), whole[name], rtol=1e-5, atol=1e-6, err_msg=str(columns_))
