"""Updates that would be refused as too long go in parts."""

import numpy as np
import pytest
from small_federation import (
    FEDSPARQ,
    LAYOUT,
    server,
    updates,
    vector,
)

from fedsparq.federate.client import Client, Trained
from fedsparq.federate.clip import clip_norm
from fedsparq.federate.store import MemoryStore
from fedsparq.federate.validation import Validation
from fedsparq.methods import METHODS, method, resolver


@pytest.mark.parametrize("name", [name for name in sorted(METHODS) if method(name).traits.conserves_mass])
def test_long_update_goes_in_parts(name: str) -> None:
    chosen = method(name)
    payload, state = chosen.compress(100 * updates(0)(1), chosen.init(LAYOUT), np.random.default_rng(0))
    if not payload.kept:
        pytest.skip("nothing of so small a model fits this method's budget")
    limit = payload.norm / 10
    part, left, clipped = clip_norm(limit, payload, state, chosen)
    assert clipped
    assert 0.4 * limit < part.norm <= limit
    assert state.residual is not None
    assert left.residual is not None
    np.testing.assert_allclose(part.dense() + left.residual, payload.dense() + state.residual, rtol=1e-5, atol=1e-3)
    assert clip_norm(11 * limit, payload, state, chosen) == (payload, state, False)
    assert clip_norm(float("inf"), payload, state, chosen)[2] is False


def test_client_that_was_long_unheard_is_heard_again() -> None:
    """Its replies of ten rounds are lost; under a norm limit it must not be shut out for ever."""
    made = server(FEDSPARQ, Validation(norm_limit="3x median"))
    clients = [Client(n, LAYOUT, lambda *_: Trained(vector(1), 1), MemoryStore(), resolver()) for n in range(3)]
    heard = []
    for number in range(1, 25):
        made.open_round(range(3))
        for one in clients:
            answer = one.answer(made.broadcast(one.number))
            assert answer.message is not None
            if one.number != 0 or number > 10:
                made.receive(one.number, answer.message)
        if 0 in made.close_round().counted:
            heard.append(number)
    assert len(heard) >= 10
    unsent = clients[0].store.load(0, LAYOUT).state
    assert unsent is not None
    assert unsent.compression.residual is not None
    assert np.abs(unsent.compression.residual).max() < 10
