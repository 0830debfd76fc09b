"""What a definition may name: Keras' classes, their arguments and aliases, as plain data.

Static, so that a definition is checked without Keras, and so that nothing outside these tables is ever
looked up by name. ``tests/unit/test_definition.py`` compares them with the installed Keras: a class or an
argument that a new Keras brings is refused until somebody has read it and added it here, or denied it here.

Left out for good: whatever runs code of the definition's own or reads a file. Arguments that only make sense
as Python objects (``weights``, ``input_tensor``) or that nothing here supports (LoRA, quantization) are left
out too, and must be null where a definition written by Keras carries them (see NULL_ARGUMENTS).
"""

from __future__ import annotations

from typing import Dict, Tuple


def _table(classes: Dict[str, str]) -> Dict[str, Tuple[str, ...]]:
    return {name: tuple(arguments.split()) for name, arguments in classes.items()}


def _aliases(names: Dict[str, str]) -> Dict[str, str]:
    return {alias: name for name, aliases in names.items() for alias in aliases.split()}


_BASE = "It is a base class, which does nothing by itself."
_CODE = "It runs code, which no definition holds: write it with Keras' own layers and operations, such as Rescaling or Reshape."
# What Keras has and nobody may name, by the kind of class, with the reason and what to do instead.
DENIED = {
    "layer": {
        "Lambda": _CODE, "TorchModuleWrapper": _CODE, "FlaxLayer": _CODE, "JaxLayer": _CODE,
        "TFSMLayer": "It reads a SavedModel from files: build the model with Keras' layers, and import what model.save() writes.",
        "Layer": _BASE, "Wrapper": _BASE,
    },
    "initializer": {"Initializer": _BASE},
    "regularizer": {"Regularizer": _BASE},
    "constraint": {"Constraint": _BASE},
    "optimizer": {
        "Optimizer": _BASE,
        "MultiOptimizer": "It names layer objects of Python, which JSON cannot: give one optimizer.",
        "LossScaleOptimizer": 'Option "precision": "mixed_float16" brings it along: give the optimizer within.',
    },
    "learning rate schedule": {"LearningRateSchedule": _BASE},
    "loss": {"Loss": _BASE},
    "metric": {"Metric": _BASE, "MeanMetricWrapper": "It is made of a function of Python: name the metric of that function."},
}  # fmt: skip

COMMON_ARGUMENTS = ("activity_regularizer", "trainable", "dtype", "autocast", "name")
# Layers that do not hand all of these on to their base class.
WITHOUT_COMMON = {
    **dict.fromkeys(["Discretization", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"],
                    ("activity_regularizer", "autocast", "trainable")),
    **dict.fromkeys(["IntegerLookup", "StringLookup"], ("activity_regularizer", "autocast")),
    "ActivityRegularization": ("activity_regularizer",),
    "Pipeline": ("activity_regularizer", "autocast", "dtype", "trainable"),
}  # fmt: skip
OPTIMIZER_ARGUMENTS = tuple(
    "weight_decay clipnorm clipvalue global_clipnorm use_ema ema_momentum ema_overwrite_frequency "
    "loss_scale_factor gradient_accumulation_steps name".split()
)
NULL_ARGUMENTS = frozenset(
    "weights input_tensor quantization_config lora_rank lora_alpha gptq_unpacked_column_size".split()
)

# Taken as keywords outside the signature; ``to_json()`` writes them.
KEYWORD_ARGUMENTS = _table({
    "IntegerLookup": "vocabulary_size",
    "LayerNormalization": "rms_scaling",
    "StringLookup": "vocabulary_size",
    "TextVectorization": "vocabulary_size",
})

# Layers that vary a row while it is trained on and hand it on as it is otherwise; those of pictures, and of any numbers.
VARYING_PICTURES = frozenset(
    "RandomBrightness RandomColorDegeneration RandomColorJitter RandomContrast RandomCrop RandomElasticTransform RandomErasing "
    "RandomFlip RandomGaussianBlur RandomGrayscale RandomHue RandomInvert RandomPerspective RandomPosterization RandomRotation "
    "RandomSaturation RandomSharpness RandomShear RandomTranslation RandomZoom".split()
)
VARYING = frozenset(["GaussianDropout", "GaussianNoise", *VARYING_PICTURES])

# Their defaults, which Keras has when it makes a layer and misses when it reads one.
FILLED_IN = {
    "Rescaling": {"offset": 0.0},
    "TextVectorization": {"standardize": "lower_and_strip_punctuation", "split": "whitespace", "ngrams": None},
}

DTYPES = frozenset(
    "float16 bfloat16 float32 float64 mixed_float16 mixed_bfloat16 "
    "bool int8 int16 int32 int64 uint8 uint16 uint32 string".split()
)

# Keras resolves these by the shape of the output; they stay strings (``CompileMetrics``, Keras 3).
METRICS_BY_OUTPUT = frozenset("accuracy acc crossentropy ce".split())
# They relate two columns; over the rows of a minibatch, where axis says so or a column stands alone.
CORRELATIONS = frozenset("ConcordanceCorrelation CosineSimilarity PearsonCorrelation".split())

DEFAULT_LEARNING_RATE = 0.001
DEFAULT_LEARNING_RATES = {"SGD": 0.01, "ScheduleFreeAdamW": 0.0025}

# Operations of functional models (``x * 2``, ``keras.ops.mean(x)``): tensors in, tensors out.
OPERATIONS = {
    "keras.src.ops.numpy": frozenset(
        "Abs Absolute Add All Amax Amin Angle Any Append Arccos Arccosh Arcsin Arcsinh Arctan Arctan2 Arctanh "
        "Argmax Argmin Argpartition Argsort ArraySplit Average Bincount BitwiseAnd BitwiseInvert BitwiseLeftShift "
        "BitwiseNot BitwiseOr BitwiseRightShift BitwiseXor BroadcastTo Cbrt Ceil Clip Concatenate Conj Conjugate "
        "Copy Corrcoef Correlate Cos Cosh CountNonzero Cross Cumprod Cumsum Deg2rad Diag Diagflat Diagonal Diff "
        "Digitize Divide DivideNoNan Dot Dsplit Dstack Einsum Equal Exp Exp2 ExpandDims Expm1 Fabs Flip Fliplr "
        "Flipud Floor FloorDivide Fmax Fmin Fmod FullLike Gcd GetItem Greater GreaterEqual Heaviside Histogram "
        "Hsplit Hstack Hypot I0 Imag Inner IsIn Isclose Isfinite Isinf Isnan Isneginf Isposinf Isreal Kron Lcm "
        "Ldexp LeftShift Less LessEqual Log Log10 Log1p Log2 Logaddexp Logaddexp2 LogicalAnd LogicalNot LogicalOr "
        "LogicalXor Matmul Max Maximum Mean Median Meshgrid Min Minimum Mod Moveaxis Multiply NanToNum Nanargmax "
        "Nanargmin Nancumprod Nancumsum Nanmax Nanmean Nanmedian Nanmin Nanpercentile Nanprod Nanquantile Nanstd "
        "Nansum Nanvar Negative Nextafter NotEqual OnesLike Outer Pad Percentile Power Prod Ptp Quantile Rad2deg "
        "Ravel Real Reciprocal Repeat Reshape RightShift Roll Rot90 Round SearchSorted Select Sign Signbit Sin "
        "Sinc Sinh Slogdet Sort Split Sqrt Square Squeeze Stack Std Subtract Sum Swapaxes Take TakeAlongAxis Tan "
        "Tanh Tensordot Tile Trace Transpose Trapezoid Tril Triu TrueDivide Trunc UnravelIndex Vander Var Vdot "
        "View Vsplit Vstack Where ZerosLike".split()
    ),
    "keras.src.ops.nn": frozenset(
        "AdaptiveAveragePool AdaptiveMaxPool AveragePool BatchNorm BinaryCrossentropy CTCDecode CTCLoss "
        "CategoricalCrossentropy Celu Conv ConvTranspose DepthToSpace DepthwiseConv DotProductAttention Elu Fold "
        "Gelu Glu HardShrink HardSigmoid HardSilu HardTanh LayerNorm LeakyRelu LogSigmoid LogSoftmax MaxPool "
        "Moments MultiHot Normalize OneHot PSNR Polar RMSNorm Relu Relu6 Selu SeparableConv Sigmoid Silu "
        "SoftShrink Softmax Softplus Softsign SpaceToDepth SparseCategoricalCrossentropy SparsePlus SparseSigmoid "
        "Sparsemax Squareplus TanhShrink Threshold Unfold".split()
    ),
    "keras.src.ops.math": frozenset(
        "CDist Erf Erfc Erfinv ExtractSequences FFT FFT2 IFFT2 IRFFT ISTFT InTopK Logdet Logsumexp RFFT Rsqrt "
        "STFT SegmentMax SegmentMin SegmentProd SegmentSum TopK ViewAsComplex ViewAsReal".split()
    ),
    "keras.src.ops.core": frozenset(
        "Cast ConvertToTensor SaturateCast Scatter ScatterUpdate Slice SliceUpdate StopGradient Unstack".split()
    ),
    "keras.src.ops.linalg": frozenset(
        "Cholesky CholeskyInverse Det Eig Eigh Inv Lstsq LuFactor MatrixRank Norm Pinv Qr SVD Solve "
        "SolveTriangular".split()
    ),
    "keras.src.ops.image": frozenset(
        "AffineTransform CropImages ElasticTransform ExtractPatches GaussianBlur HSVToRGB MapCoordinates "
        "PadImages PerspectiveTransform RGBToGrayscale RGBToHSV Resize SSIM ScaleAndTranslate SobelEdges".split()
    ),
    "keras.src.ops.einops": frozenset(
        "Rearrange".split()
    ),
}
_FUNCTIONS = "It takes functions, which are code: write the steps one after the other."
_CONSTANT = "It makes a tensor of nothing: a layer with weights or Rescaling holds constants."
_UNSHAPED = "The shape of what it gives depends on the values, or is no shape of rows."
DENIED_OPERATIONS = {
    "keras.src.ops.numpy": {
        **dict.fromkeys("Arange Array EmptyLike Full Geomspace Linspace Logspace".split(), _CONSTANT),
        **dict.fromkeys("AllClose Ndim Nonzero Size Unique".split(), _UNSHAPED),
    },
    "keras.src.ops.math": {"SegmentReduction": _BASE},
    "keras.src.ops.core": dict.fromkeys(
        "AssociativeScan Cond ForiLoop Map Scan Switch VectorizedMap WhileLoop".split(), _FUNCTIONS
    ),
    "keras.src.ops.linalg": {"JVP": _FUNCTIONS},
}

# Every layer also takes COMMON_ARGUMENTS, but for WITHOUT_COMMON.
LAYERS = _table({
    "Activation": "activation",
    "ActivityRegularization": "l1 l2",
    "AdaptiveAveragePooling1D": "output_size data_format",
    "AdaptiveAveragePooling2D": "output_size data_format",
    "AdaptiveAveragePooling3D": "output_size data_format",
    "AdaptiveMaxPooling1D": "output_size data_format",
    "AdaptiveMaxPooling2D": "output_size data_format",
    "AdaptiveMaxPooling3D": "output_size data_format",
    "Add": "",
    "AdditiveAttention": "use_scale dropout score_mode seed",
    "AlphaDropout": "rate noise_shape seed",
    "Attention": "use_scale score_mode dropout seed",
    "AugMix": (
        "value_range num_chains chain_depth factor alpha all_ops interpolation seed data_format "
        "bounding_box_format"
    ),
    "AutoContrast": "value_range factor bounding_box_format data_format",
    "Average": "",
    "AveragePooling1D": "pool_size strides padding data_format",
    "AveragePooling2D": "pool_size strides padding data_format",
    "AveragePooling3D": "pool_size strides padding data_format",
    "BatchNormalization": (
        "axis momentum epsilon center scale beta_initializer gamma_initializer moving_mean_initializer "
        "moving_variance_initializer beta_regularizer gamma_regularizer beta_constraint "
        "gamma_constraint renorm renorm_clipping renorm_momentum synchronized"
    ),
    "Bidirectional": "layer merge_mode backward_layer",
    "CategoryEncoding": "num_tokens output_mode sparse",
    "CenterCrop": "height width data_format factor bounding_box_format",
    "Concatenate": "axis",
    "ContrastLimitedAdaptiveHistogramEqualization": (
        "value_range clip_limit tile_grid_size data_format factor bounding_box_format"
    ),
    "Conv1D": (
        "filters kernel_size strides padding data_format dilation_rate groups activation use_bias "
        "kernel_initializer bias_initializer kernel_regularizer bias_regularizer kernel_constraint "
        "bias_constraint"
    ),
    "Conv1DTranspose": (
        "filters kernel_size strides padding output_padding data_format dilation_rate activation "
        "use_bias kernel_initializer bias_initializer kernel_regularizer bias_regularizer "
        "kernel_constraint bias_constraint"
    ),
    "Conv2D": (
        "filters kernel_size strides padding data_format dilation_rate groups activation use_bias "
        "kernel_initializer bias_initializer kernel_regularizer bias_regularizer kernel_constraint "
        "bias_constraint"
    ),
    "Conv2DTranspose": (
        "filters kernel_size strides padding output_padding data_format dilation_rate activation "
        "use_bias kernel_initializer bias_initializer kernel_regularizer bias_regularizer "
        "kernel_constraint bias_constraint"
    ),
    "Conv3D": (
        "filters kernel_size strides padding data_format dilation_rate groups activation use_bias "
        "kernel_initializer bias_initializer kernel_regularizer bias_regularizer kernel_constraint "
        "bias_constraint"
    ),
    "Conv3DTranspose": (
        "filters kernel_size strides padding data_format output_padding dilation_rate activation "
        "use_bias kernel_initializer bias_initializer kernel_regularizer bias_regularizer "
        "kernel_constraint bias_constraint"
    ),
    "ConvLSTM1D": (
        "filters kernel_size strides padding data_format dilation_rate activation recurrent_activation "
        "use_bias kernel_initializer recurrent_initializer bias_initializer unit_forget_bias "
        "kernel_regularizer recurrent_regularizer bias_regularizer kernel_constraint "
        "recurrent_constraint bias_constraint dropout recurrent_dropout seed return_sequences "
        "return_state go_backwards stateful unroll zero_output_for_mask"
    ),
    "ConvLSTM2D": (
        "filters kernel_size strides padding data_format dilation_rate activation recurrent_activation "
        "use_bias kernel_initializer recurrent_initializer bias_initializer unit_forget_bias "
        "kernel_regularizer recurrent_regularizer bias_regularizer kernel_constraint "
        "recurrent_constraint bias_constraint dropout recurrent_dropout seed return_sequences "
        "return_state go_backwards stateful unroll zero_output_for_mask"
    ),
    "ConvLSTM3D": (
        "filters kernel_size strides padding data_format dilation_rate activation recurrent_activation "
        "use_bias kernel_initializer recurrent_initializer bias_initializer unit_forget_bias "
        "kernel_regularizer recurrent_regularizer bias_regularizer kernel_constraint "
        "recurrent_constraint bias_constraint dropout recurrent_dropout seed return_sequences "
        "return_state go_backwards stateful unroll zero_output_for_mask"
    ),
    "Cropping1D": "cropping",
    "Cropping2D": "cropping data_format",
    "Cropping3D": "cropping data_format",
    "CutMix": "factor seed data_format bounding_box_format",
    "Dense": (
        "units activation use_bias kernel_initializer bias_initializer kernel_regularizer "
        "bias_regularizer kernel_constraint bias_constraint"
    ),
    "DepthwiseConv1D": (
        "kernel_size strides padding depth_multiplier data_format dilation_rate activation use_bias "
        "depthwise_initializer bias_initializer depthwise_regularizer bias_regularizer "
        "depthwise_constraint bias_constraint"
    ),
    "DepthwiseConv2D": (
        "kernel_size strides padding depth_multiplier data_format dilation_rate activation use_bias "
        "depthwise_initializer bias_initializer depthwise_regularizer bias_regularizer "
        "depthwise_constraint bias_constraint"
    ),
    "Discretization": "bin_boundaries num_bins epsilon output_mode sparse",
    "Dot": "axes normalize",
    "Dropout": "rate noise_shape seed",
    "ELU": "alpha",
    "EinsumDense": (
        "equation output_shape activation bias_axes kernel_initializer bias_initializer "
        "kernel_regularizer bias_regularizer kernel_constraint bias_constraint"
    ),
    "Embedding": (
        "input_dim output_dim embeddings_initializer embeddings_regularizer embeddings_constraint "
        "mask_zero"
    ),
    "Equalization": "value_range bins data_format factor bounding_box_format",
    "Flatten": "data_format",
    "GRU": (
        "units activation recurrent_activation use_bias kernel_initializer recurrent_initializer "
        "bias_initializer kernel_regularizer recurrent_regularizer bias_regularizer kernel_constraint "
        "recurrent_constraint bias_constraint dropout recurrent_dropout seed return_sequences "
        "return_state go_backwards stateful unroll reset_after use_cudnn zero_output_for_mask"
    ),
    "GRUCell": (
        "units activation recurrent_activation use_bias kernel_initializer recurrent_initializer "
        "bias_initializer kernel_regularizer recurrent_regularizer bias_regularizer kernel_constraint "
        "recurrent_constraint bias_constraint dropout recurrent_dropout reset_after seed"
    ),
    "GaussianDropout": "rate seed",
    "GaussianNoise": "stddev seed",
    "GlobalAveragePooling1D": "data_format keepdims",
    "GlobalAveragePooling2D": "data_format keepdims",
    "GlobalAveragePooling3D": "data_format keepdims",
    "GlobalMaxPooling1D": "data_format keepdims",
    "GlobalMaxPooling2D": "data_format keepdims",
    "GlobalMaxPooling3D": "data_format keepdims",
    "GroupNormalization": (
        "groups axis epsilon center scale beta_initializer gamma_initializer beta_regularizer "
        "gamma_regularizer beta_constraint gamma_constraint"
    ),
    "GroupQueryAttention": (
        "head_dim num_query_heads num_key_value_heads dropout use_bias sliding_window flash_attention "
        "kernel_initializer bias_initializer kernel_regularizer bias_regularizer kernel_constraint "
        "bias_constraint use_gate seed"
    ),
    "HashedCrossing": "num_bins output_mode sparse",
    "Hashing": "num_bins mask_value salt output_mode sparse",
    "Identity": "",
    "InputLayer": "shape batch_size sparse ragged batch_shape optional",
    "IntegerLookup": (
        "max_tokens num_oov_indices mask_token oov_token vocabulary vocabulary_dtype idf_weights invert "
        "output_mode sparse pad_to_max_tokens oov_method salt"
    ),
    "LSTM": (
        "units activation recurrent_activation use_bias kernel_initializer recurrent_initializer "
        "bias_initializer unit_forget_bias kernel_regularizer recurrent_regularizer bias_regularizer "
        "kernel_constraint recurrent_constraint bias_constraint dropout recurrent_dropout seed "
        "return_sequences return_state go_backwards stateful unroll use_cudnn zero_output_for_mask"
    ),
    "LSTMCell": (
        "units activation recurrent_activation use_bias kernel_initializer recurrent_initializer "
        "bias_initializer unit_forget_bias kernel_regularizer recurrent_regularizer bias_regularizer "
        "kernel_constraint recurrent_constraint bias_constraint dropout recurrent_dropout seed"
    ),
    "LayerNormalization": (
        "axis epsilon center scale beta_initializer gamma_initializer beta_regularizer "
        "gamma_regularizer beta_constraint gamma_constraint"
    ),
    "LeakyReLU": "negative_slope",
    "Masking": "mask_value",
    "MaxNumBoundingBoxes": "max_number fill_value factor bounding_box_format data_format",
    "MaxPooling1D": "pool_size strides padding data_format",
    "MaxPooling2D": "pool_size strides padding data_format",
    "MaxPooling3D": "pool_size strides padding data_format",
    "Maximum": "",
    "MelSpectrogram": (
        "fft_length sequence_stride sequence_length window sampling_rate num_mel_bins min_freq max_freq "
        "power_to_db top_db mag_exp min_power ref_power"
    ),
    "Minimum": "",
    "MixUp": "alpha data_format seed factor bounding_box_format",
    "MultiHeadAttention": (
        "num_heads key_dim value_dim dropout use_bias output_shape attention_axes sliding_window "
        "flash_attention kernel_initializer bias_initializer kernel_regularizer bias_regularizer "
        "kernel_constraint bias_constraint use_gate seed"
    ),
    "Multiply": "",
    "Normalization": "axis mean variance invert",
    "PReLU": "alpha_initializer alpha_regularizer alpha_constraint shared_axes",
    "Permute": "dims",
    "Pipeline": "layers",
    "RMSNormalization": "axis epsilon",
    "RNN": "cell return_sequences return_state go_backwards stateful unroll zero_output_for_mask",
    "RandAugment": "value_range num_ops factor interpolation seed data_format bounding_box_format",
    "RandomBrightness": "factor value_range seed bounding_box_format data_format",
    "RandomColorDegeneration": "factor value_range data_format seed bounding_box_format",
    "RandomColorJitter": (
        "value_range brightness_factor contrast_factor saturation_factor hue_factor seed data_format "
        "factor bounding_box_format"
    ),
    "RandomContrast": "factor value_range seed bounding_box_format data_format",
    "RandomCrop": "height width seed data_format factor bounding_box_format",
    "RandomElasticTransform": (
        "factor scale interpolation fill_mode fill_value value_range seed data_format "
        "bounding_box_format"
    ),
    "RandomErasing": "factor scale fill_value value_range seed data_format bounding_box_format",
    "RandomFlip": "mode seed data_format factor bounding_box_format",
    "RandomGaussianBlur": "factor kernel_size sigma value_range data_format seed bounding_box_format",
    "RandomGrayscale": "factor data_format seed bounding_box_format",
    "RandomHue": "factor value_range data_format seed bounding_box_format",
    "RandomInvert": "factor value_range seed data_format bounding_box_format",
    "RandomPerspective": "factor scale interpolation fill_value seed data_format bounding_box_format",
    "RandomPosterization": "factor value_range data_format seed bounding_box_format",
    "RandomRotation": "factor fill_mode interpolation seed fill_value data_format bounding_box_format",
    "RandomSaturation": "factor value_range data_format seed bounding_box_format",
    "RandomSharpness": "factor value_range data_format seed bounding_box_format",
    "RandomShear": (
        "x_factor y_factor interpolation fill_mode fill_value data_format seed factor "
        "bounding_box_format"
    ),
    "RandomTranslation": (
        "height_factor width_factor fill_mode interpolation seed fill_value data_format factor "
        "bounding_box_format"
    ),
    "RandomZoom": (
        "height_factor width_factor fill_mode interpolation seed fill_value data_format factor "
        "bounding_box_format"
    ),
    "ReLU": "max_value negative_slope threshold",
    "RepeatVector": "n",
    "Rescaling": "scale offset",
    "Reshape": "target_shape",
    "Resizing": (
        "height width interpolation crop_to_aspect_ratio pad_to_aspect_ratio fill_mode fill_value "
        "antialias data_format factor bounding_box_format"
    ),
    "ReversibleEmbedding": (
        "input_dim output_dim tie_weights embeddings_initializer embeddings_regularizer "
        "embeddings_constraint mask_zero reverse_dtype logit_soft_cap"
    ),
    "STFTSpectrogram": (
        "mode frame_length frame_step fft_length window periodic scaling padding expand_dims "
        "data_format"
    ),
    "SeparableConv1D": (
        "filters kernel_size strides padding data_format dilation_rate depth_multiplier activation "
        "use_bias depthwise_initializer pointwise_initializer bias_initializer depthwise_regularizer "
        "pointwise_regularizer bias_regularizer depthwise_constraint pointwise_constraint "
        "bias_constraint"
    ),
    "SeparableConv2D": (
        "filters kernel_size strides padding data_format dilation_rate depth_multiplier activation "
        "use_bias depthwise_initializer pointwise_initializer bias_initializer depthwise_regularizer "
        "pointwise_regularizer bias_regularizer depthwise_constraint pointwise_constraint "
        "bias_constraint"
    ),
    "SimpleRNN": (
        "units activation use_bias kernel_initializer recurrent_initializer bias_initializer "
        "kernel_regularizer recurrent_regularizer bias_regularizer kernel_constraint "
        "recurrent_constraint bias_constraint dropout recurrent_dropout return_sequences return_state "
        "go_backwards stateful unroll seed zero_output_for_mask"
    ),
    "SimpleRNNCell": (
        "units activation use_bias kernel_initializer recurrent_initializer bias_initializer "
        "kernel_regularizer recurrent_regularizer bias_regularizer kernel_constraint "
        "recurrent_constraint bias_constraint dropout recurrent_dropout seed"
    ),
    "Softmax": "axis",
    "Solarization": (
        "addition_factor threshold_factor value_range seed factor bounding_box_format data_format"
    ),
    "SpatialDropout1D": "rate seed",
    "SpatialDropout2D": "rate data_format seed",
    "SpatialDropout3D": "rate data_format seed",
    "SpectralNormalization": "layer power_iterations",
    "StackedRNNCells": "cells",
    "StringLookup": (
        "max_tokens num_oov_indices mask_token oov_token vocabulary idf_weights invert output_mode "
        "pad_to_max_tokens sparse encoding salt vocabulary_dtype oov_method"
    ),
    "Subtract": "",
    "TextVectorization": (
        "max_tokens standardize split ngrams output_mode output_sequence_length pad_to_max_tokens "
        "vocabulary idf_weights sparse ragged encoding"
    ),
    "TimeDistributed": "layer",
    "UnitNormalization": "axis",
    "UpSampling1D": "size",
    "UpSampling2D": "size data_format interpolation",
    "UpSampling3D": "size data_format",
    "ZeroPadding1D": "padding data_format",
    "ZeroPadding2D": "padding data_format",
    "ZeroPadding3D": "padding data_format",
})

INITIALIZERS = _table({
    "Constant": "value",
    "GlorotNormal": "seed input_axes output_axes",
    "GlorotUniform": "seed input_axes output_axes",
    "HeNormal": "seed input_axes output_axes",
    "HeUniform": "seed input_axes output_axes",
    "Identity": "gain",
    "LecunNormal": "seed input_axes output_axes",
    "LecunUniform": "seed input_axes output_axes",
    "Ones": "",
    "Orthogonal": "gain seed",
    "RandomNormal": "mean stddev seed",
    "RandomUniform": "minval maxval seed",
    "STFT": "side window scaling periodic",
    "TruncatedNormal": "mean stddev seed",
    "VarianceScaling": "scale mode distribution seed input_axes output_axes",
    "Zeros": "",
})

REGULARIZERS = _table({
    "L1": "l1",
    "L1L2": "l1 l2",
    "L2": "l2",
    "OrthogonalRegularizer": "factor mode",
})

CONSTRAINTS = _table({
    "MaxNorm": "max_value axis",
    "MinMaxNorm": "min_value max_value rate axis",
    "NonNeg": "",
    "UnitNorm": "axis",
})

# Every optimizer also takes OPTIMIZER_ARGUMENTS.
OPTIMIZERS = _table({
    "Adadelta": "learning_rate rho epsilon",
    "Adafactor": "learning_rate beta_2_decay epsilon_1 epsilon_2 clip_threshold relative_step",
    "Adagrad": "learning_rate initial_accumulator_value epsilon",
    "Adam": "learning_rate beta_1 beta_2 epsilon amsgrad",
    "AdamW": "learning_rate beta_1 beta_2 epsilon amsgrad",
    "Adamax": "learning_rate beta_1 beta_2 epsilon",
    "Ftrl": (
        "learning_rate learning_rate_power initial_accumulator_value l1_regularization_strength "
        "l2_regularization_strength l2_shrinkage_regularization_strength beta"
    ),
    "Lamb": "learning_rate beta_1 beta_2 epsilon",
    "Lion": "learning_rate beta_1 beta_2",
    "Muon": (
        "learning_rate adam_beta_1 adam_beta_2 adam_weight_decay epsilon exclude_layers "
        "exclude_embeddings muon_a muon_b muon_c adam_lr_ratio momentum ns_steps nesterov rms_rate"
    ),
    "Nadam": "learning_rate beta_1 beta_2 epsilon",
    "RMSprop": "learning_rate rho momentum epsilon centered",
    "SGD": "learning_rate momentum nesterov",
    "ScheduleFreeAdamW": "learning_rate beta_1 beta_2 epsilon warmup_steps",
})

SCHEDULES = _table({
    "CosineDecay": "initial_learning_rate decay_steps alpha name warmup_target warmup_steps",
    "CosineDecayRestarts": "initial_learning_rate first_decay_steps t_mul m_mul alpha name",
    "ExponentialDecay": "initial_learning_rate decay_steps decay_rate staircase name",
    "InverseTimeDecay": "initial_learning_rate decay_steps decay_rate staircase name",
    "PiecewiseConstantDecay": "boundaries values name",
    "PolynomialDecay": "initial_learning_rate decay_steps end_learning_rate power cycle name",
})

LOSSES = _table({
    "BinaryCrossentropy": "from_logits label_smoothing axis reduction name dtype",
    "BinaryFocalCrossentropy": (
        "apply_class_balancing alpha gamma from_logits label_smoothing axis reduction name dtype"
    ),
    "CTC": "reduction name dtype",
    "CategoricalCrossentropy": "from_logits label_smoothing axis reduction name dtype",
    "CategoricalFocalCrossentropy": "alpha gamma from_logits label_smoothing axis reduction name dtype",
    "CategoricalGeneralizedCrossEntropy": "q reduction name dtype",
    "CategoricalHinge": "reduction name dtype",
    "Circle": "gamma margin remove_diagonal reduction name dtype",
    "CosineSimilarity": "axis reduction name dtype",
    "Dice": "reduction name axis dtype",
    "Hinge": "reduction name dtype",
    "Huber": "delta reduction name dtype",
    "KLDivergence": "reduction name dtype",
    "LogCosh": "reduction name dtype",
    "MeanAbsoluteError": "reduction name dtype",
    "MeanAbsolutePercentageError": "reduction name dtype",
    "MeanSquaredError": "reduction name dtype",
    "MeanSquaredLogarithmicError": "reduction name dtype",
    "Poisson": "reduction name dtype",
    "SparseCategoricalCrossentropy": "from_logits ignore_class reduction axis name dtype",
    "SquaredHinge": "reduction name dtype",
    "Tversky": "alpha beta reduction name axis dtype",
})

METRICS = _table({
    "AUC": (
        "num_thresholds curve summation_method name dtype thresholds multi_label num_labels "
        "label_weights from_logits"
    ),
    "Accuracy": "name dtype",
    "BinaryAccuracy": "name dtype threshold",
    "BinaryCrossentropy": "name dtype from_logits label_smoothing",
    "BinaryIoU": "target_class_ids threshold name dtype",
    "CategoricalAccuracy": "name dtype",
    "CategoricalCrossentropy": "name dtype from_logits label_smoothing axis",
    "CategoricalHinge": "name dtype",
    "ConcordanceCorrelation": "name dtype axis",
    "CosineSimilarity": "name dtype axis",
    "F1Score": "average threshold name dtype",
    "FBetaScore": "average beta threshold name dtype",
    "FalseNegatives": "thresholds name dtype",
    "FalsePositives": "thresholds name dtype",
    "Hinge": "name dtype",
    "IoU": "num_classes target_class_ids name dtype ignore_class sparse_y_true sparse_y_pred axis",
    "KLDivergence": "name dtype",
    "LogCoshError": "name dtype",
    "Mean": "name dtype",
    "MeanAbsoluteError": "name dtype",
    "MeanAbsolutePercentageError": "name dtype",
    "MeanIoU": "num_classes name dtype ignore_class sparse_y_true sparse_y_pred axis",
    "MeanSquaredError": "name dtype",
    "MeanSquaredLogarithmicError": "name dtype",
    "OneHotIoU": "num_classes target_class_ids name dtype ignore_class sparse_y_pred axis",
    "OneHotMeanIoU": "num_classes name dtype ignore_class sparse_y_pred axis",
    "PearsonCorrelation": "name dtype axis",
    "Poisson": "name dtype",
    "Precision": "thresholds top_k class_id name dtype",
    "PrecisionAtRecall": "recall num_thresholds class_id name dtype",
    "R2Score": "class_aggregation num_regressors name dtype",
    "Recall": "thresholds top_k class_id name dtype",
    "RecallAtPrecision": "precision num_thresholds class_id name dtype",
    "RootMeanSquaredError": "name dtype",
    "SensitivityAtSpecificity": "specificity num_thresholds class_id name dtype",
    "SparseCategoricalAccuracy": "name dtype",
    "SparseCategoricalCrossentropy": "name dtype from_logits ignore_class axis",
    "SparseTopKCategoricalAccuracy": "k name dtype from_sorted_ids",
    "SpecificityAtSensitivity": "sensitivity num_thresholds class_id name dtype",
    "SquaredHinge": "name dtype",
    "Sum": "name dtype",
    "TopKCategoricalAccuracy": "k name dtype",
    "TrueNegatives": "thresholds name dtype",
    "TruePositives": "thresholds name dtype",
})

LAYER_ALIASES = _aliases({
    "AveragePooling1D": "AvgPool1D",
    "AveragePooling2D": "AvgPool2D",
    "AveragePooling3D": "AvgPool3D",
    "Conv1D": "Convolution1D",
    "Conv1DTranspose": "Convolution1DTranspose",
    "Conv2D": "Convolution2D",
    "Conv2DTranspose": "Convolution2DTranspose",
    "Conv3D": "Convolution3D",
    "Conv3DTranspose": "Convolution3DTranspose",
    "GlobalAveragePooling1D": "GlobalAvgPool1D",
    "GlobalAveragePooling2D": "GlobalAvgPool2D",
    "GlobalAveragePooling3D": "GlobalAvgPool3D",
    "GlobalMaxPooling1D": "GlobalMaxPool1D",
    "GlobalMaxPooling2D": "GlobalMaxPool2D",
    "GlobalMaxPooling3D": "GlobalMaxPool3D",
    "InputLayer": "Input",
    "MaxPooling1D": "MaxPool1D",
    "MaxPooling2D": "MaxPool2D",
    "MaxPooling3D": "MaxPool3D",
    "SeparableConv1D": "SeparableConvolution1D",
    "SeparableConv2D": "SeparableConvolution2D",
})

INITIALIZER_ALIASES = _aliases({
    "Constant": "constant",
    "GlorotNormal": "glorot_normal",
    "GlorotUniform": "glorot_uniform",
    "HeNormal": "he_normal",
    "HeUniform": "he_uniform",
    "Identity": "IdentityInitializer identity",
    "LecunNormal": "lecun_normal",
    "LecunUniform": "lecun_uniform",
    "Ones": "one ones",
    "Orthogonal": "OrthogonalInitializer orthogonal",
    "RandomNormal": "normal random_normal",
    "RandomUniform": "random_uniform uniform",
    "STFT": "STFTInitializer stft",
    "TruncatedNormal": "truncated_normal",
    "VarianceScaling": "variance_scaling",
    "Zeros": "zero zeros",
})

REGULARIZER_ALIASES = _aliases({
    "L1": "l1",
    "L1L2": "l1l2",
    "L2": "l2",
    "OrthogonalRegularizer": "orthogonal_regularizer",
})

CONSTRAINT_ALIASES = _aliases({
    "MaxNorm": "max_norm",
    "MinMaxNorm": "min_max_norm",
    "NonNeg": "non_neg",
    "UnitNorm": "unit_norm",
})

METRIC_ALIASES = _aliases({
    "AUC": "auc",
    "Accuracy": "accuracy",
    "BinaryAccuracy": "binary_accuracy",
    "BinaryCrossentropy": "BCE bce binary_crossentropy",
    "BinaryIoU": "binary_io_u",
    "CategoricalAccuracy": "categorical_accuracy",
    "CategoricalCrossentropy": "categorical_crossentropy",
    "CategoricalHinge": "categorical_hinge",
    "ConcordanceCorrelation": "concordance_correlation",
    "CosineSimilarity": "cosine_similarity",
    "F1Score": "f1_score",
    "FBetaScore": "f_beta_score",
    "FalseNegatives": "false_negatives",
    "FalsePositives": "false_positives",
    "Hinge": "hinge",
    "IoU": "io_u",
    "KLDivergence": "kl_divergence",
    "LogCoshError": "log_cosh_error",
    "Mean": "mean",
    "MeanAbsoluteError": "MAE mae mean_absolute_error",
    "MeanAbsolutePercentageError": "MAPE mape mean_absolute_percentage_error",
    "MeanIoU": "mean_io_u",
    "MeanSquaredError": "MSE mean_squared_error mse",
    "MeanSquaredLogarithmicError": "MSLE mean_squared_logarithmic_error msle",
    "OneHotIoU": "one_hot_io_u",
    "OneHotMeanIoU": "one_hot_mean_io_u",
    "PearsonCorrelation": "pearson_correlation",
    "Poisson": "poisson",
    "Precision": "precision",
    "PrecisionAtRecall": "precision_at_recall",
    "R2Score": "r2_score",
    "Recall": "recall",
    "RecallAtPrecision": "recall_at_precision",
    "RootMeanSquaredError": "root_mean_squared_error",
    "SensitivityAtSpecificity": "sensitivity_at_specificity",
    "SparseCategoricalAccuracy": "sparse_categorical_accuracy",
    "SparseCategoricalCrossentropy": "sparse_categorical_crossentropy",
    "SparseTopKCategoricalAccuracy": "sparse_top_k_categorical_accuracy",
    "SpecificityAtSensitivity": "specificity_at_sensitivity",
    "SquaredHinge": "squared_hinge",
    "Sum": "sum",
    "TopKCategoricalAccuracy": "top_k_categorical_accuracy",
    "TrueNegatives": "true_negatives",
    "TruePositives": "true_positives",
})

LOSS_ALIASES = _aliases({
    "BinaryCrossentropy": "BCE bce binary_crossentropy",
    "BinaryFocalCrossentropy": "binary_focal_crossentropy",
    "CTC": "ctc",
    "CategoricalCrossentropy": "categorical_crossentropy",
    "CategoricalFocalCrossentropy": "categorical_focal_crossentropy",
    "CategoricalHinge": "categorical_hinge",
    "Circle": "circle",
    "CosineSimilarity": "cosine_similarity",
    "Dice": "dice",
    "Hinge": "hinge",
    "Huber": "huber",
    "KLDivergence": "KLD kl_divergence kld",
    "LogCosh": "log_cosh",
    "MeanAbsoluteError": "MAE mae mean_absolute_error",
    "MeanAbsolutePercentageError": "MAPE mape mean_absolute_percentage_error",
    "MeanSquaredError": "MSE mean_squared_error mse",
    "MeanSquaredLogarithmicError": "MSLE mean_squared_logarithmic_error msle",
    "Poisson": "poisson",
    "SparseCategoricalCrossentropy": "sparse_categorical_crossentropy",
    "SquaredHinge": "squared_hinge",
    "Tversky": "tversky",
})

ACTIVATIONS = frozenset(
    "celu elu exponential gelu glu hard_shrink hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu "
    "linear log_sigmoid log_softmax mish relu relu6 selu sigmoid silu soft_shrink softmax softplus "
    "softsign sparse_plus sparse_sigmoid sparsemax squareplus swish tanh tanh_shrink threshold "
    .split()
)

