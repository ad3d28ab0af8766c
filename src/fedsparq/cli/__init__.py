"""The command `fedsparq`."""

from __future__ import annotations

import sys

from fedsparq.cli.interrupt import Interrupts


def main() -> None:
    """Run the command. Interrupts are answered from here on; everything else is imported after that."""
    with Interrupts(sys.argv) as interrupts:
        try:
            from fedsparq.cli.app import call

            call()
        except ModuleNotFoundError as error:
            if error.name not in ("click", "rich"):
                raise
            print(f"fedsparq: the command needs {error.name}: pip install 'fedsparq[cli]'", file=sys.stderr)
            sys.exit(2)
        except BaseException:
            if interrupts.seen:
                interrupts.leave()
            raise
