import itertools

import numpy as np
import pytest

from fedsparq.lab.report.palette import KNOWN, PAGE, looks
from made_runs import METHODS

# Machado, Oliveira, Fernandes 2009, severity 1, on linear RGB
SIGHT = {
    "usual": np.eye(3),
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
SEVEN = [*METHODS, "fedsparq-adaptive"]


def linear(colour):
    part = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """CIE L*a*b*, D65."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = (v / n for v, n in zip(to_xyz @ np.clip(rgb, 0, 1), (0.9505, 1.0, 1.089), strict=True))
    f = [np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z)]
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(one, other):
    a, b = sorted(linear(colour) @ [0.2126, 0.7152, 0.0722] for colour in (one, other))
    return (b + 0.05) / (a + 0.05)


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("page", [0, 1], ids=["light", "dark"])
def test_the_papers_methods_and_ours_stay_apart_for_every_reader(sight, page):
    seen = {name: lab(np.array(SIGHT[sight]) @ linear(KNOWN[name].shade[page])) for name in SEVEN}
    for one, other in itertools.combinations(SEVEN, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 10, (one, other)  # 2.3 is just noticeable


def test_every_colour_can_be_seen_on_its_page():
    for name, look in KNOWN.items():
        assert contrast(look.shade.light, PAGE["surface"].light) >= 3, name
        assert contrast(look.shade.dark, PAGE["surface"].dark) >= 3, name
    for page in (0, 1):
        assert contrast(PAGE["muted"][page], PAGE["surface"][page]) >= 4.5


def test_a_method_looks_the_same_in_whatever_company():
    labels = ["mine", "fedsparq multiplier=2.0", "fedsparq", "stc", "theirs"]
    alone = {label: looks([label])[label] for label in labels}
    assert looks(labels) == alone
    assert looks(["other", *reversed(labels)]) | alone == looks(["other", *reversed(labels)])


def test_settings_share_their_methods_colour_and_differ_by_mark_or_dash():
    settings = [f"stc fraction={i}" for i in range(20)]
    found = looks(["stc", *settings])
    assert {look.shade for look in found.values()} == {KNOWN["stc"].shade}
    assert len({(look.mark, look.dash) for look in found.values()}) == 21


def test_many_methods_still_differ():
    found = looks([*KNOWN, *(f"method-{i}" for i in range(60))])
    assert len(set(found.values())) == len(KNOWN) + 60
