"""From a bound definition and the data's shape to a compiled Keras model.

The only file that builds models. A built model has every variable that a state names: its own, the
optimizer's and the metrics'.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import re
import warnings
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np

from cerebro_udf import compilation, definition, encoders, loss_forms, placeholders, precision, sparse
from cerebro_udf.errors import CerebroError, InvalidArgument, TrialFailed, counted
from cerebro_udf.segment import memory, overflow
from cerebro_udf.segment.importing import apart

with apart():
    import keras
    import tensorflow as tf

    from cerebro_udf.segment.metrics import suited

# Of rows that a Masking layer hands to the user's model: it is the mask of the output that goes, which nobody wants.
warnings.filterwarnings("ignore", r"Layer '.*' \(of type (Sequential|Functional)\) was passed an input with a mask")

REASON_CHARACTERS = 400
MOST_UNROLLED = 100  # steps of a sequence, each in the graph: 0.1 s and more of tracing
# Layers that hand values on unchanged: the activation that matters lies before them.
_PASSING = (keras.layers.Flatten, keras.layers.Reshape, keras.layers.Dropout, keras.layers.Identity)
_NOISE = re.compile(
    r"Exception encountered when|Graph execution error|Detected at node|File \"|Arguments received|•"
    r"|\[\[\{\{node|.* defined at \(most recent call last\)|\s*$"
)
# Before what was wrong within an object of which Keras says that it cannot be made; and where Keras says which layer refused.
_WITHIN = "Exception encountered:"
_PLACE = re.compile(
    r"<class '[\w.]*\.(\w+)'> could not be deserialized|Error when deserializing class '(\w+)'"
    r"|Exception encountered when calling (\w+)\.\w+\(\)"
)


@contextlib.contextmanager
def one_trial_fails() -> Iterator[None]:
    """Turn whatever Keras or TensorFlow raises into TrialFailed; never put a call of plpy inside.

    What already is an error of cerebro passes through.
    """
    try:
        yield
    except (TrialFailed, CerebroError):
        raise
    except Exception as error:  # Keras raises ValueError, TypeError, AttributeError, tf.errors.* and others
        raise TrialFailed(reason(error)) from error


def reason(error: BaseException) -> str:
    """Return the line of an error of Keras or TensorFlow that says what is wrong, and the layer where one does."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", getattr(error, "message", None) or str(error))
    places = [next(filter(None, found)) for found in _PLACE.findall(text)]
    for _ in range(text.count(_WITHIN)):
        error = error.__context__ or error
    text = text.rsplit(_WITHIN, 1)[-1].strip(" '\n")
    lines = [line.strip() for line in text.splitlines() if not _NOISE.match(line.strip())]
    if isinstance(error, MemoryError) or type(error).__name__ == "ResourceExhaustedError":
        lines.insert(0, "out of memory")
    line = " ".join(lines[:1] if not lines or len(lines[0]) > 40 else lines[:2])
    name = "%s in %s" % (type(error).__name__, places[-1]) if places else type(error).__name__
    return ("%s: %s" % (name, line) if line else name)[:REASON_CHARACTERS]


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed Keras as ``keras.utils.set_random_seed`` does, and give Python and numpy their own state back."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        keras.utils.set_random_seed(seed)
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@contextlib.contextmanager
def fitting_memory() -> Iterator[None]:
    """Refuse to make a variable that would not fit the memory that is left, before it takes any.

    Beside each variable there must be room for its copy in a state, and for a gradient if it is trained.
    """
    available, needed, refusal = memory.available(), 0, None

    def create(make: Any, **settings: Any) -> Any:
        nonlocal needed, refusal
        size = _elements(settings["initial_value"]) * tf.as_dtype(settings["dtype"] or tf.float32).size
        needed += size * (3 if settings.get("trainable") else 2)
        if needed > available:
            refusal = TrialFailed(
                "the model needs %.1f GB of memory or more, %.1f GB are available" % (needed / 1e9, available / 1e9)
            )
            raise refusal
        return make(**settings)

    try:
        with tf.variable_creator_scope(create):
            yield
    except Exception:
        if refusal is not None:  # Keras adds to the message of what is raised within it
            raise refusal from None
        raise


def _elements(initial_value: Any) -> int:
    """Return how many elements a variable will have; Keras gives a closure over itself, which is not called here."""
    if callable(initial_value):
        for cell in initial_value.__closure__ or ():
            if isinstance(cell.cell_contents, keras.Variable):
                return math.prod(cell.cell_contents.shape)
        with tf.Graph().as_default():  # whatever else it is: only its shape is worked out
            initial_value = initial_value()
    return math.prod(initial_value.shape)


def widest(model: keras.Model) -> int:
    """Return the most elements per row that one layer hands on."""
    widths = [1]
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            widths.append(widest(layer))
        for node in layer._inbound_nodes:
            widths.extend(math.prod(n or 1 for n in tensor.shape[1:]) for tensor in node.output_tensors if not tensor.sparse)
    return max(widths)


def refuse_wide(width: int, rows: int) -> None:
    """Refuse a minibatch of which one layer's output alone would not fit the memory that is left.

    Raises:
        TrialFailed.
    """
    needed, available = 4 * width * rows, memory.available()
    if needed > available:
        raise TrialFailed(
            "one layer's output for %s needs %.1f GB of memory, %.1f GB are available"
            % (counted(rows, "row"), needed / 1e9, available / 1e9)
        )


def refuse_unrolled(model: keras.Model) -> None:
    """Refuse a layer that makes a graph of each step of a long sequence: its trace takes minutes, which no cancel reaches.

    Raises:
        TrialFailed.
    """
    for layer in model._flatten_layers():
        steps = [shape[1] for shape in (layer._build_shapes_dict or {}).values() if isinstance(shape, tuple) and len(shape) > 1]
        if getattr(layer, "unroll", False) and max(steps, default=0) > MOST_UNROLLED:
            raise TrialFailed(
                'layer "%s" would be unrolled over %d steps, at most %d are (leave unroll out)' % (layer.name, max(steps), MOST_UNROLLED)
            )


def build(spec: dict, seed: int) -> Tuple[keras.Model, List[str]]:
    """Build and compile a model, every variable made.

    Args:
        spec: ``definition`` (bound), ``optimizer``, ``loss``, ``loss_weights``, ``metrics``, ``weighted_metrics``, ``precision``,
            ``encoders``; see ``program.Program``.
        seed: Of the initial weights and generators; equal seeds give equal values whatever was built before.

    Returns:
        (model, what each of its outputs is, in the order of ``encoders.model_part``: ``value``, ``probability`` or ``logit``). A model
        of several outputs gives a list of them, in the order of its ``output_names``.

    Raises:
        InvalidArgument: the definition isn't allowed; checked here too, since anyone may call a worker
            function.
        TrialFailed: the model does not fit the data, or the memory.
    """
    part = encoders.model_part(spec["encoders"])
    config = _config(spec)
    optimizer = compilation.check_optimizer(spec["optimizer"])
    losses = _of_each(spec.get("loss"), part, compilation.check_loss)
    metrics, weighted = (_of_each(spec.get(key), part, _checked_metrics) for key in ("metrics", "weighted_metrics"))
    with one_trial_fails(), fitting_memory(), seeded(seed), _precision(spec):
        model = _model(config, part)
        ends = [_End(*end) for end in zip(part["outputs"], outputs_of(model, part), losses, metrics, weighted)]
        refuse_wide(widest(model), 1)
        refuse_unrolled(model)
        order = in_order(model, part)
        if len(ends) == 1:
            (end,) = ends
            how = {"loss": end.loss, "metrics": end.metrics, "weighted_metrics": end.weighted_metrics or None}
        else:
            ordered = [ends[number] for number in order]
            weights = [(spec.get("loss_weights") or {}).get(end.name, 1.0) for end in ordered]
            how = {
                "loss": [_Tracked(end.loss) for end in ordered], "loss_weights": weights if spec.get("loss_weights") else None,
                "metrics": [end.metrics for end in ordered], "weighted_metrics": [end.weighted_metrics for end in ordered],
            }  # fmt: skip
        model.compile(optimizer=_optimizer(optimizer), jit_compile=False, **how)
        model._symbolic_build(data_batch=batch(_example(part, rows=2), part, order))
        for tracked in how["loss"] if len(ends) > 1 else ():
            tracked.count(model)
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
    return model, [end.kind for end in ends]


def _of_each(given: Any, part: dict, check: Callable[[Any], Any]) -> List[Any]:
    """What a spec says of each output, checked: by its name where there are several; None where it says nothing.

    Raises:
        InvalidArgument: it does not go by name.
    """
    names = [output["name"] for output in part["outputs"]]
    by_name = {None: given} if names == [None] else given or {}
    if not isinstance(by_name, dict) or not set(by_name) <= set(names):
        hint = "Call cerebro.fit, which asks workers for what they can do."
        raise InvalidArgument("what a model of several outputs is compiled with goes by their names", "They are %s." % names, hint)
    return [None if by_name.get(name) is None else check(by_name[name]) for name in names]


def _checked_metrics(given: List[Any]) -> List[Any]:
    return [compilation.check_metric(metric) for metric in given]


class _End:
    """One output, and what it is compiled with.

    Attributes:
        kind: ``value``, ``probability`` or ``logit``.
    """

    def __init__(self, output: dict, tensor: Any, loss: Optional[dict], metrics: Optional[List[Any]], weighted: Optional[List[Any]]):
        _check_output(tensor, output)
        self.name = output["name"]
        divides = output["task"] != "regression"
        logits, units = divides and _ends_linear(tensor), tensor.shape[-1]
        self.loss = _default_loss(units, output, logits) if loss is None else keras.saving.deserialize_keras_object(loss)
        logits = divides and _from_logits(self.loss)
        if loss is not None and loss_forms.one_hot(loss, output, units):
            self.loss = _OneHot(self.loss, units)
        self.kind = "value" if not divides else "logit" if logits else "probability"
        self.metrics = (
            _default_metrics(units, output, logits) if metrics is None else [suited(metric, output, units, logits) for metric in metrics]
        )
        self.weighted_metrics = [suited(metric, output, units, logits) for metric in weighted or ()]


class _OneHot(keras.losses.Loss):
    """A loss that is given one column per class (n, units) of labels that are class numbers (n,)."""

    def __init__(self, loss: keras.losses.Loss, units: int):
        super().__init__(name=loss.name)
        self._loss, self._units = loss, units

    def __call__(self, y_true, y_pred, sample_weight=None):
        return self._loss(tf.one_hot(y_true, self._units, dtype=y_pred.dtype), y_pred, sample_weight)


class _Tracked(keras.losses.Loss):
    """The loss of one of several outputs, whose mean, which Keras reports, is over rows.

    Keras weighs each minibatch by its number of rows where a graph is made for that number alone; in one for any number each counts
    the same, so that the mean would depend on how rows are cut into minibatches, and shards would not add up.
    """

    def __init__(self, loss: keras.losses.Loss):
        super().__init__(name=loss.name)
        self._loss, self._rows = loss, None

    def __call__(self, y_true, y_pred, sample_weight=None):
        self._rows = tf.shape(y_pred)[0]
        return self._loss(y_true, y_pred, sample_weight)

    def count(self, model: keras.Model) -> None:
        """Have the mean of a compiled, built model weigh by rows; Keras updates it after the loss is called."""
        losses = model._compile_loss
        (mean,) = [mean for (_, loss, _, _), mean in zip(losses._flat_losses, losses.metrics) if loss is self]
        update = mean.update_state
        mean.update_state = lambda value, sample_weight=None: update(value, sample_weight=self._rows)


def bare(spec: dict, seed: int) -> keras.Model:
    """Build the model alone, not compiled: its variables are those of :func:`build`, in a third of the time."""
    config = _config(spec)
    with one_trial_fails(), fitting_memory(), seeded(seed), _precision(spec):
        return _model(config, encoders.model_part(spec["encoders"]))


def generators(model: keras.Model) -> List[Tuple[int, bool]]:
    """Return where among a model's variables the states of its random generators are, and whether their layers name a seed."""
    found = {id(g.state): g._initial_seed is not None for layer in model._flatten_layers() for g in layer._seed_generators}
    return [(i, found[id(variable)]) for i, variable in enumerate(model.variables) if id(variable) in found]


def snapshot(variable: keras.Variable) -> np.ndarray:
    """Return a read-only snapshot without a copy: later assignments leave the tensor read here alone."""
    return np.asarray(tf.convert_to_tensor(variable.value))


def body_of(model: keras.Model, spec: dict) -> keras.Model:
    """Return the user's own model within what :func:`build` and :func:`bare` make of it: without the head."""
    return model.layers[-1] if has_head(encoders.model_part(spec["encoders"])) else model


def arranged(model: keras.Model, spec: dict, values: List[Any]) -> Any:
    """Return what there is for each of several outputs, in the order of a part, in the structure in which the user's model gives them."""
    by_name = {output["name"]: value for output, value in zip(encoders.model_part(spec["encoders"])["outputs"], values)}
    body = body_of(model, spec)
    while isinstance(body, keras.Sequential):
        body = body.layers[-1]
    return by_name if isinstance(body._outputs_struct, dict) else [by_name[name] for name in model.output_names]


def _config(spec: dict) -> dict:
    """Return the definition rewritten from what is understood, nothing else; in the precision of the spec."""
    config = definition.bind(placeholders.literal(spec["definition"]), {})
    return config if _precision_of(spec) == "float32" else precision.follow(config)


def _precision_of(spec: dict) -> str:
    name = spec.get("precision") or "float32"
    if name not in precision.POLICIES:
        raise InvalidArgument('unknown precision "%s"' % name, None, "Use one of %s." % ", ".join(precision.POLICIES))
    return name


@contextlib.contextmanager
def _precision(spec: dict) -> Iterator[None]:
    """Let layers that name no dtype of their own be made under the spec's policy."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(_precision_of(spec))
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _model(config: dict, part: dict) -> keras.Model:
    if encoders.sparse(part):
        config = definition.with_sparse(config, [(given["name"], given["numbers"]) for given in part["inputs"] if given.get("sparse")])
    return _attach(keras.saving.deserialize_keras_object(config, safe_mode=True), part)


def _example(part: dict, rows: int) -> Dict[str, Any]:
    """Return zeros as a model takes them."""
    known = encoders.sparse(part)
    arrays = {
        name: tf.SparseTensor(np.zeros((0, 2), np.int64), np.zeros(0, dtype), (rows, *shape)) if name in known
        else np.zeros((rows, *shape), dtype)
        for name, (shape, dtype) in encoders.fed(part).items()
    }  # fmt: skip
    for name, output in zip(encoders.label_names(part), part["outputs"]):
        arrays[name] = np.zeros((rows, *output.get("shape", ())), np.int32 if output["task"] == "classification" else np.float32)
    return arrays


def batch(arrays: dict, part: dict, order: List[int]) -> tuple:
    """Return (x, y) or (x, y, weights) of encoded arrays, as Keras' steps take them: y, and weights if each output has its own, in a
    list where there are several outputs.

    Args:
        order: Of :func:`in_order`.
    """
    labels = [arrays[name] for name in encoders.label_names(part)]
    weights = [encoders.weight_of(arrays, number) for number in range(len(labels))]
    if len(labels) == 1:
        y, weight = labels[0], weights[0]
    else:
        y, of_each = ([values[number] for number in order] for values in (labels, weights))
        weight = of_each if encoders.tensor_name("weight", 1) in arrays else weights[0]
    return (feed(arrays, part), y) if weights[0] is None else (feed(arrays, part), y, weight)


def in_order(model: keras.Model, part: dict) -> List[int]:
    """Return the numbers of the outputs of a part in the order in which the model gives them."""
    names = [output["name"] for output in part["outputs"]]
    return [0] if len(names) == 1 else [names.index(name) for name in model.output_names]


def outputs_of(model: keras.Model, part: dict, y: Any = None) -> List[Any]:
    """Return a model's outputs, or what it has given, in the order of a part."""
    found = keras.tree.flatten(model.outputs if y is None else y)
    return found if len(found) == 1 else [found[model.output_names.index(output["name"])] for output in part["outputs"]]


def feed(arrays: dict, part: dict) -> Any:
    """Return what the model takes of encoded arrays: the only tensor of ``encoders.fed``, or a dict of them."""
    x = {name: arrays[name] for name in encoders.fed(part)}
    return x if len(x) > 1 else next(iter(x.values()))


def tensor(array: Any) -> Any:
    """Return rows as TensorFlow holds them: a tensor; of ``sparse.Rows`` a RaggedTensor of entries, int64."""
    if isinstance(array, sparse.Rows):
        return tf.RaggedTensor.from_row_splits(tf.constant(array.packed), tf.constant(array.offsets), validate=False)
    return array if isinstance(array, tf.RaggedTensor) else tf.convert_to_tensor(array)


def rows(array: Any) -> Any:
    """Return rows as numpy holds them, see :func:`tensor`."""
    if isinstance(array, tf.RaggedTensor):
        return sparse.Rows(array.values.numpy().view(sparse.ENTRY), array.row_splits.numpy())
    return overflow.plain(array)


def open_spec(tensor: Any) -> Any:
    """Return the signature of such rows, however many there are."""
    if isinstance(tensor, tf.RaggedTensor):
        return tf.RaggedTensorSpec((None, None), tensor.dtype, 1, tf.int64)
    return tf.TensorSpec((None, *tensor.shape[1:]), tensor.dtype)


def signature(part: dict) -> dict:
    """Return the signature of each tensor of ``encoders.fed``."""
    none = {
        name: sparse.joined([]) if name in encoders.sparse(part) else np.zeros((0, *shape), dtype)
        for name, (shape, dtype) in encoders.fed(part).items()
    }
    return {name: open_spec(tensor(array)) for name, array in none.items()}


def taken(x: Any, part: dict) -> Any:
    """Return rows, in the structure of :func:`feed`, as a model takes them: sparse ones as a SparseTensor, float32."""
    sizes = encoders.sparse(part)
    if not sizes:
        return x
    named = x if isinstance(x, dict) else {name: x for name in encoders.fed(part)}
    return feed({name: _sparse(rows, sizes[name]) if name in sizes else rows for name, rows in named.items()}, part)


def _sparse(rows: tf.RaggedTensor, size: int) -> tf.SparseTensor:
    value, index = tf.unstack(tf.bitcast(rows.values, tf.int32), axis=1)
    places = tf.stack([rows.value_rowids(), tf.cast(index, tf.int64)], axis=1)
    return tf.SparseTensor(places, tf.bitcast(value, tf.float32), tf.stack([rows.nrows(), size]))


def has_head(part: dict) -> bool:
    """Say whether the user's model is within another one, that has a head: only float32 numbers of one input are what it takes itself,
    and only one output is left as it is."""
    (given, *others) = part["inputs"]
    return bool(others or given["codes"] or given.get("dtype") or given.get("layers") or len(part["outputs"]) > 1)


def _adapted(expected: List[Optional[int]], shape: List[int]) -> str:
    """What makes rows of a shape those that a model expects: what keeps together what belongs together."""
    if None in expected or np.prod(expected) != np.prod(shape):
        return '"$input_shape" stands for it in a definition'
    if sorted(expected) == sorted(shape):
        return "a Permute layer at the start brings axes into that order"
    if len(shape) == 1 < len(expected):
        return 'several columns are stacked by the option "inputs" with "stack"; a Reshape layer at the start cuts an array'
    return "a Reshape layer at the start adapts them"


def _attach(body: keras.Model, part: dict) -> keras.Model:
    """Give the user's model its inputs: the numbers, or a head that looks codes up in the graph and joins what is one input; and bring
    several outputs into a list."""
    wanted = {tensor.name: tensor for tensor in getattr(body, "inputs", None) or ()}
    inputs = part["inputs"]
    if len(inputs) != max(1, len(wanted)) or (len(inputs) > 1 and {given["name"] for given in inputs} != set(wanted)):
        raise TrialFailed("the model has the inputs %s, the data has others" % ", ".join(map(json.dumps, wanted)))
    for given in inputs if wanted else ():
        expected, shape = wanted.get(given["name"], body.inputs[0]).shape[1:], encoders.input_shape(given)
        if len(expected) != len(shape) or any(a not in (None, b) for a, b in zip(expected, shape)):
            raise TrialFailed(
                "%s expects rows of shape %s, %s features have shape %s (%s)"
                % ("the model" if len(inputs) == 1 else 'input "%s"' % given["name"], list(expected),
                   "the" if len(inputs) == 1 else "its", shape, _adapted(list(expected), shape))
            )  # fmt: skip
    named = _named_outputs(body)
    if len(named) != len(part["outputs"]) or (len(named) > 1 and set(named) != {output["name"] for output in part["outputs"]}):
        raise TrialFailed("the model has the outputs %s, there are labels for others" % ", ".join(map(json.dumps, named)))
    if not has_head(part):
        if not body.built:
            body.build((None, *inputs[0]["numbers"]))
        return body
    fed, known = encoders.fed(part), encoders.sparse(part)
    tensors = {name: keras.Input(shape, dtype=dtype, name=name, sparse=name in known) for name, (shape, dtype) in fed.items()}
    joined = {given["name"]: _joined(given, number, tensors) for number, given in enumerate(inputs)}
    if len(inputs) > 1:
        x = keras.tree.map_structure(lambda tensor: joined[tensor.name], body._inputs_struct)
    else:
        (x,) = joined.values()
    y = body(x)
    if len(named) == 1:
        return keras.Model(feed(tensors, part), y)
    model = keras.Model(feed(tensors, part), [y[name] for name in named] if isinstance(y, dict) else list(y))
    model.output_names = named  # Keras would name them all after the body
    return model


def _named_outputs(body: keras.Model) -> List[Optional[str]]:
    """The names of a model's outputs, in order: keys of a dictionary, else layers; None of a single one."""
    if isinstance(body, keras.Sequential):
        return _named_outputs(body.layers[-1]) if isinstance(body.layers[-1], keras.Model) else [None]
    given = body._outputs_struct
    names = sorted(given) if isinstance(given, dict) else body.output_names
    return [None] if len(names) == 1 else list(names)


def _joined(given: dict, number: int, tensors: dict) -> Any:
    """Join what goes to one input: its numbers, then its codes, looked up; its layers follow."""
    if any(code["encoder"] == "index" for code in given["codes"]):
        return tensors[encoders.tensor_name("codes", number)]
    pieces = [tensors[name] for name in [encoders.tensor_name("numbers", number)] if given["numbers"] is not None]
    for i, code in enumerate(given["codes"]):
        column = tensors[encoders.tensor_name("codes", number)][:, i]
        if code["encoder"] == "embedding":
            name = encoders.tensor_name("embedding_%d" % i, number)
            pieces.append(keras.layers.Embedding(code["size"], code["dim"], name=name)(column))
        else:
            name = encoders.tensor_name("one_hot_%d" % i, number)
            pieces.append(keras.layers.CategoryEncoding(code["size"], "one_hot", name=name)(column))
    x = keras.layers.Concatenate(name=encoders.tensor_name("features", number))(pieces) if len(pieces) > 1 else pieces[0]
    if given.get("layers"):  # read as a model is, nothing else gets to Keras
        for layer in definition.full({"layers": given["layers"]})["config"]["layers"]:
            x = keras.saving.deserialize_keras_object(layer, safe_mode=True)(x)
    return x


def _check_output(tensor: Any, part: dict) -> None:
    shape, of = tensor.shape, "the model's output" if part["name"] is None else "output %s of the model" % json.dumps(part["name"])
    if "shape" in part:
        if list(shape[1:]) != part["shape"]:
            raise TrialFailed(
                "%s has shape %s per row, the label has shape %s (a Reshape layer at the end adapts it)"
                % (of, list(shape[1:]), part["shape"])
            )
        return
    if len(shape) != 2:
        raise TrialFailed(
            "%s has shape %s per row, a label needs one row of units (add Flatten or a pooling layer)" % (of, list(shape[1:]))
        )
    units, classes = shape[1], part["classes"]
    of = "the model" if part["name"] is None else of
    if part["task"] == "regression" and units != 1:
        raise TrialFailed("%s has %s output units, a regression label needs 1" % (of, units))
    if part["task"] == "classification" and units < classes and not (units == 1 and classes == 2):
        raise TrialFailed("%s has %s, the label has %d classes" % (of, counted(units, "output unit"), classes))


def _ends_linear(tensor: Any) -> bool:
    """Say whether the last activation before an output is linear, so that it holds logits."""
    while True:
        operation, node, place = tensor._keras_history
        inputs = operation._inbound_nodes[node].input_tensors
        if isinstance(operation, keras.Model):
            tensor = operation.outputs[place]
        elif isinstance(operation, _PASSING) and len(inputs) == 1:
            tensor = inputs[0]
        elif isinstance(operation, keras.layers.Softmax):
            return False
        else:
            return getattr(operation, "activation", keras.activations.linear) is keras.activations.linear


def _from_logits(loss: Any) -> bool:
    if hasattr(loss, "from_logits"):
        return bool(loss.from_logits)
    return bool(getattr(loss, "_fn_kwargs", {}).get("from_logits", False))


def _default_loss(units: int, part: dict, logits: bool) -> keras.losses.Loss:
    if part["task"] == "regression":
        return keras.losses.MeanSquaredError()
    if part["task"] == "multi_label" or units == 1:
        return keras.losses.BinaryCrossentropy(from_logits=logits)
    return keras.losses.SparseCategoricalCrossentropy(from_logits=logits)


def _default_metrics(units: int, part: dict, logits: bool) -> List[keras.metrics.Metric]:
    if part["task"] == "regression":
        return [keras.metrics.MeanAbsoluteError(name="mae")]
    if part["task"] == "multi_label" or units == 1:
        return [keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0 if logits else 0.5)]
    return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]


def _optimizer(config: dict) -> keras.optimizers.Optimizer:
    rate = config["config"].get("learning_rate")
    if isinstance(rate, dict) and rate.get("module") is None:  # Keras finds a schedule by its module only
        rate = {**rate, "module": "keras.optimizers.schedules", "registered_name": None}
        config = {**config, "config": {**config["config"], "learning_rate": rate}}
    return keras.saving.deserialize_keras_object(config)


def learning_rate(spec: dict) -> Optional[float]:
    """Return the learning rate that an optimizer of this spec begins with, None if it is a schedule."""
    checked = compilation.check_optimizer(spec["optimizer"])
    rate = checked["config"].get("learning_rate")
    if isinstance(rate, (int, float)):
        return float(rate)
    with one_trial_fails():
        optimizer = _optimizer(checked)
    rate = learning_rate_variable(optimizer)
    return None if rate is None else float(rate)


def inner_optimizer(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Return the optimizer that trains: the one within where Keras scales the loss (``mixed_float16``)."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def learning_rate_variable(optimizer: keras.optimizers.Optimizer) -> Optional[Any]:
    """Return the optimizer's learning rate if it is a variable, None if it is a schedule."""
    rate = inner_optimizer(optimizer)._learning_rate
    return rate if hasattr(rate, "assign") else None
