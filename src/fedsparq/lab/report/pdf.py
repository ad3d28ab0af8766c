"""A page printed to PDF by the browser that is installed."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from fedsparq.errors import RunError

_NAMES = (
    "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge", "msedge",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Microsoft Edge.app/Contents/MacOS/Microsoft Edge",
)  # fmt: skip
_PATIENCE = 180


def find_browser() -> str:
    """A browser that prints, or an error that says what to install."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        raise RunError(
            "writing a PDF needs Chromium, Google Chrome or Microsoft Edge on the PATH; none was found. Install one "
            "(Debian: apt install chromium), or write report.html and print it from any browser"
        )
    return found


def print_page(browser: str, page: Path, out: Path) -> None:
    """Print `page` to `out`. Raises RunError with the browser's own words where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "page.pdf"
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
        options += [
            "--disable-sync",
            "--disable-component-update",
            "--no-pdf-header-footer",
            f"--user-data-dir={folder}",
        ]
        command = [browser, *options, f"--print-to-pdf={made}", page.resolve().as_uri()]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RunError(f"{browser} could not print the report: {error}") from error
        if not made.is_file():
            raise RunError(
                f"{browser} printed no PDF: {done.stderr.strip()[-500:] or f'it ended with {done.returncode}'}"
            )
        shutil.copyfile(made, out)
