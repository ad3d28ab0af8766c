"""What a run or a comparison is, read from TOML and the command line. Everything is checked before anything runs."""

from fedsparq.specs.files import compare_of, load_bundled, load_compare, load_run, locate, read_spec
from fedsparq.specs.parts import FaultSpec
from fedsparq.specs.run import RunSpec
from fedsparq.specs.tables import check, read_toml

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
