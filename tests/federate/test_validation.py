"""What is too much, in numbers that can be checked by hand."""

import math

import numpy as np
import pytest
from small_federation import LAYOUT, vector

from fedsparq.errors import OptionError, WireError
from fedsparq.federate.events import MAX_EVENTS, MAX_PER_CLIENT, Event, EventLog
from fedsparq.federate.validation import Limit, Size, Validation, check_sound, size_of, too_large
from fedsparq.layout import Buffers
from fedsparq.payload import Payload


def payload(value: float, buffers: Buffers | None = None) -> Payload:
    return Payload.full(LAYOUT, vector(value), buffers)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("off", Limit()),
        (" OFF ", Limit()),
        ("10", Limit(10.0)),
        ("2.5e-3", Limit(0.0025)),
        ("3x median", Limit(3.0, relative=True)),
        ("1.5 X Median", Limit(1.5, relative=True)),
    ],
)
def test_limits_as_people_write_them(text: str, limit: Limit) -> None:
    assert Limit.parse("norm_limit", text) == limit


@pytest.mark.parametrize("text", ["", "on", "-1", "0", "3x", "x median", "3x mean", "1.2.3", "nan", "inf", "1e999"])
@pytest.mark.parametrize("name", ["norm_limit", "examples_limit"])
def test_other_limits_are_refused(name: str, text: str) -> None:
    with pytest.raises(OptionError, match=f"{name}=.*3x median"):
        Validation(**{name: text})  # type: ignore[arg-type]


def test_other_settings_are_refused() -> None:
    for wrong in ({"min_replies": 0}, {"deadline": 0.0}, {"deadline": -1.0}, {"deadline": math.nan}):
        with pytest.raises(OptionError):
            Validation(**wrong)  # type: ignore[arg-type]


def test_bounds() -> None:
    sizes = [Size(1, 10, 100), Size(2, 20, 200), Size(50, 30, 4_000_000_000)]
    assert Validation().bounds(sizes) == Size(math.inf, math.inf, math.inf)
    assert Validation(norm_limit="5").bounds(sizes) == Size(5, math.inf, math.inf)
    assert Validation(norm_limit="3x median").bounds(sizes) == Size(6, 60, math.inf)
    assert Validation(examples_limit="2x median").bounds(sizes) == Size(math.inf, math.inf, 400)
    assert not Validation(norm_limit="5", examples_limit="9").needs_whole_round
    assert Validation(norm_limit="5x median").needs_whole_round
    assert Validation(examples_limit="5x median").needs_whole_round


def test_what_is_too_large_is_named() -> None:
    bounds = Size(6, 60, 400)
    assert too_large(Size(6, 60, 400), bounds) == ""
    assert "norm 6.5 is above the limit 6" in too_large(Size(6.5, 0, 0), bounds)
    assert "statistics moved by 61" in too_large(Size(0, 61, 0), bounds)
    assert "401 examples are claimed" in too_large(Size(0, 0, 401), bounds)


def test_norm_and_size() -> None:
    assert payload(-2).norm == pytest.approx(2 * math.sqrt(LAYOUT.size))
    before = Buffers(np.array([1.0, 2.0], np.float32), np.array([5], np.int64))
    after = Buffers(np.array([4.0, 6.0], np.float32), np.array([6], np.int64))
    size = size_of(payload(1, after), before, 7, Validation(norm_limit="1"))
    assert size == Size(pytest.approx(math.sqrt(LAYOUT.size)), 5.0, 7)
    assert size_of(payload(1), None, 7, Validation()) == Size(0, 0, 7)


def test_absurd_is_refused() -> None:
    before = Buffers(np.zeros(1, np.float32), np.array([5], np.int64))
    check_sound(payload(1e6), None)
    check_sound(payload(1, Buffers(np.ones(1, np.float32), np.array([1_000_005], np.int64))), before)
    for wrong, words in [
        (payload(1.1e6), "a value is above"),
        (payload(-1.1e6), "a value is above"),
        (payload(1), "are missing"),
        (payload(1, Buffers(np.array([-2e6], np.float32), np.array([5], np.int64))), "a statistic"),
        (payload(1, Buffers(np.ones(1, np.float32), np.array([2**63 - 1], np.int64))), "a counter"),
        (payload(1, Buffers(np.ones(1, np.float32), np.array([-(2**63)], np.int64))), "a counter"),
    ]:
        with pytest.raises(WireError, match=words):
            check_sound(wrong, before)


def test_a_flood_of_events_is_counted_not_listed() -> None:
    log = EventLog()
    for _ in range(100):
        log.add(Event(7, 1, "spam"))
    for client in range(2000):
        log.add(Event(client, 1, "news"))
    assert len(log.listed) == MAX_EVENTS
    assert sum(event.client == 7 for event in log.listed) == MAX_PER_CLIENT
    assert len(log.listed) + log.unlisted == 2100
