"""Who holds which examples: the ways to deal a train split out to clients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import DataError, OptionError

Indices = NDArray[np.int64]

KINDS = ("iid", "dirichlet", "shards", "natural")
_DRAWS = 11
"""How often Dirichlet proportions are drawn before an error; as many as flwr-datasets draws."""
_HOPELESS = 20
"""With more clients than this too small in the first draw, there is no point in drawing again."""


def partition(
    labels: NDArray[np.int64],
    kind: str,
    clients: int,
    *,
    seed: int,
    alpha: float = 0.5,
    shards_per_client: int = 2,
    min_examples: int = 2,
    owners: NDArray[np.int64] | None = None,
) -> list[Indices]:
    """The sorted indices of each client's examples, as a function of the arguments alone.

    * ``iid``: equal parts (sizes differ by at most one) in which each class has its share;
    * ``dirichlet``: each class is split by proportions drawn from Dirichlet(alpha), again (up to ten times)
      while some client has fewer than ``min_examples``;
    * ``shards``: the examples in the order of their labels are cut into equal shards, and each client gets
      ``shards_per_client`` of them at random; what does not fill a shard stays unused;
    * ``natural``: each client is one of the data set's ``owners``, those with most examples first.
    """
    if kind not in KINDS:
        raise OptionError(f"unknown partition {kind!r}: choose from {', '.join(KINDS)}")
    for name, value in (("clients", clients), ("shards_per_client", shards_per_client), ("min_examples", min_examples)):
        if value < 1:
            raise OptionError(f"{name} must be at least 1, got {value}")
    if not 0 < alpha < float("inf"):
        raise OptionError(f"alpha must be a number above 0, got {alpha}")
    if kind == "natural":
        return _natural(owners, clients)
    if len(labels) < clients * min_examples:
        raise DataError(
            f"{len(labels)} examples are too few for {clients} clients with at least {min_examples} each: "
            "use fewer clients, more data or a smaller min_examples"
        )
    if kind == "iid":
        order = stratified_order(labels, np.random.default_rng(seed))
        parts = np.array_split(order, clients)
    elif kind == "dirichlet":
        parts = _dirichlet(labels, clients, alpha, min_examples, seed)
    else:
        parts = _shards(labels, clients, shards_per_client, min_examples, seed)
    return [np.sort(part) for part in parts]


def stratified_order(labels: NDArray[np.int64], rng: np.random.Generator) -> Indices:
    """A shuffle in which each class is spread evenly: every stretch holds each class by its share, give or take one."""
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    _, counts = np.unique(labels, return_counts=True)
    rank = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
    ties = rng.permutation(len(labels))
    return by_class[np.lexsort((ties, rank))]


def class_counts(labels: NDArray[np.int64], parts: Sequence[Indices], classes: int) -> NDArray[np.int64]:
    """How many examples of each class each client holds: int64[clients, classes]."""
    owners = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    held = labels[np.concatenate(parts)]
    return np.bincount(owners * classes + held, minlength=len(parts) * classes).reshape(len(parts), classes)


def _natural(owners: NDArray[np.int64] | None, clients: int) -> list[Indices]:
    if owners is None:
        raise DataError(
            "the partition natural needs a data set that says whose each example is: "
            "a client column (client_column names it), or Dataset(owners=...)"
        )
    numbers, sizes = np.unique(owners, return_counts=True)
    if clients > len(numbers):
        raise DataError(
            f"the data set has {len(numbers)} clients by nature, {clients} are asked for: use fewer clients"
        )
    largest = numbers[np.argsort(-sizes, kind="stable")][:clients]
    order = np.argsort(owners, kind="stable")
    starts = np.searchsorted(owners[order], largest)
    ends = np.searchsorted(owners[order], largest, side="right")
    return [np.sort(order[start:end]) for start, end in zip(starts, ends, strict=True)]


def _dirichlet(labels: NDArray[np.int64], clients: int, alpha: float, min_examples: int, seed: int) -> list[Indices]:
    """Draw the owner of each example as flwr-datasets' DirichletPartitioner does, so that numbers stay the same."""
    order = np.argsort(labels, kind="stable")
    class_sizes = np.unique(labels, return_counts=True)[1]
    rng = np.random.default_rng(seed)
    first_sizes = None
    for _ in range(_DRAWS):
        owners = np.empty(len(labels), np.int64)
        owners[order] = np.concatenate([_owners_of_class(size, clients, alpha, rng) for size in class_sizes])
        sizes = np.bincount(owners, minlength=clients)
        if sizes.min() >= min_examples:
            return np.split(np.argsort(owners, kind="stable"), np.cumsum(sizes)[:-1])
        first_sizes = sizes if first_sizes is None else first_sizes
        if (first_sizes < min_examples).sum() > _HOPELESS:
            break
    assert first_sizes is not None
    small, client = int((first_sizes < min_examples).sum()), int(first_sizes.argmin())
    raise DataError(
        f"dirichlet(alpha={alpha}) over {clients} clients leaves {small} of them with fewer than {min_examples} "
        f"examples (client {client} has {first_sizes[client]}): "
        "use fewer clients, a larger alpha, more data, a smaller min_examples or another seed"
    )


def _owners_of_class(size: int, clients: int, alpha: float, rng: np.random.Generator) -> Indices:
    """Return the client of each of a class's examples, by proportions from a symmetric Dirichlet distribution."""
    ends = (np.cumsum(rng.dirichlet(np.full(clients, alpha))) * size).astype(np.int64)[:-1]
    return np.repeat(np.arange(clients), np.diff(ends, prepend=0, append=size))


def _shards(
    labels: NDArray[np.int64], clients: int, shards_per_client: int, min_examples: int, seed: int
) -> list[Indices]:
    shards = clients * shards_per_client
    if len(labels) // shards * shards_per_client < min_examples:
        raise DataError(
            f"{len(labels)} examples make {shards} shards of {len(labels) // shards}, so client 0 and all others get "
            f"{len(labels) // shards * shards_per_client} of at least {min_examples} examples: "
            "use fewer clients, fewer shards_per_client or more data"
        )
    order, size = np.argsort(labels, kind="stable"), len(labels) // shards
    chosen = np.random.default_rng(seed).permutation(len(labels) // size)[:shards]
    return list(order[chosen[:, None] * size + np.arange(size)].reshape(clients, -1))
