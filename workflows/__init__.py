"""The workflows, and how flytekit is set up before it runs one on this machine.

Importing flytekit makes sandbox folders under the system's temporary folder, for every process, and never removes
them. A run has nothing there, so they go when the process ends. Flyte's cache of finished stages, by which a killed run
continues, is in the folder of the runs: deleting `runs/` starts anew.
"""

import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
from flytekit.clis.sdk_in_container import utils
from flytekit.configuration import Config
from flytekit.core import checkpointer, data_persistence, local_cache
from flytekit.interaction import click_types

from tasks.folders import RUNS, DiskError, remove_at_exit, writing
from tasks.run.given import read_given

TASKS = Path(__file__).parents[1] / "tasks"


class SettingsParam(click_types.JsonParamType):
    """flytekit's own, but for what it says of broken JSON or a broken file."""

    def _parse(self, value: Any, param: Any) -> Any:
        return read_given(value, param.name if param else "config") if isinstance(value, str) else value


_traceback = utils.pretty_print_traceback


def _sentence_alone(error: Exception, verbosity: int = 1) -> None:
    """Print how a command ended: of a bad input, which this project refused, and of a full disk the sentence alone.

    `pyflyte -v` shows the rest too. Of a ValueError that a library raised it is needed.
    """
    *_, (raised_in, _) = traceback.walk_tb(error.__traceback__)
    ours = Path(raised_in.f_code.co_filename).is_relative_to(TASKS)
    if verbosity or not (isinstance(error, DiskError) or (type(error) is ValueError and ours)):
        _traceback(error, verbosity)
    else:  # flytekit puts the name of the task on a line above
        click.echo(str(error).strip().splitlines()[-1].strip(), err=True)


def _naming(folder: Callable[[], str], call: Callable[..., Any]) -> Callable[..., Any]:
    """A function of flytekit that names the folder into which it writes where the disk is full."""

    def called(*given: Any, **named: Any) -> Any:
        with writing(Path(folder())):
            return call(*given, **named)

    return called


if not sys.stderr.isatty():
    os.environ.setdefault("COLUMNS", "600")  # a log file keeps an error's one sentence on one line
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read when torch is loaded; its warnings are for developers
click_types.JsonParamType = SettingsParam  # of every input that is a record
utils.pretty_print_traceback = _sentence_alone
local_cache.CACHE_LOCATION = str((RUNS / ".flyte-cache").absolute())
for _name in ("initialize", "get", "set"):  # else a full disk is said without a name
    _call = _naming(lambda: local_cache.CACHE_LOCATION, getattr(local_cache.LocalTaskCache, _name))
    setattr(local_cache.LocalTaskCache, _name, staticmethod(_call))
_checkpoint: Any = checkpointer.SyncCheckpoint  # flytekit makes one for each task, with a temporary folder
_checkpoint.__init__ = _naming(tempfile.gettempdir, _checkpoint.__init__)
_checkpoint._td = SimpleNamespace(cleanup=lambda: None)  # of one that could not be made
remove_at_exit(Path(data_persistence.default_local_file_access_provider.local_sandbox_dir).parent.parent)
remove_at_exit(Path(Config.local_sandbox_path))
