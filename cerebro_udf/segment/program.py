"""A compiled model, and the training loop inside TensorFlow.

The loop runs Keras' own ``train_step`` over minibatches inside one ``tf.function``, so that no Python runs
per step; its results are bit for bit those of ``train_on_batch`` over the same minibatches.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from typing import Any, Callable, Dict, Optional, Sequence

import numpy as np
import tensorflow as tf

from cerebro_udf import dropout, encoders, optimizers
from cerebro_udf.segment import network, overflow, seeds, serving, state
from cerebro_udf.segment import weights as begun
from cerebro_udf.segment.beginning import Beginning
from cerebro_udf.segment.varying import DropoutRates

SLICE_SECONDS = 0.25  # the longest that a cancel waits, unless one minibatch takes longer
SLICE_GROWTH = (
    16  # the most by which a slice grows over the one before, while its speed is still being learnt
)


def signature(spec: dict) -> str:
    """Return the signature of a program: a SHA-256 over all that shapes it, learning rate and dropout's rates left out.

    A learning rate that is a number is a variable of the optimizer; a schedule belongs to the graph.
    """
    optimizer = spec["optimizer"]
    if isinstance(optimizer, dict) and isinstance(optimizer.get("config"), dict):
        optimizer = optimizers.but_for_rate(optimizer)
    shaping = {
        "definition": dropout.split(spec["definition"])[0],
        "optimizer": optimizer,
        "loss": spec.get("loss"),
        "metrics": spec.get("metrics"),
        "loss_weights": spec.get("loss_weights"),
        "weighted_metrics": spec.get("weighted_metrics") or None,
        "precision": spec.get("precision") or "float32",
        "encoders": encoders.model_part(spec["encoders"]),
    }
    return hashlib.sha256(json.dumps(shaping, sort_keys=True).encode()).hexdigest()


def cached(programs: Dict[str, "Program"], spec: dict) -> "Program":
    """Return the program of a spec, from the cache or made and put there."""
    key = signature(spec)
    if key not in programs:
        programs[key] = Program(spec)
    return programs[key]


class Program:
    """A compiled model that any trial with the same signature can be loaded into.

    Args:
        spec: ``definition`` (bound Keras JSON), ``optimizer``, ``loss``, ``metrics`` (normalized, None:
            derived from the label), ``encoders`` (whole, or their ``model_part``), and maybe ``weighted_metrics``
            and ``precision`` (the name of a dtype policy). Where there are several outputs, loss, metrics and ``loss_weights`` go by
            their names.

    Raises:
        InvalidArgument: something in the spec isn't allowed.
        TrialFailed: the model does not fit the data, or Keras refuses it.
    """

    def __init__(self, spec: dict):
        self.spec = spec
        self.signature = signature(spec)
        self.part = encoders.model_part(spec["encoders"])
        definition, rates = dropout.split(spec["definition"])
        self.model, self.outputs = network.build({**spec, "definition": definition}, seed=0)
        self._order = network.in_order(self.model, self.part)
        self.dropout = DropoutRates(self.model, len(rates))
        self.set_dropout(rates)
        self.width = network.widest(self.model)
        # Of each random generator, by its name in a state: whether its layer names a seed.
        self.generators = {"model/%d" % i: seeded for i, seeded in network.generators(self.model)}
        self._groups = _variables(self.model)
        self._expected = {
            name: (tuple(variable.shape), variable.dtype)
            for name, variable in self._named("model", "optimizer", "metric").items()
        }
        # What optimizer and metrics begin with depends on no seed: kept from this first build.
        self._unseeded = {
            name: _constant(network.snapshot(variable)) for name, variable in self._named("optimizer", "metric").items()
        }
        self._beginning = Beginning(spec)
        averages = serving.averages(self.model)
        self._about = {"program": self.signature, **({"averages": json.dumps(averages)} if averages else {})}
        if self.generators:
            self._about["generators"] = json.dumps(list(self.generators))
        rate = network.learning_rate_variable(self.model.optimizer)
        self._rate_name = next(
            (name for name, variable in self._named("optimizer").items() if variable is rate), None
        )
        self._loops: Dict[tuple, Any] = {}
        self._seconds_per_batch: Dict[tuple, float] = {}

    def _named(self, *groups: str) -> Dict[str, Any]:
        return {
            "%s/%d" % (group, i): variable
            for group in groups
            for i, variable in enumerate(self._groups[group])
        }

    def initial_state(
        self, seed: int, spec: Optional[dict] = None, weights: Optional[bytes] = None, generators: Optional[int] = None
    ) -> bytes:
        """Make a trial's first state: that of a freshly built model under this seed, or with given weights.

        Args:
            seed: 0 <= seed < 2**31, see ``seeds.trial_seed``.
            spec: Of the same signature; its learning rate goes into the state. None: this program's own.
            weights: See ``weights.assign``; the rest of the model, the optimizer and the generators begin anew.
            generators: The run's seed, from which random generators begin (``seeds.generator_seed``), but for those of layers
                that name a seed. None: they too begin from ``seed``.

        Raises:
            TrialFailed: the weights do not fit the model.
        """
        if weights is None:
            values = self._beginning.values(seed)
        else:
            fresh = network.bare(self.spec, seed)
            begun.assign(fresh, network.body_of(fresh, self.spec), weights)
            values = [network.snapshot(variable) for variable in fresh.variables]
        arrays = {"model/%d" % i: value for i, value in enumerate(values)}
        if generators is not None:
            for position, (name, seeded) in enumerate(self.generators.items()):
                if not seeded:
                    arrays[name] = np.array([seeds.generator_seed(generators, position), 0], arrays[name].dtype)
        arrays.update(self._unseeded)
        if self._rate_name is not None:
            rate = network.learning_rate(spec or self.spec)
            arrays[self._rate_name] = np.asarray(rate, arrays[self._rate_name].dtype)
        return self._pack(arrays)

    def _pack(self, arrays: Dict[str, np.ndarray]) -> bytes:
        return state.pack(arrays, self._about)

    def set_state(self, blob: bytes, *groups: str) -> None:
        """Assign every variable from a state, or only those of some groups.

        Args:
            blob: The state.
            groups: Of ``model``, ``optimizer`` and ``metric``; none: all. Of the others the state's may be another program's.

        Raises:
            StateMismatch: the blob is damaged or belongs to another program; nothing was assigned.
        """
        arrays, _ = state.unpack(blob)
        groups = groups or ("model", "optimizer", "metric")
        named = self._named(*groups)
        arrays = {name: array for name, array in arrays.items() if name.startswith(tuple(group + "/" for group in groups))}
        state.check(arrays, {name: self._expected[name] for name in named})
        for name, variable in named.items():
            variable.value.assign(arrays[name])

    def serve(self, blob: bytes) -> None:
        """Assign the weights of a state that serve, for validation; optimizer and metrics stay as they are.

        Raises:
            StateMismatch: the blob is damaged or belongs to another program; nothing was assigned.
        """
        serving.assign(self.model, blob)

    def get_state(self) -> bytes:
        """Return all variables as a state."""
        return self._pack(
            {name: network.snapshot(variable) for name, variable in self._named("model", "optimizer", "metric").items()}
        )

    def reset_metrics(self) -> None:
        """Set every metric accumulator to what it is before the first row."""
        self.model.reset_metrics()

    def set_learning_rate(self, learning_rate: float) -> None:
        """Assign the learning rate; without effect where a schedule decides."""
        rate = network.learning_rate_variable(self.model.optimizer)
        if rate is not None:
            rate.assign(learning_rate)

    def set_dropout(self, rates: Sequence[float]) -> None:
        """Have the layers of dropout drop at these rates, in the order of ``dropout.split``.

        Raises:
            InvalidArgument: there are more or fewer layers, or these are no rates.
        """
        self.dropout.current.assign(self.dropout.values(rates))

    def learning_rate(self) -> float:
        """Return the rate that the next minibatch would be trained with."""
        return float(self.model.optimizer.learning_rate)

    def accumulators(self) -> bytes:
        """Return the metric accumulators as a blob; those of disjoint rows add up (``state.add``)."""
        return self._pack({name: network.snapshot(variable) for name, variable in self._named("metric").items()})

    def results(self, accumulators: Optional[bytes] = None) -> Dict[str, Any]:
        """Return the metrics by Keras' names, ``loss`` first: floats, or lists for metrics of many values.

        Args:
            accumulators: What to compute them from, None: what the program holds. They replace what it holds.
        """
        if accumulators is not None:
            arrays, _ = state.unpack(accumulators)
            named = self._named("metric")
            state.check(arrays, {name: self._expected[name] for name in named})
            for name, variable in named.items():
                variable.value.assign(arrays[name])
        with network.one_trial_fails():
            return {
                name: np.asarray(value).astype(np.float64).tolist()
                for name, value in self.model.get_metrics_result().items()
            }

    def train(
        self,
        arrays: Dict[str, Any],
        order: np.ndarray,
        batch_size: int,
        pulse: Callable[[], None] = lambda: None,
        progress: Callable[[int], None] = lambda rows: None,
    ) -> Dict[str, float]:
        """Train one pass over a shard or a part of it, minibatch by minibatch, the last short one too.

        Args:
            arrays: Those of ``encoders.fed`` and ``encoders.label_names``, and ``weight`` (float32) where rows are weighted, see
                ``shard.by_class``: of n rows, numpy or tensors.
            order: int32 (m,), which rows in which order.
            batch_size: Rows per minibatch, > 0.
            pulse: Called between slices; may raise, the program's variables are then in between.
            progress: Called between slices with the rows trained so far.

        Returns:
            ``rows``, ``batches``, ``train_seconds`` (the loop alone), ``trace_seconds`` (0 if done before), ``reads``: where arrays are
            ``overflow.Streamed``, rows that were in memory (``hits``) and were not (``misses``), and ``read_bytes`` from files.

        Raises:
            TrialFailed: Keras or TensorFlow refused, with the reason in one line.
        """
        return self._run("train", arrays, order, batch_size, pulse, progress)

    def validate(
        self,
        arrays: Dict[str, Any],
        batch_size: int,
        pulse: Callable[[], None] = lambda: None,
        progress: Callable[[int], None] = lambda rows: None,
    ) -> Dict[str, float]:
        """Add a shard's rows to the metric accumulators, weights frozen; see :meth:`train`."""
        return self._run("validate", arrays, None, batch_size, pulse, progress)

    def _run(self, kind: str, arrays, order, batch_size, pulse, progress) -> Dict[str, float]:
        rows = len(arrays["label"]) if order is None else len(order)
        batch_size = max(1, min(batch_size, rows))  # positions are int32: one minibatch more must not overflow
        network.refuse_wide(self.width, batch_size)
        trace_seconds = train_seconds = 0.0
        position, batches = 0, 1
        speed = (kind, batch_size)
        if speed in self._seconds_per_batch:
            batches = max(1, int(SLICE_SECONDS / self._seconds_per_batch[speed]))
        windows = overflow.Windows(arrays, order, batch_size) if overflow.is_streamed(arrays) else None
        if windows is None and rows:
            data, rest = self._tensors(arrays, order)
        with windows or contextlib.nullcontext():
            while position < rows:
                if windows is None:
                    first, count = position, min(rows - position, batches * batch_size)
                else:
                    first, count, window = 0, *windows.take(position, batches)
                    data, rest = self._tensors(window, None if order is None else np.arange(count, dtype=np.int32))
                if position == 0:
                    loop, trace_seconds = self._loop(kind, data, rest)
                started = time.perf_counter()
                with network.one_trial_fails():
                    loop(data, *rest, tf.constant(first), tf.constant(first + count), tf.constant(batch_size)).numpy()
                seconds = time.perf_counter() - started
                train_seconds += seconds
                done = -(-count // batch_size)
                self._seconds_per_batch[speed] = seconds / done
                batches = max(1, min(int(SLICE_SECONDS * done / seconds), done * SLICE_GROWTH))
                position += count
                pulse()
                progress(position)
        return {
            "rows": rows,
            "batches": -(-rows // batch_size),
            "train_seconds": train_seconds,
            "trace_seconds": trace_seconds,
            "reads": {} if windows is None else windows.reads(),
        }

    def _tensors(self, arrays: Dict[str, Any], order: Optional[np.ndarray]) -> tuple:
        """Return what a loop takes before its positions: ((x, y) or (x, y, weights), [the order, if it has one])."""
        with network.one_trial_fails():
            data = tf.nest.map_structure(network.tensor, network.batch(arrays, self.part, self._order))
            return data, [] if order is None else [tf.convert_to_tensor(order)]

    def _loop(self, kind: str, data: tuple, rest: list) -> tuple:
        """Return (concrete function, seconds spent on tracing it now); data is (x, y) or (x, y, weights)."""
        key = kind, len(tf.nest.flatten(data))
        if key in self._loops:
            return self._loops[key], 0.0
        started = time.perf_counter()
        step = self._train_slice if kind == "train" else self._validate_slice
        scalar = tf.TensorSpec((), tf.int32)
        rows = tf.nest.map_structure(network.open_spec, [data, *rest])
        with network.one_trial_fails():
            loop = tf.function(
                step, input_signature=[*rows, scalar, scalar, scalar], autograph=False, jit_compile=False
            ).get_concrete_function()
            # A pass over no rows makes TensorFlow optimize the graph now, outside the time of the loop.
            zero = tf.constant(0)
            loop(data, *rest, zero, zero, tf.constant(1))
        self._loops[key] = loop
        return loop, time.perf_counter() - started

    def _train_slice(self, data, order, start, stop, batch_size):
        def step(position):
            picks = order[position : tf.minimum(position + batch_size, stop)]
            x, *rest = tf.nest.map_structure(lambda t: tf.gather(t, picks), data)
            self.model.train_step((network.taken(x, self.part), *rest))
            return position + batch_size

        return tf.while_loop(lambda position: position < stop, step, [start], parallel_iterations=1)[0]

    def _validate_slice(self, data, start, stop, batch_size):
        def step(position):
            end = tf.minimum(position + batch_size, stop)
            x, *rest = tf.nest.map_structure(lambda t: t[position:end], data)
            self.model.test_step((network.taken(x, self.part), *rest))
            return position + batch_size

        return tf.while_loop(lambda position: position < stop, step, [start], parallel_iterations=1)[0]


def _variables(model) -> Dict[str, list]:
    """Return a model's variables in groups, in the order that a state numbers them."""
    return {
        "model": list(model.variables),
        "optimizer": list(model.optimizer.variables),
        "metric": list(model.metrics_variables),
    }


def _constant(array: np.ndarray) -> np.ndarray:
    """Return an equal array that holds one element only, if all of its elements have the same bytes; else a copy."""
    if array.size:
        parts = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(array.size, array.itemsize)
        if (parts == parts[0]).all():
            return np.broadcast_to(array.reshape(-1)[:1].copy().reshape((1,) * array.ndim), array.shape)
    return array.copy()
