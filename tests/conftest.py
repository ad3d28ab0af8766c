"""What all tests share. This file also makes the helpers beside it importable from every room."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("fedsparq", deadline=None, derandomize=True)
settings.load_profile("fedsparq")

SHARED = Path(__file__).parents[2] / "shared" / "datasets"


@pytest.fixture(scope="session", autouse=True)
def _numbers_do_not_depend_on_cores() -> None:
    try:
        import torch
    except ImportError:
        return
    torch.set_num_threads(1)


@pytest.fixture
def real_datasets(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the full data sets; without it the test is skipped."""
    folder = Path(os.environ.get("FEDSPARQ_DATASETS", SHARED))
    if not folder.is_dir():
        pytest.skip("set FEDSPARQ_DATASETS to a folder with the data sets")
    monkeypatch.setenv("FEDSPARQ_DATASETS", str(folder))
    return folder
