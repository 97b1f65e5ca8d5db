"""Fashion-MNIST as the program reads it: idx files, packed or not, pixels scaled to mean 0 and deviation 1 of the training set."""

import gzip
import os
import struct

import numpy

DEBIAN = "/usr/share/datasets/fashion-mnist"
TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
MEAN = numpy.float32(0.2860)
DEVIATION = numpy.float32(0.3530)


class DatasetError(ValueError):
    """A missing or damaged file; the message names it."""


def find(folder, name):
    """Path of a file of the set, packed or not, or None."""
    for path in (os.path.join(folder, name + ".gz"), os.path.join(folder, name)):
        if os.path.isfile(path):
            return path
    return None


def read_idx(path, dimensions):
    """The bytes of one idx file as an array of so many dimensions."""
    opened = gzip.open if path.endswith(".gz") else open
    try:
        with opened(path, "rb") as file:
            raw = file.read()
    except (OSError, EOFError) as error:
        raise DatasetError(f"{path} cannot be read: {error}") from error
    head = 4 + 4 * dimensions
    if len(raw) < head or raw[:4] != bytes([0, 0, 8, dimensions]):
        raise DatasetError(f"{path} is no idx file of bytes in {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}I", raw[4:head])
    wanted = head
    count = 1
    for size in shape:
        count *= size
    wanted += count
    if len(raw) != wanted:
        raise DatasetError(f"{path} has {len(raw)} bytes unpacked; its head promises {wanted}")
    return numpy.frombuffer(raw, numpy.uint8, offset=head).reshape(shape)


def scaled(pixels):
    """Pixels as network inputs, f32, one row an image."""
    flat = pixels.reshape(len(pixels), -1).astype(numpy.float32)
    return (flat / numpy.float32(255.0) - MEAN) / DEVIATION


def load_split(folder, names):
    """Inputs (f32 rows) and labels (i64) of one split."""
    paths = []
    for name in names:
        path = find(folder, name)
        if path is None:
            raise DatasetError(f"{os.path.join(folder, name)}[.gz] is missing")
        paths.append(path)
    images, labels = read_idx(paths[0], 3), read_idx(paths[1], 1)
    if len(images) != len(labels):
        raise DatasetError(f"{paths[0]} has {len(images)} images and {paths[1]} {len(labels)} labels")
    if len(labels) and int(labels.max()) > 9:
        raise DatasetError(f"{paths[1]} has the label {int(labels.max())}; there are 0 to 9")
    return scaled(images), labels.astype(numpy.int64)


def load(folder):
    """((inputs, labels) for training, (inputs, labels) for the test)."""
    return load_split(folder, TRAIN), load_split(folder, TEST)
