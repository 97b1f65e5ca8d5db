"""The network of the comparison: 784-512-256-10, rectified hidden layers, softmax with cross-entropy, and its initial values."""

import math

import numpy

WIDTHS = (784, 512, 256, 10)


def initial(seed):
    """[(weight, bias)] of the layers, weights as (outputs, inputs), which is how both frameworks store them.

    Uniform in +-sqrt(6 / inputs) (He et al. 2015), the last layer in +-sqrt(3 / inputs), biases zero: the program's law, not its draws.
    """
    generator = numpy.random.RandomState((seed + 0x5EED) % 2**32)
    layers = []
    last = len(WIDTHS) - 2
    for index, (inputs, outputs) in enumerate(zip(WIDTHS, WIDTHS[1:])):
        bound = math.sqrt((3.0 if index == last else 6.0) / inputs)
        weight = generator.uniform(-bound, bound, (outputs, inputs)).astype(numpy.float32)
        layers.append((weight, numpy.zeros(outputs, numpy.float32)))
    return layers
