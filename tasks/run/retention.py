"""What a run leaves behind of policy versions and trainer states that nothing in it will read again.

The folders stay, emptied, with a note: cached stages whose result they are still find them.
"""

import shutil
from pathlib import Path

from tasks.config import RetentionConfig
from tasks.policy.checkpoint import REMOVED


def drop_old_versions(run_folder: Path, newest: int, config: RetentionConfig) -> None:
    """Empty the folders of versions before the `config.last` up to `newest`, but policies that `config.every` keeps.

    Removed in this order, so that a process killed here leaves nothing that looks like a policy and is none.
    """
    for version in range(newest - config.last + 1):
        _empty(run_folder / "states" / f"{version:05d}")
        if version % config.every:
            _empty(run_folder / "policies" / f"{version:05d}")


def _empty(folder: Path) -> None:
    if not folder.is_dir() or (folder / REMOVED).exists():
        return
    (folder / "policy.json").unlink(missing_ok=True)
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif not path.name.startswith("_"):  # what the training measured
            path.unlink()
    (folder / REMOVED).write_text("Removed by the run's own settings: retention.last and retention.every.\n")
