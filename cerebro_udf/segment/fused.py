"""Trials of one program, stacked along a new axis and trained as one.

Keras' own step of training is written once, for one member, over values in the place of variables
(``keras.StatelessScope``), and ``tf.vectorized_map`` makes it one over stacks: forward pass, loss, metrics and the
optimizer's update. Each minibatch is read once, and one operation does what each member had an operation for. Every
member keeps its own weights, optimizer variables, learning rate and step count, so it may be trained as one with others in
one visit, and alone in the next. Random generators of members stand at the same place (``seeds.generator_seed``): what they
give is drawn once for all, and is what each would draw alone.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from cerebro_udf.errors import TrialFailed
from cerebro_udf.segment import memory, state
from cerebro_udf.segment.program import Program

from cerebro_udf.segment import adam  # isort: skip  (program says first how TensorFlow has to start)
import keras  # isort: skip
import tensorflow as tf  # isort: skip
from keras.src.backend.tensorflow.optimizer import TFOptimizer  # isort: skip
from keras.src.optimizers.base_optimizer import BaseOptimizer  # isort: skip
from tensorflow.python.ops.parallel_for import pfor  # isort: skip

# By how much a weight or a metric may differ after an epoch from what unfused training gives, relative to the largest of
# its array. Both do the same operations in float32 on the same rows with the same random numbers, and round differently
# where a product of matrices adds up in another order. (Where training is chaotic, differences grow with the steps.)
TOLERANCE = 1e-4

# The largest stack of states, in bytes: a program of larger ones is not short of work, and its stacks would stay here.
STACK_BYTES = 256 * 2**20

_GROUPS = ("model", "optimizer", "metric")


class FusedProgram(Program):
    """Members that are trained and validated as one; ``train`` and ``validate`` are those of ``Program``.

    Args:
        program: The members' program.
        size: How many members, > 1.

    Raises:
        TrialFailed: the stacks don't fit the memory, or are larger than what gains by it. Tracing raises it too, where
            TensorFlow has no vectorized form of an operation.
    """

    def __init__(self, program: Program, size: int):
        needed = size * sum(np.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in program._expected.values())
        if needed > min(STACK_BYTES, memory.available() // 4):  # stacks, gradients, and what an update makes in between
            raise TrialFailed("stacks of %d states take %.1f GB" % (size, needed / 1e9))
        self.size = size
        self.signature, self.part, self._about, self._order = program.signature, program.part, program._about, program._order
        self._single = program
        self.width = size * program.width
        self._expected = program._expected
        self.generators = program.generators
        self.model = _Members(program, program._named(*_GROUPS), size)
        self._loops: Dict[Any, Any] = {}
        self._seconds_per_batch: Dict[tuple, float] = {}

    def set_states(self, blobs: Sequence[bytes], rates: Sequence[Optional[float]], *groups: str) -> None:
        """Stack states; where there are fewer than members, the last one stands in for those that lack.

        Args:
            blobs: One or more, at most ``size``.
            rates: The learning rate of each, None: as in its state. Without effect where a schedule decides.
            groups: Of ``model``, ``optimizer`` and ``metric``; none: all.

        Raises:
            StateMismatch: a blob is damaged or belongs to another program; nothing was assigned.
            TrialFailed: their random generators or counts of steps differ; nothing was assigned.
        """
        prefixes = _prefixes(groups)
        expected = {name: what for name, what in self._expected.items() if name.startswith(prefixes)}
        members = []
        for blob, rate in zip(blobs, rates):
            arrays = {name: array for name, array in state.unpack(blob)[0].items() if name.startswith(prefixes)}
            state.check(arrays, expected)
            name = self._single._rate_name
            if rate is not None and name in arrays:
                arrays[name] = np.asarray(rate, arrays[name].dtype)
            members.append(arrays)
        members += members[-1:] * (self.size - len(members))
        for name in [*self.generators, *self.model.steps]:
            if name in expected and any((arrays[name] != members[0][name]).any() for arrays in members):
                raise TrialFailed("the members' %s differ" % ("random generators" if name in self.generators else "steps"))
        for name in expected:
            self.model.stacks[name].assign(np.stack([arrays[name] for arrays in members]))

    def set_dropouts(self, rates: Sequence[Sequence[float]]) -> None:
        """Have each member's layers drop at its own rates, see ``Program.set_dropout``."""
        values = [self._single.dropout.values(member) for member in rates]
        self.model.dropout.assign(np.stack(values + values[-1:] * (self.size - len(values))))

    def reset_metrics(self) -> None:
        """Set every member's metric accumulators to what they are before the first row."""
        for name, stack in self.model.stacks.items():
            if name.startswith("metric/"):
                beginning = self._single._unseeded[name]
                stack.assign(np.broadcast_to(beginning, (self.size, *beginning.shape)))

    def get_states(self, *groups: str) -> List[bytes]:
        """Return every member's state, or only some groups of it, as of :meth:`set_states`."""
        prefixes = _prefixes(groups)
        stacks = {name: stack.numpy() for name, stack in self.model.stacks.items() if name.startswith(prefixes)}
        return [self._pack({name: stack[i] for name, stack in stacks.items()}) for i in range(self.size)]

    def learning_rates(self) -> List[float]:
        """Return the rate that each member's next minibatch would be trained with."""
        name, optimizer = self._single._rate_name, self._single.model.optimizer
        if name is not None:
            return self.model.stacks[name].numpy().astype(float).tolist()
        (steps,) = self.model.steps
        return [float(optimizer._learning_rate(step)) for step in self.model.stacks[steps].numpy()]


def _prefixes(groups: Sequence[str]) -> Tuple[str, ...]:
    return tuple(group + "/" for group in groups or _GROUPS)


class _Members:
    """Stands in for a model in a program's loops: its steps are those of all members at once.

    Attributes:
        variables: The model's, by the names of a state.
        stacks: By the same names; (size, *shape of the variable).
        dropout: Of ``DropoutRates.values``; (size, count, 2).
        steps: The name of the optimizer's count of steps.
    """

    def __init__(self, program: Program, variables: Dict[str, Any], size: int):
        self._model, self._generators, self._dropout = program.model, list(program.generators), program.dropout
        self.variables, self._size = variables, size
        trained = {id(variable) for variable in self._model.trainable_variables}
        self._trained = [name for name, variable in variables.items() if id(variable) in trained]
        self.stacks = {
            name: tf.Variable(tf.zeros((size, *variable.shape), variable.dtype), trainable=False)
            for name, variable in variables.items()
        }
        self.dropout = tf.Variable(tf.stack([self._dropout.current] * size), trainable=False)
        self.steps = [name for name, variable in variables.items() if variable is self._model.optimizer.iterations]
        self._adam = adam.of(self._model, {id(v): name for name, v in variables.items()}, self.stacks)

    def train_step(self, data: tuple) -> None:
        """Do what Keras' ``train_step`` does, for every member."""
        values = self._values(*(_GROUPS if self._adam is None else ("model", "metric")))
        weights = [values[name] for name in self._trained]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            losses, changed = self._forward(data, values, training=True)
            total = tf.reduce_sum(losses)  # no member's gradient depends on another's loss
        gradients = zip(self._trained, tape.gradient(total, weights))
        gradients = {name: gradient for name, gradient in gradients if gradient is not None}
        if gradients and self._adam is not None:
            self._adam.apply(gradients)
        elif gradients:
            updated = {n: value for n, value in values.items() if n in self._trained or n.startswith("optimizer/")}
            changed = {**changed, **_each(self._update, (gradients, updated))}
        self._assign(changed)

    def test_step(self, data: tuple) -> None:
        """Do what Keras' ``test_step`` does, for every member."""
        self._assign(self._forward(data, self._values("model", "metric"), training=False)[1])

    def _values(self, *groups: str) -> Dict[str, tf.Tensor]:
        return {name: stack.read_value() for name, stack in self.stacks.items() if name.startswith(_prefixes(groups))}

    def _assign(self, changed: Dict[str, tf.Tensor]) -> None:
        for name, value in changed.items():
            self.stacks[name].assign(value)

    def _forward(self, data: tuple, values: Dict[str, tf.Tensor], training: bool) -> Tuple[tf.Tensor, Dict[str, tf.Tensor]]:
        """Return (losses (size,), the stacks that a forward pass and the metrics change)."""
        model, (x, y, weight) = self._model, (*data, None)[:3]
        keywords = {"training": training} if model._call_has_training_arg else {}
        shared = {name: values[name][0] for name in self._generators}

        def member(element: tuple) -> tuple:
            inputs, held = _with_numbers(x, element[0]), {**element[1], **shared}
            with self._scope(held) as scope, self._dropout.member(element[2]):
                predicted = model(inputs, **keywords)
                loss = model._compute_loss(x=inputs, y=y, y_pred=predicted, sample_weight=weight, training=training)
                model._loss_tracker.update_state(loss, sample_weight=tf.shape(tf.nest.flatten(y)[0])[0])
                model.compute_metrics(inputs, y, predicted, sample_weight=weight)
            return loss, self._changed(scope, held)

        held = {n: value for n, value in values.items() if n not in shared and not n.startswith("optimizer/")}
        return _each(member, (_repeated(x, self._size), held, self.dropout.read_value()))

    def _update(self, element: tuple) -> Dict[str, tf.Tensor]:
        """One member's optimizer step: (gradients, values of weights and optimizer) to the values that change."""
        gradients, values = element
        found = [gradients.get(name) for name in self._trained]
        with _stateless(), self._scope(values) as scope:
            self._model.optimizer.apply(found, [self.variables[name] for name in self._trained])
        return self._changed(scope, values)

    def _scope(self, values: Dict[str, tf.Tensor]) -> keras.StatelessScope:
        return keras.StatelessScope([(self.variables[name], value) for name, value in values.items()], collect_losses=True)

    def _changed(self, scope: keras.StatelessScope, values: Dict[str, tf.Tensor]) -> Dict[str, tf.Tensor]:
        found = {name: scope.get_current_value(self.variables[name]) for name in values}
        return {name: value for name, value in found.items() if value is not values[name]}


def _each(function: Callable, elements: Any) -> Any:
    """Return ``tf.vectorized_map``; an operation without a vectorized form is refused, a loop would gain nothing."""
    _register_unrolled()
    return tf.vectorized_map(function, elements, fallback_to_while_loop=False)


def _repeated(x: Any, size: int) -> List[tf.Tensor]:
    """Give every member its own copy of numbers: a batch of products is faster than one product that is transposed."""
    numbers = [tensor for tensor in tf.nest.flatten(x) if tensor.dtype.is_floating]
    repeated = [tf.broadcast_to(tensor, tf.concat([[size], tf.shape(tensor)], 0)) for tensor in numbers]
    return [tf.ensure_shape(tensor, (size, *one.shape)) for tensor, one in zip(repeated, numbers)]


def _with_numbers(x: Any, numbers: List[tf.Tensor]) -> Any:
    own = iter(numbers)
    return tf.nest.map_structure(lambda tensor: next(own) if tensor.dtype.is_floating else tensor, x)


@contextlib.contextmanager
def _stateless() -> Iterator[None]:
    """Have optimizers assign to variables as on Keras' other backends, so that a ``StatelessScope`` sees it.

    TensorFlow's assigns to ``tf.Variable``, for ``tf.distribute``; what is computed is the same.
    """
    names = ("assign", "assign_add", "assign_sub", "_apply_weight_decay", "_backend_update_step", "_clip_by_norm")
    plain = {name: getattr(BaseOptimizer, name) for name in names}
    plain["_var_key"] = lambda self, variable: variable._value._unique_id
    own = {name: vars(TFOptimizer)[name] for name in plain}
    try:
        for name, method in plain.items():
            setattr(TFOptimizer, name, method)
        yield
    finally:
        for name, method in own.items():
            setattr(TFOptimizer, name, method)


# Operations that have no vectorized form in TensorFlow and are cheap: each member's is done by itself.
_UNROLLED = ("Bitcast", "InTopKV2")


def _register_unrolled() -> None:
    for name in _UNROLLED:
        if name not in pfor._pfor_converter_registry:
            pfor.RegisterPFor(name)(_unrolled)


def _unrolled(source):
    """Convert an operation to one for every member, for ``tf.vectorized_map``."""
    inputs = [source.input(i)[:2] for i in range(source.num_inputs)]
    size = next(tensor.shape[0] for tensor, stacked in inputs if stacked)
    columns = [tf.unstack(tensor, size) if stacked else [tensor] * size for tensor, stacked in inputs]
    dtypes, attributes = [output.dtype for output in source.outputs], source.op.node_def.attr
    made = [pfor._create_op(source.op_type, list(row), dtypes, attributes).outputs for row in zip(*columns)]
    return [pfor.wrap(tf.stack(outputs), True) for outputs in zip(*made)]
