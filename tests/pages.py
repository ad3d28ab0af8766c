"""The pages of the documentation, and the code in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/**/*.md", "src/**/*.md", "examples/**/*.md", "results/*.md", ".github/**/*.md")
    for path in ROOT.glob(pattern)
)
_FENCED = re.compile(r"^( *)```(\w+)(?: ([\w./-]+))?\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """Fenced code: its language, the file name behind that, if any, and the text."""

    page: str
    line: int
    language: str
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str, *languages: str) -> list[Block]:
    """The fenced code of a page, in order; of these languages, if any are named."""
    text = (ROOT / page).read_text()
    found = (
        Block(page, text.count("\n", 0, match.start()) + 1, match[2], match[3] or "", dedent(match[4]))
        for match in _FENCED.finditer(text)
    )
    return [block for block in found if not languages or block.language in languages]


def save_files(page: str, folder: Path) -> list[str]:
    """Save the blocks that have a file name under it; their names."""
    named = [block for block in blocks(page) if block.name]
    for block in named:
        (folder / block.name).write_text(block.text)
    return [block.name for block in named]
