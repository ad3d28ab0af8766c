import pytest

from fedsparq.lab.results.units import human_bytes


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (12, "12 B"),
        (999.7, "1.00 kB"),
        (6_240_386, "6.24 MB"),
        (185e6, "185 MB"),
        (4.69e9, "4.69 GB"),
        (999_600, "1.00 MB"),
        (float("nan"), "not finite"),
    ],
)
def test_bytes_for_people(count, text):
    assert human_bytes(count) == text
