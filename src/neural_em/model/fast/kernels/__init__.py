"""Fused GPU kernels: one each way where torch needs many. In Triton, but for `images`, which is CUDA C++.

The plain functions are their reference, in float32 and float64. Only `edges`, the first and the last convolution, has
products of matrices, which are as coarse as torch's may be (TF32). Activations may also be bfloat16; sums, differences,
E-step and losses are not.
"""

from neural_em.model.fast.kernels import images
from neural_em.model.fast.kernels.activation import Activation, row_fits
from neural_em.model.fast.kernels.adam import adam
from neural_em.model.fast.kernels.assignment import CHANNELS, Assignment, MaskedDifference, fits
from neural_em.model.fast.kernels.draws import uniform
from neural_em.model.fast.kernels.edges import FIRST, LAST, ToFeatures, ToImage, patches_by_features
from neural_em.model.fast.kernels.packing import packed
from neural_em.model.fast.kernels.pairs import Heeded, join, pairs_fit, part
from neural_em.model.fast.kernels.sums import column_sums
from neural_em.model.fast.kernels.window import Window

__all__ = [
    "CHANNELS", "FIRST", "LAST", "Activation", "Assignment", "Heeded", "MaskedDifference", "ToFeatures", "ToImage",
    "Window", "adam", "column_sums", "fits", "images", "join", "packed", "pairs_fit", "part", "patches_by_features",
    "row_fits", "uniform",
]  # fmt: skip
