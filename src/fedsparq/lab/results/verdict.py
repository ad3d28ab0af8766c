"""Who sends least without losing accuracy, said only where the spread over seeds lets it be said."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedsparq.lab.results.grouping import Arm, reference

WITHIN = 1.0
"""Points of accuracy that count as none lost."""
_SAME_BYTES = 0.01


@dataclass(frozen=True)
class Verdict:
    """The methods that send least among those as accurate as the best. Several are equal: none of them won."""

    best: Arm
    level: Sequence[Arm]
    least: Sequence[Arm]
    plain: Arm

    @property
    def blurred(self) -> list[Arm]:
        """Those further than `WITHIN` below the best, level with it only because the seeds differ so much."""
        return [arm for arm in self.level if arm.accuracy.mean < self.best.accuracy.mean - WITHIN]

    @property
    def one_seed(self) -> bool:
        """Whether some method was run with one seed, so that nobody knows its spread."""
        return any(arm.accuracy.std is None for arm in self.level)

    @property
    def times_less(self) -> float:
        return self.plain.sent.mean / self.least[0].sent.mean


def judge(arms: Sequence[Arm]) -> Verdict:
    """Level with the best: within a point of it, or not apart from it by the seeds. Bytes are equal within 1 % too."""
    best = max(arms, key=lambda arm: arm.accuracy.mean)
    level = [
        arm for arm in arms if arm.accuracy.mean >= best.accuracy.mean - WITHIN or not arm.accuracy.apart(best.accuracy)
    ]
    level.sort(key=lambda arm: arm.sent.mean)
    first = level[0].sent
    least = [arm for arm in level if not arm.sent.apart(first) or arm.sent.mean <= first.mean * (1 + _SAME_BYTES)]
    return Verdict(best, level, least, reference(arms))
