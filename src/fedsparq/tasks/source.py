"""Opens a data set in any form the `datasets` library knows: of the hub, a folder in its layout, `save_to_disk`'s,
images by folder, CSV, parquet."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from fedsparq.errors import DataError, MissingExtraError
from fedsparq.tasks.columns import Columns
from fedsparq.tasks.dataset import Dataset

try:
    import datasets
    from huggingface_hub import HfApi, is_offline_mode

    from fedsparq.tasks.rows import decode
except ImportError as error:
    raise MissingExtraError("reading data sets needs `datasets`: pip install 'fedsparq[torch]'") from error


def read(hub_id: str, folder: Path | None, columns: Columns, scratch: Path) -> Dataset:
    """The set of a local folder or file, or else of the hub itself; images are decoded into the scratch folder."""
    with tempfile.TemporaryDirectory(prefix="fedsparq-") as temporary:
        found = _load_from_hub(hub_id) if folder is None else _load_from_folder(folder, temporary)
        return decode(hub_id if folder is None else str(folder), found, columns, scratch)


def _load_from_folder(folder: Path, temporary: str) -> Any:
    shown = not datasets.utils.are_progress_bars_disabled()
    datasets.utils.disable_progress_bars()
    try:
        if any((folder / name).is_file() for name in ("dataset_dict.json", "state.json")):
            saved = datasets.load_from_disk(str(folder))
            return saved if isinstance(saved, dict) else {"train": saved}
        if folder.is_file():
            return datasets.load_dataset(str(folder.parent), data_files=folder.name, cache_dir=temporary)
        return datasets.load_dataset(str(folder), cache_dir=temporary)
    except Exception as error:  # the library raises many kinds, down to plain Exception
        raise DataError(f"cannot read a data set from {folder}: {_first_line(error)}") from error
    finally:
        if shown:
            datasets.utils.enable_progress_bars()


def _load_from_hub(hub_id: str) -> Any:
    try:
        if not is_offline_mode():  # one quick question, where load_dataset would ask again for 20 seconds
            HfApi().dataset_info(hub_id, timeout=10)
        return datasets.load_dataset(hub_id)
    except Exception as error:  # as above, and every kind of network failure
        raise DataError(
            f"data set {hub_id!r} is not in $FEDSPARQ_DATASETS, and the hub did not give it ({_first_line(error)}). "
            f"Fetch it where there is a network: hf download --repo-type dataset {hub_id} --local-dir DIR/{hub_id}, "
            "then set FEDSPARQ_DATASETS=DIR"
        ) from error


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]
