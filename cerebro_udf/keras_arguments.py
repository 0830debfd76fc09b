"""What the arguments of Keras' layers, initializers, regularizers, constraints, losses and metrics may be. Pure.

Keras checks some of it when the object is made, on a segment, and some of it never; here it is checked before anything starts.
Arguments without a form here are Keras' to judge, and so is what several of them come to together. A test holds the tables against
the installed Keras: what is accepted here Keras makes. Optimizers and schedules are in ``optimizers``,
and how large an argument may be that decides about time and memory in ``keras_bounds``.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Optional

from cerebro_udf.forms import MAX_WHOLE, Either, Flag, Float, Form, Items, Number, Only, Text, Word, Wrong

_COUNT = Number(1, MAX_WHOLE, whole=True)
_FROM_0 = Number(0, MAX_WHOLE, whole=True)
_WHOLE = Number(-MAX_WHOLE, MAX_WHOLE, whole=True)
_ANY = Number()
_FLAG = Flag()
_FRACTION = Number(0, 1)
_NOT_NEGATIVE = Number(0)
_POSITIVE = Number(0, above=True)
_AXES = Either(_WHOLE, Items(_WHOLE))
_SEED = Either(_WHOLE, None)
_PAIR = Items(_ANY, 2)
_CONVOLUTION = Word("valid same", folded=True)
_MODES = "int one_hot multi_hot count"
_LENGTHS = Items(Either(_COUNT, None), least=0)


class _BatchShape(Form):
    """The shape of a minibatch, or null. That a model was built for a number of rows is left out: the option ``batch_size`` says it."""

    def fits(self, value: Any) -> bool:
        return value is None or (_LENGTHS.fits(value) and bool(value))

    def taken(self, value: Any) -> Any:
        return None if value is None else [None, *_LENGTHS.taken(value)[1:]]

    def __str__(self) -> str:
        return "a list of null and the lengths of a row's axes"


class _BatchSize(Form):
    """A number of rows, which is left out; or null."""

    def fits(self, value: Any) -> bool:
        return value is None or _COUNT.fits(value)

    def taken(self, value: Any) -> Any:
        return None

    def __str__(self) -> str:
        return str(_COUNT)


def _around(low: float, high: float, above: bool = False) -> Form:
    """By how much rows are varied: a number, or the two between which it is drawn."""
    number = Number(low, high, above=above)
    return Either(number, Items(number, 2))


_NEVER_STATEFUL = Only(
    False, "false",
    "A stateful layer goes on from the minibatch before, and minibatches are drawn at random here: put what belongs together into one row.",
)  # fmt: skip


def _each(form: Form, names: str) -> Dict[str, Form]:
    return dict.fromkeys(names.split(), form)


# By name of the argument, whichever class has it.
_LAYERS = {
    **_each(
        _COUNT,
        "units filters depth_multiplier groups input_dim output_dim num_tokens num_heads key_dim head_dim num_query_heads num_bins "
        "num_key_value_heads n height width power_iterations frame_length max_number num_ops num_chains chain_depth bins "
        "fft_length sequence_stride sampling_rate num_mel_bins",
    ),
    **_each(Either(_COUNT, None), "value_dim frame_step output_sequence_length sliding_window sequence_length"),
    "max_tokens": Either(Number(2, MAX_WHOLE, whole=True), None),
    "num_oov_indices": _FROM_0,
    **_each(_FRACTION, "rate dropout recurrent_dropout momentum renorm_momentum"),
    **_each(_NOT_NEGATIVE, "l1 l2 epsilon negative_slope threshold stddev"),
    **_each(Either(_NOT_NEGATIVE, None), "max_value"),
    **_each(
        _FLAG,
        "use_bias center scale return_sequences return_state go_backwards unroll unit_forget_bias reset_after zero_output_for_mask "
        "keepdims mask_zero normalize sparse invert pad_to_max_tokens crop_to_aspect_ratio pad_to_aspect_ratio antialias use_scale "
        "use_gate tie_weights renorm synchronized optional periodic expand_dims power_to_db all_ops",
    ),
    **_each(Either(_FLAG, None), "flash_attention"),
    **_each(_SEED, "seed"),
    **_each(Either(Word("channels_last channels_first"), None), "data_format"),
    "stateful": _NEVER_STATEFUL,
    "axis": _AXES,
    "alpha": _ANY,
    "axes": Either(_WHOLE, Items(_WHOLE, 2)),
    "dims": Items(_COUNT),
    "noise_shape": Either(Items(Either(_COUNT, None)), None),
    "equation": Text(),
    "bias_axes": Either(Text(), None),
    "merge_mode": Either(Word("sum mul concat ave"), None),
    "attention_axes": Either(_AXES, None),
    "shared_axes": Either(Items(_COUNT), None),
    "padding": _CONVOLUTION,
    "shape": Either(_LENGTHS, None),
    "batch_shape": _BatchShape(),
    "target_shape": Items(Number(-1, MAX_WHOLE, whole=True), least=0),
    "value_range": _PAIR,
    "fill_value": Either(_ANY, None),
    **_each(_around(0, 1), "x_factor y_factor addition_factor threshold_factor sigma"),
    **_each(_around(-1, 1), "height_factor width_factor"),
    **_each(Word("reflect wrap constant nearest"), "fill_mode"),
    **_each(Word("nearest bilinear"), "interpolation"),
}  # fmt: skip

# A number for all axes over which a layer moves, or one for each of them: as many as its name says.
_PER_AXIS = {
    **_each(_COUNT, "kernel_size dilation_rate pool_size size output_size strides"),
    **_each(_FROM_0, "output_padding"),
}  # fmt: skip
_NULL_PER_AXIS = frozenset(["output_padding"])

# Of one class.
_OWN = {
    "UpSampling1D.size": _COUNT,
    "MaxNumBoundingBoxes.fill_value": _ANY,
    **_each(Number(0, 1, below=True), "GaussianDropout.rate AlphaDropout.rate"),
    **_each(_FRACTION, "GaussianNoise.stddev"),
    **_each(Either(_COUNT, None), "Discretization.num_bins STFTSpectrogram.fft_length"),
    **_each(_WHOLE, "BatchNormalization.axis Concatenate.axis GroupNormalization.axis"),
    **_each(Either(_AXES, None), "Normalization.axis"),
    **_each(Number(0, 1, above=True, below=True), "Discretization.epsilon"),
    **_each(Either(_COUNT, Number(-1, -1, whole=True)), "GroupNormalization.groups"),
    **_each(Either(_ANY, Items(_ANY)), "Rescaling.scale Rescaling.offset"),
    **_each(_around(0, 1), "RandomErasing.scale RandomElasticTransform.scale"),
    **_each(_FRACTION, "RandomPerspective.scale RandomGrayscale.factor"),
    **_each(_around(-1, 1), "RandomBrightness.factor RandomRotation.factor RandomColorDegeneration.factor RandomSaturation.factor"),
    **_each(
        _around(0, 1),
        "CutMix.factor RandomContrast.factor RandomElasticTransform.factor RandomErasing.factor RandomGaussianBlur.factor "
        "RandomHue.factor RandomInvert.factor RandomPerspective.factor RandomSharpness.factor AugMix.factor RandAugment.factor",
    ),
    **_each(_around(1, 8), "RandomPosterization.factor"),
    **_each(_around(-1, 1, above=True), "RandomZoom.height_factor"),
    **_each(Either(_around(-1, 1, above=True), None), "RandomZoom.width_factor"),
    **_each(Either(_around(-1, 1), None), "RandomColorJitter.brightness_factor RandomColorJitter.saturation_factor"),
    **_each(Either(_around(0, 1), None), "RandomColorJitter.contrast_factor RandomColorJitter.hue_factor"),
    **_each(Word("horizontal vertical horizontal_and_vertical"), "RandomFlip.mode"),
    **_each(Word("valid same causal", folded=True), "Conv1D.padding"),
    **_each(Either(_FROM_0, Items(_FROM_0, 2)), "Cropping1D.padding ZeroPadding1D.padding Cropping1D.cropping"),
    **{
        "%s%dD.%s" % (name, rank, key): Either(_FROM_0, Items(Either(_FROM_0, Items(_FROM_0, 2)), rank))
        for name, key in (("Cropping", "cropping"), ("ZeroPadding", "padding"))
        for rank in (2, 3)
    },
    **_each(Either(_COUNT, Items(Either(_COUNT, None))), "EinsumDense.output_shape"),
    **_each(Either(_COUNT, Items(_COUNT), None), "MultiHeadAttention.output_shape"),
    **_each(Word("dot concat"), "Attention.score_mode"),
    **_each(Word("concat scaled"), "AdditiveAttention.score_mode"),
    **_each(Word("one_hot multi_hot count"), "CategoryEncoding.output_mode"),
    **_each(Word(_MODES), "Discretization.output_mode Hashing.output_mode HashedCrossing.output_mode"),
    **_each(Word(_MODES + " tf_idf"), "IntegerLookup.output_mode StringLookup.output_mode TextVectorization.output_mode"),
    **_each(Either(_FLAG, Word("auto")), "GRU.use_cudnn LSTM.use_cudnn"),
    **_each(Number(0, above=True), "MixUp.alpha AugMix.alpha"),
    "InputLayer.batch_size": _BatchSize(),
    **_each(Either(_FLAG, None), "InputLayer.sparse InputLayer.ragged"),
}  # fmt: skip

_INITIALIZERS = {
    "value": Either(_ANY, Items(_ANY)),
    **_each(_SEED, "seed"),
    **_each(_ANY, "gain mean minval maxval"),
    **_each(_NOT_NEGATIVE, "stddev"),
    **_each(_POSITIVE, "scale"),
    **_each(Word("fan_in fan_out fan_avg"), "mode"),
    **_each(Word("truncated_normal untruncated_normal uniform"), "distribution"),
}

_REGULARIZERS = {**_each(_NOT_NEGATIVE, "l1 l2 factor"), "mode": Word("rows columns")}

_CONSTRAINTS = {**_each(_NOT_NEGATIVE, "min_value max_value"), "rate": _FRACTION, "axis": _AXES}

_LOSSES = {
    **_each(_FLAG, "from_logits apply_class_balancing remove_diagonal"),
    **_each(_FRACTION, "label_smoothing"),
    "axis": _WHOLE,
    "reduction": Either(Word("sum_over_batch_size sum mean mean_with_sample_weight none"), None),
    "delta": _POSITIVE,
    "q": Number(0, 1, above=True, below=True),
    **_each(_NOT_NEGATIVE, "gamma alpha beta margin"),
    "ignore_class": Either(_WHOLE, None),
    **_each(Either(_AXES, None), "Dice.axis Tversky.axis"),
    "BinaryFocalCrossentropy.alpha": _FRACTION,
    "CategoricalFocalCrossentropy.alpha": Either(_NOT_NEGATIVE, Items(_NOT_NEGATIVE)),
    "Circle.gamma": _POSITIVE,
}

_METRICS = {
    **_each(_FLAG, "from_logits multi_label sparse_y_true sparse_y_pred from_sorted_ids"),
    "num_thresholds": Number(2, MAX_WHOLE, whole=True),
    "curve": Word("ROC PR PRGAIN"),
    "summation_method": Word("interpolation minoring majoring"),
    "thresholds": Either(_FRACTION, Items(_FRACTION), None),
    "AUC.thresholds": Either(Items(_FRACTION), None),
    "threshold": _FRACTION,
    **_each(Either(Float(0, 1, above=True), None), "F1Score.threshold FBetaScore.threshold"),
    **_each(Either(_COUNT, None), "num_labels top_k"),
    "label_weights": Either(Items(_NOT_NEGATIVE), None),
    "class_id": Either(_FROM_0, None),
    "target_class_ids": Items(_FROM_0),
    "BinaryIoU.target_class_ids": Items(Number(0, 1, whole=True)),
    "num_classes": Number(2, MAX_WHOLE, whole=True),
    "ignore_class": Either(_WHOLE, None),
    **_each(Either(Word("micro macro weighted"), None), "average"),
    "class_aggregation": Either(Word("uniform_average variance_weighted_average"), None),
    "beta": Float(0, above=True),
    **_each(_FRACTION, "recall precision specificity sensitivity label_smoothing"),
    "k": _COUNT,
    "num_regressors": _FROM_0,
    "axis": _WHOLE,
}

_BY_KIND = {
    "layer": {**_LAYERS, **_OWN}, "initializer": _INITIALIZERS, "regularizer": _REGULARIZERS, "constraint": _CONSTRAINTS,
    "loss": _LOSSES, "metric": _METRICS,
}  # fmt: skip

# Arguments without a default; "a|b": one of them.
_NEEDED = {
    "activation": "Activation",
    "output_size": "AdaptiveAveragePooling1D AdaptiveAveragePooling2D AdaptiveAveragePooling3D AdaptiveMaxPooling1D "
    "AdaptiveMaxPooling2D AdaptiveMaxPooling3D",
    "rate": "AlphaDropout Dropout GaussianDropout SpatialDropout1D SpatialDropout2D SpatialDropout3D",
    "pool_size": "AveragePooling1D AveragePooling2D AveragePooling3D",
    "layer": "Bidirectional SpectralNormalization TimeDistributed",
    "height width": "CenterCrop RandomCrop Resizing",
    "filters kernel_size": "Conv1D Conv1DTranspose Conv2D Conv2DTranspose Conv3D Conv3DTranspose ConvLSTM1D ConvLSTM2D ConvLSTM3D "
    "SeparableConv1D SeparableConv2D",
    "units": "Dense GRU GRUCell LSTM LSTMCell SimpleRNN SimpleRNNCell",
    "kernel_size": "DepthwiseConv1D DepthwiseConv2D",
    "axes": "Dot",
    "equation output_shape": "EinsumDense",
    "input_dim output_dim": "Embedding ReversibleEmbedding",
    "stddev": "GaussianNoise",
    "head_dim num_query_heads num_key_value_heads": "GroupQueryAttention",
    "num_bins": "HashedCrossing Hashing",
    "num_bins|bin_boundaries": "Discretization",
    "num_tokens": "CategoryEncoding",
    "shape|batch_shape": "InputLayer",
    "max_number": "MaxNumBoundingBoxes",
    "num_heads key_dim": "MultiHeadAttention",
    "dims": "Permute",
    "layers": "Pipeline",
    "cell": "RNN",
    "factor": "RandomBrightness RandomColorDegeneration RandomContrast RandomHue RandomPosterization RandomRotation RandomSaturation "
    "RandomSharpness",
    "height_factor width_factor": "RandomTranslation",
    "height_factor": "RandomZoom",
    "n": "RepeatVector",
    "scale": "Rescaling",
    "target_shape": "Reshape",
    "cells": "StackedRNNCells",
    "num_classes target_class_ids": "IoU OneHotIoU",
    "num_classes": "MeanIoU OneHotMeanIoU",
    "recall": "PrecisionAtRecall",
    "precision": "RecallAtPrecision",
    "specificity": "SensitivityAtSpecificity",
    "sensitivity": "SpecificityAtSensitivity",
}
_NEEDED_BY = {name: arguments.split() for arguments, classes in _NEEDED.items() for name in classes.split()}


def form(kind: str, name: str, key: str) -> Optional[Form]:
    """Return the form of an argument of a class, None if nothing is said of it here.

    Args:
        kind: ``layer``, ``initializer``, ``regularizer``, ``constraint``, ``loss`` or ``metric``.
    """
    forms = _BY_KIND[kind]
    found = forms.get("%s.%s" % (name, key), forms.get(key))
    dimensions = re.search(r"(\d)D", name)
    if kind == "layer" and found is None and key in _PER_AXIS and dimensions:
        found = Either(_PER_AXIS[key], Items(_PER_AXIS[key], int(dimensions.group(1))))
        return Either(found, None) if key in _NULL_PER_AXIS or (key == "strides" and "Pooling" in name) else found
    return found


def refuse_missing(name: str, config: Dict[str, Any]) -> None:
    """Refuse a class that lacks an argument which has no default.

    Raises:
        Wrong.
    """
    for needed in _NEEDED_BY.get(name, ()):
        alternatives = needed.split("|")
        if not any(key in config for key in alternatives):
            raise Wrong("%s needs %s" % (name, " or ".join(alternatives)), None, 'Add "%s".' % alternatives[0])
