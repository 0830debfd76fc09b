"""Which programs can be fused at all: told from their spec, before TensorFlow is asked."""

from __future__ import annotations

import re
from typing import Optional

from cerebro_udf import encoders
from cerebro_udf.architecture import objects

# Not tried, since they lose (measured on CPUs): one kernel of a convolution keeps a core busy by itself, and members in
# the place of a batch only leave the cache (0.7x); the steps of a recurrent layer are a loop that gains little (1.0x).
LOSING_LAYERS = re.compile(r"Conv|LSTM|GRU|RNN|Bidirectional|TimeDistributed|Attention|Pooling|Random|UpSampling|Resizing")

# These, as Keras computes them, agree with unfused training up to rounding; others are not tried.
OPTIMIZERS = frozenset("SGD Adam AdamW Adamax Nadam RMSprop Adagrad Adadelta Lion Ftrl".split())

# Settings under which an optimizer branches by its step, or keeps weights beside the weights.
BRANCHING = ("use_ema", "ema_overwrite_frequency", "gradient_accumulation_steps", "loss_scale_factor")

# The gradient of an embedding is a list of rows; Keras clips and squares them before rows of the same code are added up,
# which only a stack of lists could follow. Where nothing but sums is made of them there is no difference.
SUMMING_OPTIMIZERS = frozenset(["SGD"])
CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")


def refusal(spec: dict) -> Optional[str]:
    """Say why trials of this program are not trained as one, None if that may be tried.

    Args:
        spec: See ``program.Program``.

    Returns:
        The reason, in a few words. None does not promise anything: TensorFlow may have no vectorized form of an
        operation, which shows when the program is traced.
    """
    classes = {found["class_name"] for found in objects(spec["definition"])}
    for name in sorted(classes):
        if LOSING_LAYERS.search(name):
            return "%s loses by it" % name
    if spec.get("precision") not in (None, "float32"):
        return "its precision is %s" % spec["precision"]
    optimizer = spec["optimizer"]
    if optimizer["class_name"] not in OPTIMIZERS:
        return "optimizer %s" % optimizer["class_name"]
    config = optimizer["config"]
    for name in BRANCHING:
        if config.get(name):
            return "optimizer argument %s" % name
    inputs = encoders.model_part(spec["encoders"])["inputs"]
    if any(given.get("sparse") for given in inputs):
        return "its rows are sparse"
    if any(given.get("layers") for given in inputs):
        return "its rows pass layers before the model"
    codes = [code for given in inputs for code in given["codes"]]
    if "Embedding" in classes or any(code["encoder"] == "embedding" for code in codes):
        if optimizer["class_name"] not in SUMMING_OPTIMIZERS or any(config.get(name) for name in CLIPPING):
            return "embeddings under optimizer %s" % optimizer["class_name"]
    return None
