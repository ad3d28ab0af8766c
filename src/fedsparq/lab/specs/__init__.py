"""What a run or a comparison is, read from TOML and the command line. Everything is checked before anything runs."""

from fedsparq.lab.specs.files import compare_of, load_bundled, load_compare, load_run, locate, read_spec
from fedsparq.lab.specs.parts import FaultSpec
from fedsparq.lab.specs.run import RunSpec
from fedsparq.lab.tables import check, read_toml

__all__ = [
    "FaultSpec",
    "RunSpec",
    "check",
    "compare_of",
    "load_bundled",
    "load_compare",
    "load_run",
    "locate",
    "read_spec",
    "read_toml",
]
