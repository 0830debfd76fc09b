"""Prediction of rows with a trained state: encoded as the run's data was, through one compiled function."""

from __future__ import annotations

import base64
import math
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from cerebro_udf import columns, expressions, sequences, sparse, tensors
from cerebro_udf import encoders as encoding
from cerebro_udf.errors import InvalidArgument, NullArgument, OutOfRange, TrialFailed, counted, nearest
from cerebro_udf.segment import binary, network, reading, serving

import tensorflow as tf  # isort: skip  (network says first how TensorFlow has to start)

BATCH_ROWS = 4096

Answers = Tuple[list, Optional[np.ndarray]]
Read = Optional[Callable[[str, str], Any]]


class Predictor:
    """A trained model, ready to predict.

    Args:
        encoders: The run's encoders.
        program: The trial's program spec, see ``program.Program``.
        blob: The state; the weights of it that serve are used, see ``serving``.

    Raises:
        StateMismatch: the state is damaged or belongs to another program.
        InvalidArgument: the program isn't allowed, or does not fit the encoders.
    """

    def __init__(self, encoders: dict, program: dict, blob: bytes):
        self._encoding = tensors.Encoding(encoders)
        self._features = encoders["features"]
        self._read_by = {feature["name"]: columns.read_by_server(feature) for feature in self._features}
        self.outputs = [Output(label) for label in encoders["labels"]]
        try:
            self._model, kinds = network.build(program, seed=0)
        except TrialFailed as error:
            raise InvalidArgument("the model cannot be built", "%s." % error) from None
        serving.assign(self._model, blob)
        self._answer = answering(self._model, kinds, encoding.model_part(encoders), range(len(self.outputs)))

    def row(self, values: Any, read: Read = None) -> List[Tuple[Any, Optional[List[float]]]]:
        """Predict one row.

        Args:
            values: A dict by feature name (other keys are ignored), or a list in feature order; where the
                only feature is an array, the array itself too.
            read: Has the server read a text as a value of a type: see ``columns.read_by_server``.

        Returns:
            Of each of ``outputs``: (value, None) for regression, (class, probabilities in the order of ``classes``) for
            classification; for multi_label (what applies, in lists of the label's shape, probabilities of that shape). Class or
            lists are None where a probability is NaN.

        Raises:
            InvalidArgument: a feature is missing, or a value of the wrong type or shape.
            NullArgument: a value is NULL or NaN.
        """
        found = self.rows([values], read)
        return [(answers[0], None if probabilities is None else probabilities[0].tolist()) for answers, probabilities in found]

    def rows(self, rows: Sequence[Any], read: Read = None) -> List[Answers]:
        """Predict many rows, each as for :meth:`row`.

        Returns:
            Of each output (values or classes or what applies, probabilities float32 (rows, classes) or (rows, *shape) or None).
        """
        listed, found = [iter(self._in_order(values)) for values in rows], {}
        for feature in self._features:
            values = [[next(row) for _ in columns.read_of(feature)] for row in listed]
            if feature["kind"] == "sparse":
                found[feature["name"]] = _sparse(feature, values)
            else:
                found[feature["name"]] = _column(feature, [value for value, in values], self._read_by[feature["name"]], read)
        return self.columns(found)

    def columns(self, columns: Dict[str, tensors.Column]) -> List[Answers]:
        """Predict rows given as raw columns, as ``tensors.Encoding.encode`` takes them; see :meth:`rows`."""
        answers = self._answer(self._encoding.encode(columns))
        return [output.answers(given) for output, given in zip(self.outputs, answers)]

    def _in_order(self, values: Any) -> Sequence[Any]:
        names = [name for feature in self._features for name in columns.read_of(feature)]
        if isinstance(values, dict):
            for name in names:
                if name not in values:
                    hint = nearest(name, values)
                    if not expressions.names_column(name):
                        hint = "It is an expression over a row: predict (select *, %s as %s)." % (name, columns.quoted(name))
                    raise InvalidArgument('the row has no feature "%s"' % name, None, hint)
            return [values[name] for name in names]
        if len(names) == 1 and _is_bare(self._features[0], values):
            return [values]
        if len(values) != len(names):
            raise InvalidArgument(
                "the row has %s, the run has %s" % (counted(len(values), "value"), counted(len(names), "feature")),
                "The features are %s." % ", ".join('"%s"' % name for name in names),
                "Give the values in this order, or an object by name.",
            )
        return values


class Output:
    """One output of a trained model, and what it says.

    Args:
        label: Of the run's encoders.

    Attributes:
        name: None of a single output.
        task, shape: Of the label.
        classes: As the label's column has them; None of other tasks.
    """

    def __init__(self, label: dict):
        self.name: Optional[str] = label["output"]
        self.task: str = label["task"]
        self.classes: Optional[list] = encoding.classes(label)
        self.shape: List[int] = label.get("shape", [])
        self._applies = bool if columns.base(label["type"]) == "boolean" else int
        self._affine = encoding.affine(label)

    def answers(self, given: np.ndarray) -> Answers:
        """See ``Predictor.rows``; ``given`` is what the model answers."""
        if self.task == "regression":
            values = given.astype(float)
            return (values if self._affine is None else values * self._affine[1] + self._affine[0]).tolist(), None
        known = ~np.isnan(given).any(axis=tuple(range(1, given.ndim)))
        if self.task == "multi_label":
            applying = (given > 0.5).astype(self._applies).tolist()
            return [found if k else None for found, k in zip(applying, known)], given
        return [self.classes[i] if k else None for i, k in zip(given.argmax(axis=1), known)], given


def answering(model: Any, kinds: Sequence[str], part: dict, numbers: Sequence[int]) -> Callable[..., List[np.ndarray]]:
    """Compile what a model answers.

    Args:
        model, kinds: As ``network.build`` returned them.
        part: ``encoders.model_part``.
        numbers: Of the part's outputs, those that are wanted; nothing is worked out, or kept, that only others take.

    Returns:
        A function from encoded arrays of n rows, and a ``pulse`` to call between batches, to what each of these outputs says:
        probabilities float32 (n, classes), or values or probabilities float32 (n, *shape of the label).
    """

    def chosen(of_each: Sequence[Any]) -> List[Any]:
        return [of_each[number] for number in numbers]

    wanted, shapes = chosen(part["outputs"]), [tensor.shape[1:] for tensor in chosen(network.outputs_of(model, part))]

    def predict(x):
        found, answers = [], network.outputs_of(model, part, model(network.taken(x, part), training=False))
        for y, kind, output in zip(chosen(answers), chosen(kinds), wanted):
            y = tf.cast(y, tf.float32)  # a layer may compute in fewer bits
            if kind == "logit":
                y = tf.sigmoid(y) if output["task"] == "multi_label" or y.shape[-1] == 1 else tf.nn.softmax(y)
            found.append(y)
        return found

    signature = network.feed(network.signature(part), part)
    function = tf.function(
        predict, input_signature=[signature], autograph=False, jit_compile=False
    ).get_concrete_function()
    variables, dtypes = function.captured_inputs, [tensor.dtype for tensor in function.outputs]

    def call(batch):
        # The operation that a call of the function comes to, which looks at its arguments for longer than a row takes.
        given = tf.nest.flatten(batch, expand_composites=True)
        return tf.raw_ops.StatefulPartitionedCall(args=[*given, *variables], Tout=dtypes, f=function)

    def answer(arrays: Dict[str, Any], pulse: Callable[[], None] = lambda: None) -> List[np.ndarray]:
        x, batches = network.feed(arrays, part), []
        for start in range(0, len(next(iter(arrays.values()))), BATCH_ROWS):
            rows = slice(start, start + BATCH_ROWS)
            batch = {name: network.tensor(a[rows]) for name, a in x.items()} if isinstance(x, dict) else network.tensor(x[rows])
            batches.append([y.numpy() for y in call(batch)])
            pulse()
        found = zip(*batches) if batches else [[np.zeros((0, *shape), np.float32)] for shape in shapes]
        return [_said(np.concatenate(parts), output) for parts, output in zip(found, wanted)]

    return answer


def _said(y: np.ndarray, output: dict) -> np.ndarray:
    if output["task"] != "classification":
        return y if "shape" in output else y[:, 0]
    return (np.concatenate([1 - y, y], axis=1) if y.shape[1] == 1 else y)[:, : output["classes"]]


def _is_bare(feature: dict, values: list) -> bool:
    """Whether a list is the value of the only feature itself, not a list of it."""
    if not feature["type"].endswith("[]") and feature["kind"] not in binary.READERS:
        return False
    if len(values) != 1 or not isinstance(values[0], list):
        return not isinstance(next(iter(values), None), str) or feature["kind"] not in binary.READERS
    if feature["kind"] in ("array", *binary.READERS):
        return np.shape(values[0]) != tuple(feature["shape"])
    # A list in a list: steps of several numbers each are lists themselves.
    return feature["kind"] == "sequence" and feature["shape"][1] > 1 and not any(isinstance(step, list) for step in values[0])


def _column(feature: dict, values: List[Any], sql: Optional[str], read: Read) -> tensors.Column:
    """Turn the JSON values of one feature into a raw column; ``sql`` is what the server has to read them by."""
    name = feature["name"]
    if "nulls" not in feature and any(value is None for value in values):
        raise NullArgument('feature "%s" is null' % name, None, _unusable(name))
    if feature["kind"] == "tokens":
        return [_tokens(feature, value, sql, read) for value in values]
    if feature["kind"] in binary.READERS:
        return np.array([_binary(feature, value) for value in values]).reshape(len(values), *feature["shape"])
    if feature["kind"] == "sequence":
        return sequences.steps([_steps(feature, value) for value in values], feature["shape"][1], feature["sequence"])
    if sql is not None:
        values = [None if value is None else _read(feature, value, sql, read) for value in values]
    if feature["kind"] == "text":
        return values if sql is not None else [None if value is None else _spelled(feature, value) for value in values]
    shape = tuple(feature["shape"])
    if not values:
        return np.empty((0, *shape))
    column = _numbers(name, values, values[0], _wanted(shape))
    if column.shape[1:] != shape:
        raise InvalidArgument(
            'feature "%s" has the wrong shape' % name,
            "It has shape %s, the run's data has %s." % (list(column.shape[1:]), list(shape)),
            "Give it %s." % _wanted(shape),
        )
    _refuse_unusable(name, column, nan="nulls" not in feature)
    return column


def _refuse_unusable(name: str, values: np.ndarray, nan: bool = True) -> None:
    """Refuse what a row of a table could not be trained or predicted with either."""
    if reading.out_of_range(values, nan) is not None:
        _refuse_beyond(name, values)
        raise NullArgument('feature "%s" is NULL, NaN or infinite' % name, None, _unusable(name))


def _refuse_beyond(name: str, values: np.ndarray) -> None:
    beyond = reading.out_of_range(values, nan=False)
    if beyond is not None and np.isfinite(values[beyond]).any():
        raise OutOfRange(
            'feature "%s" holds a number that single precision does not hold' % name,
            "The largest that it holds is 3.4e38.",
            "Leave such rows out by a condition or a case, or take cerebro.predict_table, which writes NULL for them.",
        )


def _unusable(name: str) -> str:
    return (
        "Leave such rows out by a condition or a case, or take cerebro.predict_table, which writes NULL for them. "
        'A run with the option {"nulls": {"%s": …}} that says what stands for NULL takes them.' % name
    )


def _numbers(name: str, values: List[Any], shown: Any, wanted: str) -> np.ndarray:
    """JSON as an array of float64; an error shows a part of it, and what is wanted."""
    try:
        found = np.array(values)
        if found.dtype.kind not in "biuf" and _has_text(values):
            found = np.array(values, object)
        return found.astype(np.float64)
    except (TypeError, ValueError):
        raise _wrong(name, shown, "It must be %s." % wanted) from None


def _tokens(feature: dict, value: Any, sql: Optional[str], read: Read) -> List[str]:
    name, settings = feature["name"], feature["tokens"]
    if not feature["type"].endswith("[]"):
        if not isinstance(value, str):
            raise _wrong(name, value, "It must be text.")
        return sequences.split(value if sql is None else _read(feature, value, sql, read), settings)
    if not isinstance(value, list):
        raise _wrong(name, value, "It must be an array of tokens.")
    if None in value:
        raise NullArgument('an element of feature "%s" is null' % name, None, "Leave it out.")
    return [_spelled(feature, item) if sql is None else _read(feature, item, sql, read) for item in value]


def _binary(feature: dict, value: Any) -> np.ndarray:
    """A tensor or an image: its bytes, as PostgreSQL or base64 writes them, or the array itself."""
    name, shape = feature["name"], tuple(feature["shape"])
    if isinstance(value, str):
        try:
            blob = bytes.fromhex(value[2:]) if value.startswith("\\x") else base64.b64decode(value, validate=True)
            found = binary.READERS[feature["kind"]](blob, feature[feature["kind"]])
        except ValueError as error:
            why = str(error) if isinstance(error, binary.Unreadable) else "it is neither hexadecimal after \\x nor base64"
            raise _wrong(name, value, "The bytes cannot be read: %s." % why) from None
    else:
        found = _numbers(name, value, value, "bytes, or %s" % _wanted(shape))
    if found.shape != shape:
        raise InvalidArgument(
            'feature "%s" has the wrong shape' % name,
            "It has shape %s, the run's data has %s." % (list(found.shape), list(shape)),
            "Give it bytes, or %s." % _wanted(shape),
        )
    _refuse_unusable(name, found)
    if columns.is_bytes(feature) and found.dtype != np.uint8:
        if (found != np.clip(np.round(found), 0, 255)).any():
            raise _wrong(name, value, "Its numbers must be whole, 0 to 255.")
        return found.astype(np.uint8)
    return found


def _sparse(feature: dict, rows: List[list]) -> sparse.Rows:
    """Sparse rows, each given as its indices, and their values where the run has such."""
    lists: Dict[str, List[np.ndarray]] = {name: [] for name in columns.read_of(feature)}
    for row in rows:
        for (name, found), value in zip(lists.items(), row):
            wanted = "an array of indices" if name == feature["name"] else "an array of the values of indices"
            if value is None or (isinstance(value, list) and None in value):
                raise NullArgument('feature "%s" is null, or an element of it' % name, None, "Give it %s." % wanted)
            if not isinstance(value, list) or np.ndim(_numbers(name, value, value, wanted)) != 1:
                raise _wrong(name, value, "It must be %s." % wanted)
            found.append(_numbers(name, value, value, wanted))
    indices, *values = lists.values()
    for index in indices:
        if (index != np.floor(index)).any():
            raise _wrong(feature["name"], index.tolist(), "Indices must be whole numbers.")
    found, wrong = sparse.made(indices, values[0] if values else None, feature["sparse"]["size"])
    for reason, _ in wrong.values():
        hint = "Indices are whole numbers from 0 to %d, each once, with a finite value each." % (feature["sparse"]["size"] - 1)
        raise InvalidArgument('feature "%s" is no sparse row' % feature["name"], "Of this row: %s." % reason, hint)
    return found


def _steps(feature: dict, value: Any) -> np.ndarray:
    """A sequence of numbers, (steps, width)."""
    name, width = feature["name"], feature["shape"][1]
    wanted = "an array of numbers" if width == 1 else "an array of arrays of %d numbers" % width
    if not isinstance(value, list):
        raise _wrong(name, value, "It must be %s." % wanted)
    found = _numbers(name, value, value, wanted)
    kept = found[sequences.places(len(found), feature["sequence"])[0]] if found.ndim else found
    _refuse_beyond(name, kept)
    if not found.size or _has_null(value) or reading.out_of_range(kept) is not None:
        raise NullArgument(
            'feature "%s" is empty, or holds NULL, NaN or infinite values' % name,
            None,
            "Leave such rows out by a condition or a case, or take cerebro.predict_table, which writes NULL for them.",
        )
    if found.shape[1:] != (width,) and (width > 1 or found.ndim > 1):
        raise InvalidArgument(
            'feature "%s" has the wrong shape' % name, "It has shape %s." % list(found.shape), "Give it %s." % wanted
        )
    return found.reshape(-1, width)


def _read(feature: dict, value: Any, sql: str, read: Read) -> Any:
    if not isinstance(value, str):
        raise _wrong(feature["name"], value, "It must be text that PostgreSQL takes for a value of type %s." % feature["type"])
    try:
        return read(sql, value)
    except InvalidArgument as error:
        raise InvalidArgument('feature "%s": %s' % (feature["name"], error.message), error.detail, error.hint) from None


def _spelled(feature: dict, value: Any) -> str:
    """Return a category as its column spells it."""
    spelling = columns.of(feature["type"]).spelling
    if spelling == "boolean" and isinstance(value, bool):
        return columns.spelled(value)
    if spelling == "integer" and isinstance(value, (int, float)) and not isinstance(value, bool) and value == value // 1:
        return str(int(value))
    if spelling == "text" and isinstance(value, str):
        return value.rstrip(" ") if columns.base(feature["type"]) == columns.PADDED else value
    wanted = {"boolean": "true or false", "integer": "a whole number"}.get(spelling, "text")
    raise _wrong(feature["name"], value, "It must be %s." % wanted)


def _has_text(values: Any) -> bool:
    """PostgreSQL writes NaN and infinities as text into JSON; other text is refused."""
    if isinstance(values, list):
        return any(_has_text(value) for value in values)
    if isinstance(values, str) and math.isfinite(float(values)):
        raise ValueError(values)
    return isinstance(values, str)


def _has_null(value: Any) -> bool:
    return any(map(_has_null, value)) if isinstance(value, list) else value is None


def _wanted(shape: Tuple[int, ...]) -> str:
    return "an array of shape %s" % list(shape) if shape else "a number"


def _wrong(name: str, value: Any, hint: str) -> InvalidArgument:
    return InvalidArgument(
        'feature "%s" has a value of the wrong type' % name, "It is %s." % repr(value)[:100], hint
    )
