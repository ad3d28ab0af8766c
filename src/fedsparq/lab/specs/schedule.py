"""Who takes part in which round: a function of the seed, known before anything runs; or coins that nobody foresees."""

from __future__ import annotations

import secrets

import numpy as np


def chosen_clients(clients: int, a_round: int, seed: int, number: int) -> list[int]:
    """The clients that take part in a round."""
    if a_round == clients:
        return list(range(clients))
    drawn = np.random.default_rng([seed, number, 6]).choice(clients, a_round, replace=False)
    return sorted(int(client) for client in drawn)


def most_rounds(clients: int, a_round: int, seed: int, rounds: int) -> int:
    """In how many of so many rounds that client takes part which is in most of them."""
    if a_round == clients:
        return rounds
    taken = np.zeros(clients, np.int64)
    for number in range(1, rounds + 1):
        taken[chosen_clients(clients, a_round, seed, number)] += 1
    return int(taken.max())


def poisson_clients(clients: int, rate: float) -> list[int]:
    """Each client with this probability, by a coin of its own from the system's random source; maybe nobody."""
    coins = np.frombuffer(secrets.token_bytes(8 * clients), np.uint64) >> np.uint64(11)
    return [int(client) for client in np.flatnonzero(coins < rate * 2.0**53)]
