"""Fused GPU kernels (Triton): one each way where torch needs many.

The plain functions are their reference, in float32 and float64. Only convolutions (`edges`, `folds`, `images`) have
products of matrices, which are as coarse as torch's may be (TF32). Activations may also be bfloat16; sums, differences,
E-step and losses are not.
"""

from neural_em.model.fast.kernels.activation import Activation, activation_backward, activation_settings, row_fits
from neural_em.model.fast.kernels.assignment import CHANNELS, Assignment, fits
from neural_em.model.fast.kernels.differences import MaskedDifference
from neural_em.model.fast.kernels.draws import uniform
from neural_em.model.fast.kernels.edges import FIRST, LAST, ToFeatures, ToImage, patches, to_image
from neural_em.model.fast.kernels.images import (
    AROUND,
    HALVING,
    JOINED,
    REACHED,
    SPLIT,
    Norm,
    image_back,
    image_fits,
    image_there,
)  # fmt: skip

__all__ = [
    "AROUND", "CHANNELS", "FIRST", "HALVING", "JOINED", "LAST", "REACHED", "SPLIT", "Activation", "Assignment",
    "MaskedDifference", "Norm", "ToFeatures", "ToImage", "activation_backward", "activation_settings", "fits",
    "image_back", "image_fits", "image_there", "patches", "row_fits", "to_image", "uniform",
]  # fmt: skip
