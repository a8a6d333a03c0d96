"""A policy directory: a Hugging Face checkpoint with a `policy.json` beside it.

    policy/  config.json  model.safetensors  tokenizer.json  tokenizer_config.json  chat_template.jinja  policy.json

Made by `tasks/policy/tiny.py`, `import_checkpoint` (a user's own checkpoint) and the export of the training. A
directory without its `policy.json` is unfinished.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.folders import atomic_directory
from tasks.json_files import read_record
from tasks.json_records import Record
from tasks.policy import refuse
from tasks.policy.architectures import ARCHITECTURES, check_architecture
from tasks.policy.contents import (
    INDEX,
    check_vocabulary,
    files_in_index,
    read_json,
    stored_tensors,
    taken,
    weights_dtype,
)

REMOVED = "_removed.txt"  # all that is left of a version that a run did not keep
SETTLED_NS = 2_000_000_000  # after this time a further write changes a file's modification time


@dataclass(frozen=True)
class Manifest(Record):
    """What `policy.json` says. Example: `{"version": 7, "digest": "5f0c…", "parent": "b2a1…"}`."""

    version: int  # 0 for the policy that a run starts from, one more for each training stage
    digest: str  # SHA-256 of the weights and of config.json
    parent: str  # the digest of the policy that this one was trained from; "" for version 0


def digest(folder: Path) -> str:
    """SHA-256 over config.json and the weight files, by name and content."""
    total = hashlib.sha256()
    for path in [folder / "config.json", *sorted(folder.glob("*.safetensors"))]:
        total.update(path.name.encode())
        total.update(file_hash(path))
    return total.hexdigest()


_hashes: dict[tuple[int, ...], bytes] = {}


def file_hash(path: Path) -> bytes:
    """SHA-256 of a file, cached in this process: a stage asks several times, and weights have gigabytes.

    The key is device, inode, size and times of change, not the path, so that the file may be moved. A change without
    any of these, as on a failing disk, is noticed by the next process.
    """
    stat = path.stat()
    key = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    if key in _hashes:
        return _hashes[key]
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").digest()
    if time.time_ns() - max(stat.st_mtime_ns, stat.st_ctime_ns) >= SETTLED_NS:
        _hashes[key] = found
    return found


def write_manifest(folder: Path, version: int, parent: str) -> Manifest:
    """Write `policy.json`, the last file: it makes the directory a policy."""
    manifest = Manifest(version=version, digest=digest(folder), parent=parent)
    (folder / "policy.json").write_text(json.dumps(manifest.to_dict(), indent=1) + "\n")
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """The `policy.json` of a policy directory; ValueError when it is missing or does not fit the weights."""
    path = folder / "policy.json"
    if (folder / REMOVED).is_file():
        refuse(folder, ", which its run removed (retention)", "a version that it kept")
    if not path.is_file():
        refuse(folder, "", "a finished policy directory, this one has no policy.json")
    manifest = read_record(path, Manifest)
    if manifest.digest != digest(folder):
        refuse(folder, "", "weights that fit its policy.json, these were changed")
    return manifest


def check_checkpoint(folder: Path, *, name: str = "", weights: Collection[str] | None = None) -> dict[str, Any]:
    """The config.json of a Hugging Face directory that this project can train.

    `name` is what the user called it, its path unless given; `weights` the names of its weight files where they are not
    there yet. Raises ValueError, in one sentence, for what is missing, incomplete or not supported.
    """
    name = name or str(folder)
    allowed = f'"tiny" or a directory with a Hugging Face checkpoint of {" or ".join(ARCHITECTURES)}'
    if not folder.is_dir():
        refuse(name, ", which is no directory", allowed)
    if not (folder / "config.json").is_file():
        refuse(name, ", which has no config.json", allowed)
    config = read_json(folder / "config.json")
    if config.get("model_type") not in ARCHITECTURES:
        refuse(name, f" of architecture {config.get('model_type')}", allowed)
    if not (folder / "tokenizer.json").is_file():
        refuse(name, ", which has no tokenizer.json", f"{allowed}, with its tokenizer")
    template = folder / "tokenizer_config.json"  # which may hold it
    in_config = template.is_file() and read_json(template).get("chat_template")
    if not in_config and not (folder / "chat_template.jinja").is_file():
        refuse(name, ", whose tokenizer has no chat template", f"{allowed} for chat")
    names = {path.name for path in folder.glob("*.safetensors")} if weights is None else set(weights)
    if not names:
        refuse(name, ", which has no *.safetensors weights", allowed)
    if missing := ", ".join(sorted(files_in_index(folder) - names)):
        refuse(name, f", whose {INDEX} names {missing}, which is not there", f"{allowed}, with all of its weights")
    check_architecture(config)
    check_vocabulary(folder, name, config["vocab_size"])
    if weights is None:
        stored_tensors(folder)
    if weights is None or config.get("dtype") or config.get("torch_dtype"):
        weights_dtype(folder, config)
    return config


def import_checkpoint(source: Path, target: Path) -> Manifest:
    """Copy a user's checkpoint to `target` as policy 0 of a run; the source is not changed.

    Only what a policy needs is copied, see `taken`.
    """
    check_checkpoint(source)
    with atomic_directory(target) as folder:
        for path in taken(source)[0]:
            shutil.copy2(path, folder / path.name)
        return write_manifest(folder, version=0, parent="")


def copy_all_but(source: Path, target: Path, drop: tuple[str, ...]) -> None:
    """Copy the plain files of `source`, except those whose name fits one of the patterns."""
    for path in source.iterdir():
        if path.is_file() and not any(path.match(pattern) for pattern in drop):
            shutil.copy2(path, target / path.name)
