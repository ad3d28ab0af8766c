"""Flat models and Flower's records, where a test has the one and needs the other."""

from collections.abc import Mapping

import numpy as np
from flwr.app import Array, ArrayRecord

from fedsparq import Model
from fedsparq.federate.exact import NamedModel
from fedsparq.layout import Layout


def layout_of(arrays: Mapping[str, Array]) -> Layout:
    """The layout of what is compressed of a record."""
    return NamedModel.of(arrays).layout


def to_model(arrays: Mapping[str, Array], layout: Layout) -> Model:
    """The flat model of those named arrays that a layout has."""
    return Model(*layout.flatten({tensor.name: arrays[tensor.name].numpy() for tensor in layout.tensors}))


def to_arrays(model: Model, layout: Layout) -> ArrayRecord:
    """The named arrays of a flat model, in their own types and order."""
    named = layout.unflatten(model.vector, model.buffers)
    return ArrayRecord({name: Array(np.asarray(values)) for name, values in named.items()})
