"""The command `fedsparq`."""

from __future__ import annotations

import sys

from fedsparq.cli.interrupt import Interrupts


def main() -> None:
    """Entry point. From here on an interrupt is answered; everything else is imported after that."""
    with Interrupts(sys.argv) as interrupts:
        try:
            from fedsparq.cli.entry import call

            call()
        except BaseException:
            if interrupts.seen:
                interrupts.leave()
            raise
