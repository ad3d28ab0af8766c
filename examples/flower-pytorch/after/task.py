"""Model, data and training: the same before and after. The data set ships with FedSparQ, so nothing is downloaded."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedsparq.lab.tasks.load import load


def new_model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


def train_on_part(model: nn.Module, part: int, parts: int) -> int:
    """One epoch on one part of the examples; returns how many there were."""
    torch.set_num_threads(1)
    images, labels = load("mnist-mini").train
    images, labels = _tensors(images[part::parts], labels[part::parts])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in torch.randperm(len(labels)).split(32):
        optimizer.zero_grad()
        cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    return len(labels)


def accuracy(state: dict[str, torch.Tensor]) -> float:
    """Percent of the test images that are recognised."""
    model = new_model()
    model.load_state_dict(state)
    images, labels = load("mnist-mini").test
    images, labels = _tensors(images, labels)
    with torch.no_grad():
        return 100 * (model(images).argmax(1) == labels).float().mean().item()


def _tensors(images, labels):
    return torch.from_numpy(images.copy()).float() / 255, torch.from_numpy(labels.copy())
