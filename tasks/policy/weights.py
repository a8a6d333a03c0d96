"""What the weight files of a Hugging Face checkpoint hold, by their headers alone.

No tensor is read and torch is not needed, so that a checkpoint can be refused before any work.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.policy.refusal import refuse

INDEX = "model.safetensors.index.json"  # of a checkpoint in several files: which tensor is in which
# The precisions in which policies are kept: as config.json calls them, and as safetensors does.
DTYPES = {"float32": "F32", "bfloat16": "BF16"}


@dataclass(frozen=True)
class Stored:
    """Where a tensor is, and what it is. Example: `Stored("model.safetensors", "BF16", (320, 64))`."""

    file: str
    dtype: str
    shape: tuple[int, ...]


def files_in_index(folder: Path) -> set[str]:
    """The weight files that the index of a checkpoint names; none for one in a single file."""
    index = folder / INDEX
    return set(json.loads(index.read_text())["weight_map"].values()) if index.is_file() else set()


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """Every tensor of a checkpoint by name.

    Raises ValueError, in one sentence, for a file that cannot be read, and a tensor in two files.
    """
    from safetensors import SafetensorError, safe_open

    found: dict[str, Stored] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="numpy") as file:
                slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118, it is no dict
                held = {name: Stored(path.name, s.get_dtype(), tuple(s.get_shape())) for name, s in slices.items()}
        except SafetensorError as error:
            refuse(folder, f", whose {path.name} cannot be read ({error})", "whole safetensors files")
        for name in held.keys() & found.keys():
            refuse(folder, f", which has {name} in {found[name].file} and in {path.name}", "each tensor in one file")
        found |= held
    return found


def weights_dtype(folder: Path, config: Mapping[str, Any]) -> str:
    """The precision in which a checkpoint is kept: what its config.json names, else that of its tensors.

    Raises ValueError for one in which no policy can be kept.
    """
    allowed = " or ".join(DTYPES)
    named = config.get("dtype") or config.get("torch_dtype")
    if named:
        if named not in DTYPES:
            raise ValueError(f"policy has dtype {named} in its config.json; allowed: {allowed}.")
        return named
    held = sorted({tensor.dtype for tensor in stored_tensors(folder).values()})
    for name, code in DTYPES.items():
        if held == [code]:
            return name
    raise ValueError(
        f"policy has no dtype in its config.json and tensors of {', '.join(held)}; allowed: a dtype of {allowed}, or "
        f"tensors that are all {' or all '.join(DTYPES.values())}."
    )


def check_stored(folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise ValueError, in one sentence, where a checkpoint lacks one of these tensors or has it in another shape."""
    found = stored_tensors(folder)
    for name, shape in shapes.items():
        wanted = " x ".join(map(str, shape))
        if name not in found:
            allowed = f"all tensors that its config.json asks for, this one of {wanted}"
            refuse(folder, f", whose weights lack {name}", allowed)
        if found[name].shape != shape:
            given = " x ".join(map(str, found[name].shape))
            why = f", whose {name} in {found[name].file} is {given}"
            refuse(folder, why, f"{wanted}, as its config.json says")
