"""What the tokenizer and the weight files of a Hugging Face checkpoint hold.

Only headers of weights are read and torch is not needed, so that a checkpoint can be refused before any work.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.policy import refuse

INDEX = "model.safetensors.index.json"  # of a checkpoint in several files: which tensor is in which
# The precisions in which policies are kept: as config.json calls them, and as safetensors does.
DTYPES = {"float32": "F32", "bfloat16": "BF16"}


@dataclass(frozen=True)
class Stored:
    """Where a tensor is, and what it is. Example: `Stored("model.safetensors", "BF16", (320, 64))`."""

    file: str
    dtype: str
    shape: tuple[int, ...]


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file of a checkpoint. Raises ValueError, in one sentence, for anything else."""
    allowed = "a file with a JSON object"
    try:
        text = path.read_bytes()
        found = json.loads(text)
    except OSError as error:
        refuse(path.parent, f", whose {path.name} cannot be read ({error.strerror})", allowed)
    except (ValueError, RecursionError) as error:
        why = f"cannot be read as JSON ({' '.join(str(error).split())})"
        if text.startswith(b"version https://git-lfs"):
            why = "is a pointer of Git LFS, not the file itself (git lfs pull)"
        refuse(path.parent, f", whose {path.name} {why}", allowed)
    if not isinstance(found, dict):
        refuse(path.parent, f", whose {path.name} holds a {type(found).__name__}", allowed)
    return found


# Beside the weights, all that decides how a policy talks: configuration, tokenizer, templates.
SETTINGS = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "chat_templates/*", "additional_chat_templates/*")
NO_SETTINGS = ("policy.json", INDEX)  # of the weights, and others in each version


def settings_digest(folder: Path) -> str:
    """SHA-256 over the files of a checkpoint beside its weights, by name and content: the same for all versions of a
    run. Whatever is kept warm and reads any of them depends on it."""
    total = hashlib.sha256()
    for path in sorted({path for pattern in SETTINGS for path in folder.glob(pattern)}):
        if path.is_file() and path.name not in NO_SETTINGS and not path.name.startswith("_"):
            content = path.read_bytes()
            total.update(f"{path.relative_to(folder)} {len(content)} ".encode() + content)
    return total.hexdigest()


def files_in_index(folder: Path) -> set[str]:
    """The weight files that the index of a checkpoint names; none for one in a single file."""
    index = folder / INDEX
    return _weight_map(index) if index.is_file() else set()


def _weight_map(index: Path) -> set[str]:
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        refuse(index.parent, f", whose {index.name} has no weight_map", "a weight_map of tensors to files")
    return set(names.values())


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
    if named := config.get("dtype") or config.get("torch_dtype"):
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
        if (held := found.get(name)) is None:
            why = f", whose weights lack {name}"
            refuse(folder, why, f"all tensors that its config.json asks for, this one of {wanted}")
        if held.shape != shape:
            why = f", whose {name} in {held.file} is {' x '.join(map(str, held.shape))}"
            refuse(folder, why, f"{wanted}, as its config.json says")


def check_vocabulary(folder: Path, name: str, rows: int) -> None:
    """Raise ValueError where the tokenizer has a token beyond the `rows` of the embeddings, or none that ends a turn.

    The model may have more rows than there are tokens: vocabularies are padded.
    """
    ids = tokens(read_json(folder / "tokenizer.json"))
    if (count := max(ids.values(), default=-1) + 1) > rows:
        why = f", whose tokenizer has {count} tokens and whose config.json has vocab_size {rows}"
        refuse(name, why, "at most as many tokens as vocab_size")
    end = ""  # as transformers finds it
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        given = read_json(folder / file).get("eos_token") if (folder / file).is_file() else None
        end = (given["content"] if isinstance(given, dict) else given) or end
    if end not in ids:
        why = f"names {end} as its eos_token, which is none of its tokens" if end else "names no eos_token"
        refuse(name, f", whose tokenizer {why}", "a tokenizer with a token to end a turn")


def tokens(tokenizer: dict[str, Any]) -> dict[str, int]:
    """Token to id of a parsed tokenizer.json: those of its model, and those added."""
    listed = tokenizer.get("model", {}).get("vocab", {})
    if isinstance(listed, list):  # a unigram model lists pairs of token and score, by id
        listed = {token: i for i, (token, _) in enumerate(listed)}
    return {**listed, **{added["content"]: added["id"] for added in tokenizer.get("added_tokens", [])}}
