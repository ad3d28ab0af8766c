"""The answer for one bench in words: a winner where there is one, and how sure that is."""

from collections.abc import Sequence
from typing import NamedTuple

from fedsparq.lab.report.tables import ACCURACY
from fedsparq.lab.report.units import times_less
from fedsparq.lab.results.grouping import Arm, Bench
from fedsparq.lab.results.units import human_bytes
from fedsparq.lab.results.verdict import judge

_NAMED = 6


class Finding(NamedTuple):
    """Who sends least, for what accuracy, against whom; `remarks` say how far the seeds bear it out."""

    method: str
    accuracy: str
    sent: str
    times: float
    compared: str
    remarks: list[str]

    @property
    def times_text(self) -> str:
        return times_less(self.times)


def find(bench: Bench) -> Finding:
    """The verdict on a bench, written."""
    verdict = judge(bench.arms)
    least, plain = verdict.least, verdict.plain
    name = least[0].name if len(least) == 1 else f"These are equal: {_names(least)}"
    compared = ""
    if least[0].label != plain.label:
        compared = f"{times_less(verdict.times_less)} less than {plain.name} at {_accuracy(plain)}"
    remarks = []
    if verdict.blurred:
        remarks.append(
            f"In accuracy these are equal, as the seeds spread wider than they differ: {_names(verdict.level)}."
        )
    if verdict.one_seed and len(bench.arms) > 1:
        remarks.append("One seed, so the spread is not known: another seed may turn this round.")
    accuracy = _accuracy(least[0]) if len(least) == 1 else " and ".join(_accuracy(arm) for arm in least[:_NAMED])
    sent = human_bytes(least[0].sent.mean)
    return Finding(name, accuracy, sent, verdict.times_less, compared, remarks)


def _accuracy(arm: Arm) -> str:
    return f"{ACCURACY.write(arm.accuracy)} %"


def _names(arms: Sequence[Arm]) -> str:
    names = [arm.name for arm in arms]
    if len(names) > _NAMED:
        return f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
