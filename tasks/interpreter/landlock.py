"""The file rules of a session where there are no namespaces: it may read Python's library, and change nothing."""

import os
from collections.abc import Sequence

from py_landlock import (
    AccessFs,
    PathBeneathAttr,
    RulesetAttr,
    RulesetFd,
    add_rule,
    create_ruleset,
    get_abi_version,
    restrict_self,
)
from py_landlock.abi import get_supported_fs, get_supported_scope
from py_landlock.prctl import set_no_new_privs

_READ_FILE = AccessFs.READ_FILE | AccessFs.EXECUTE  # a library is mapped for execution


def readable(folders: Sequence[str], hidden: Sequence[str]) -> int:
    """A ruleset, as a descriptor: these folders and files may be read, but for what lies in the hidden ones."""
    abi = get_abi_version()
    handled = get_supported_fs(abi)
    ruleset = create_ruleset(RulesetAttr(int(handled), 0, int(get_supported_scope(abi))))
    for folder in folders:
        _allow(ruleset, os.path.realpath(folder), {os.path.realpath(path) for path in hidden})
    _add(ruleset, "/dev/null", AccessFs.READ_FILE | AccessFs.WRITE_FILE)
    return ruleset


def _allow(ruleset: RulesetFd, path: str, hidden: set[str]) -> None:
    """Rules hold for all that is below, so a folder around a hidden one is allowed by its other entries."""
    if path in hidden:
        return
    if os.path.isdir(path) and any(other.startswith(f"{path}/") for other in hidden):
        for name in os.listdir(path):
            if not os.path.islink(f"{path}/{name}"):
                _allow(ruleset, f"{path}/{name}", hidden)
    elif os.path.isdir(path):
        _add(ruleset, path, _READ_FILE | AccessFs.READ_DIR)
    elif os.path.isfile(path):
        _add(ruleset, path, _READ_FILE)


def _add(ruleset: RulesetFd, path: str, access: AccessFs) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    add_rule(ruleset, PathBeneathAttr(int(access), fd))
    os.close(fd)


def enter(ruleset: int) -> None:
    """From now on this process, and its threads to come, can do no more than the rules allow."""
    set_no_new_privs()
    restrict_self(RulesetFd(ruleset), None)
