"""Adam for stacked members by TensorFlow's own kernel, which passes over each number once.

Keras' update is made of twelve operations, each of which passes over all weights: a tenth of a step of dense layers that are
trained as one. The formula is the same (Kingma and Ba 2015, the form before section 2.1); rounding differs in the last bits.
"""

from __future__ import annotations

from typing import Any, Dict, Optional

import keras
import tensorflow as tf


class StackedAdam:
    """Updates stacks of weights; made by :func:`of`.

    Args:
        optimizer: Keras' Adam, built.
        names: The name of each of its variables and of the weights, by identity.
        stacks: (size, *shape) by these names.
    """

    def __init__(self, optimizer: Any, names: Dict[int, str], stacks: Dict[str, tf.Variable]):
        self._optimizer, self._stacks = optimizer, stacks
        self._steps, self._rates = (stacks[names[id(v)]] for v in (optimizer.iterations, optimizer._learning_rate))
        self._moments = {
            names[id(weight)]: (stacks[names[id(momentum)]], stacks[names[id(velocity)]])
            for weight, momentum, velocity in zip(optimizer._trainable_variables, optimizer._momentums, optimizer._velocities)
        }
        # What the kernel takes from the weights at a rate of 1: each member's own rate comes after it.
        self._taken = {name: tf.Variable(tf.zeros_like(stacks[name]), trainable=False) for name in self._moments}

    def apply(self, gradients: Dict[str, tf.Tensor]) -> None:
        """Make one step; gradients by name, (size, *shape), of weights that have some."""
        config, step = self._optimizer, tf.cast(self._steps[0] + 1, tf.float32)  # members stand at the same place
        powers = [tf.pow(tf.cast(beta, tf.float32), step) for beta in (config.beta_1, config.beta_2)]
        for name, gradient in gradients.items():
            taken, weights, (momentum, velocity) = self._taken[name], self._stacks[name], self._moments[name]
            taken.assign(tf.zeros_like(taken))
            tf.raw_ops.ResourceApplyAdam(
                var=taken.handle, m=momentum.handle, v=velocity.handle, beta1_power=powers[0], beta2_power=powers[1], lr=1.0,
                beta1=config.beta_1, beta2=config.beta_2, epsilon=config.epsilon, grad=gradient,
            )  # fmt: skip
            rates = tf.reshape(self._rates, [-1] + [1] * (len(weights.shape) - 1))
            weights.assign_add(rates * taken)
        self._steps.assign_add(tf.ones_like(self._steps))


def of(model: keras.Model, names: Dict[int, str], stacks: Dict[str, tf.Variable]) -> Optional[StackedAdam]:
    """Return what updates members of this compiled model, None where Keras' optimizer does more than plain Adam."""
    optimizer = model.optimizer
    plain = type(optimizer) is keras.optimizers.Adam and not any((
        optimizer.amsgrad, optimizer.weight_decay, optimizer.clipnorm, optimizer.global_clipnorm, optimizer.clipvalue,
        optimizer.use_ema, optimizer.gradient_accumulation_steps, optimizer.loss_scale_factor,
    ))  # fmt: skip
    weights = model.trainable_variables
    simple = all(v.constraint is None and keras.backend.standardize_dtype(v.dtype) == "float32" for v in weights)
    if not plain or not simple or not hasattr(optimizer._learning_rate, "assign"):
        return None
    return StackedAdam(optimizer, names, stacks)
