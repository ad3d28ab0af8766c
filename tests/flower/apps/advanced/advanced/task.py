"""Model, data, training and testing, as such an app has them; the data set ships with FedSparQ."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedsparq.lab.tasks.load import load


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 5, stride=2)
        self.norm = nn.BatchNorm2d(4)
        self.fc1 = nn.Linear(4 * 12 * 12, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = torch.relu(self.norm(self.conv(images)))
        return self.fc2(torch.relu(self.fc1(features.flatten(1))))


def load_data(part: int, parts: int) -> tuple[tuple, tuple]:
    """A node's own examples: four fifths to train on, one fifth to test on."""
    images, labels = load("mnist-mini").train
    images, labels = _tensors(images[part::parts], labels[part::parts])
    cut = len(labels) * 4 // 5
    return (images[:cut], labels[:cut]), (images[cut:], labels[cut:])


def load_test_set() -> tuple:
    images, labels = load("mnist-mini").test
    return _tensors(images, labels)


def train(net: nn.Module, data: tuple, epochs: int, rate: float, batch: int) -> float:
    torch.set_num_threads(1)
    images, labels = data
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    losses = []
    net.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(labels)).split(batch):
            optimizer.zero_grad()
            loss = cross_entropy(net(images[rows]), labels[rows])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


def test(net: nn.Module, data: tuple) -> tuple[float, float]:
    images, labels = data
    net.eval()
    with torch.no_grad():
        scores = net(images)
    return cross_entropy(scores, labels).item(), (scores.argmax(1) == labels).float().mean().item()


def _tensors(images, labels):
    return torch.from_numpy(images.copy()).float().reshape(-1, 1, 28, 28) / 255, torch.from_numpy(labels.copy())
