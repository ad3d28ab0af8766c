"""`python -m fedsparq` is the command `fedsparq`."""

from fedsparq.cli import main

main()
