"""SOBAA's channel: exact without noise; outages and errors as often as they must be."""

from statistics import NormalDist

import numpy as np
import pytest

import fedsparq
from fedsparq import Layout, Update
from fedsparq.methods.sobaa import OverTheAir

LAYOUT = Layout.of({"w": (50, 40), "b": (50,)})


def replies(number=1, clients=3, fraction=0.2):
    method, made = fedsparq.method("sobaa", fraction=fraction), []
    for client in range(clients):
        update = np.random.default_rng(client).normal(size=LAYOUT.size).astype(np.float32)
        state = method.begin(method.init(LAYOUT), number)
        payload, after = method.compress(update, state, np.random.default_rng(client))
        made.append((update, payload, after))
    return made


def close(aggregator, made, state=None):
    accumulator = aggregator.open(LAYOUT, state or aggregator.init(LAYOUT))
    for client, (_, payload, _) in enumerate(made):
        accumulator.add(Update(client, payload, 1))
    return accumulator.close()


@pytest.mark.parametrize("estimate", ["mean", "majority"])
def test_without_noise_and_outage_it_is_the_sum_of_signs(estimate):
    made = replies()
    aggregate = close(OverTheAir(1.0, 0.0, 0.0, estimate), made)
    indices = made[0][1].indices
    assert all((payload.indices == indices).all() for _, payload, _ in made)
    signs = np.sum([np.sign(update[indices]) for update, _, _ in made], axis=0)
    scale = np.mean([np.abs(update[indices]).mean() for update, _, _ in made])
    expected = np.zeros(LAYOUT.size)
    expected[indices] = scale * (signs / 3 if estimate == "mean" else np.sign(signs))
    np.testing.assert_allclose(aggregate.mean, expected, rtol=1e-5, atol=1e-7)
    assert aggregate.measures == {"channel_uses": round(0.2 * LAYOUT.size) + 1, "heard": 3}
    assert aggregate.shares == {0: 1.0, 1: 1.0, 2: 1.0}


def test_clients_of_one_round_have_one_mask_and_rounds_have_others():
    one, again, other = (replies(number)[0][1].indices.tolist() for number in (1, 1, 2))
    assert one == again != other
    late = replies(7)[2][1]
    assert late.selection == replies(7)[0][1].selection


def test_feedback_is_on_what_was_sent():
    for update, payload, state in replies():
        np.testing.assert_allclose(payload.dense() + state.residual, update, atol=1e-6)


@pytest.mark.parametrize("silent", [0.1, 1.0])
def test_outages_are_as_frequent_as_they_must_be(silent):
    channel, count = OverTheAir(silent=silent), 4000
    away = sum(not channel.is_heard(number, 5) for number in range(count)) / count
    chance = 1 - np.exp(-silent)
    assert abs(away - chance) < 4 * np.sqrt(chance * (1 - chance) / count)


def test_who_is_not_heard_does_not_count():
    aggregate = close(OverTheAir(silent=1e9), replies())
    assert set(aggregate.shares.values()) == {0.0}
    assert not aggregate.mean.any()


@pytest.mark.parametrize(("power", "noise"), [(1.0, 1.0), (0.5, 2.0)])
def test_one_client_errs_as_often_as_it_must(power, noise):
    channel, count = OverTheAir(power, noise, 0.0), 200_000
    wrong = (channel.received(np.ones(count), 3) < 0).mean()
    chance = 1 - NormalDist().cdf(np.sqrt(2 * power / noise))
    assert abs(wrong - chance) < 4 * np.sqrt(chance * (1 - chance) / count)


def test_a_reply_at_other_places_does_not_count():
    made = replies(1, 2) + replies(2, 1)
    aggregate = close(OverTheAir(silent=0.0), made)
    assert aggregate.shares == {0: 1.0, 1: 1.0, 2: 0.0}
    odd = fedsparq.Payload.full(LAYOUT, np.ones(LAYOUT.size, np.float32))
    aggregate = close(OverTheAir(silent=0.0), [*replies(1, 2), (None, odd, None)])
    assert aggregate.shares == {0: 1.0, 1: 1.0, 2: 0.0}
