"""No test writes into the user's own folders."""

import pytest


@pytest.fixture(autouse=True)
def _state_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
