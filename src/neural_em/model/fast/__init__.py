"""The same model, faster: what `accelerate` returns computes what the plain one does and shares its parameters.

These things are done differently.

* Upsampling and convolving is one 3x3 convolution of the small image that gives all four phases of the large one
  (36 taps instead of 64, and no upsampled copy).
* The gradient of E-step and losses is written out.
* On a GPU weight gradients are gathered: each use of a layer keeps its input and its output's gradient, and one large
  product over all time steps makes the weight's gradient, instead of one small product a step.
* On a GPU the random numbers, the elementwise parts (layer norm with its non-linearity; E-step with its losses and the
  next step's delta) and the first and last convolution of frames with few channels are kernels of their own. On a
  Hopper GPU the outer layers of a network of small images are one kernel each way.
* Where products may be in TF32, those kernels and large fully connected layers make them from 16-bit floats, which have
  as many bits behind the first; powers of two keep the numbers in their range.
* On a CPU the first convolution is a product with patches, and layer norm is PyTorch's own. On ARM the last convolution
  is a product too, and so are the gradients of the others' weights; without gradients, doubling an image takes 24 taps.
* On x86, while parameters are kept ready for single steps, large matrices are packed in the order they are read in.
"""

from neural_em.model.fast.twin import FastNeuralEM, accelerate

__all__ = ["FastNeuralEM", "accelerate"]
