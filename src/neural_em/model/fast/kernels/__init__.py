"""Fused GPU kernels (Triton) for what is not a product of matrices: one kernel each way where torch needs many.

All are exact in float32 and float64: the plain functions are their reference. The first and the last convolution are
products after all, and coarser where torch's may be (TF32). Activations may also be bfloat16; sums, differences, E-step
and losses are not.
"""

from neural_em.model.fast.kernels.activation import Activation, row_fits
from neural_em.model.fast.kernels.assignment import Assignment, MaskedDifference, fits
from neural_em.model.fast.kernels.draws import uniform
from neural_em.model.fast.kernels.edges import FIRST, LAST, ToFeatures, ToImage, patches

__all__ = [
    "FIRST",
    "LAST",
    "Activation",
    "Assignment",
    "MaskedDifference",
    "ToFeatures",
    "ToImage",
    "fits",
    "patches",
    "row_fits",
    "uniform",
]
