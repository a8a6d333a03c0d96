"""What the tokenizer and the weight files of a Hugging Face checkpoint hold.

Only headers of weights are read and torch is not needed, so that a checkpoint can be refused before any work.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.json_files import read_object
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
    try:
        return read_object(path)
    except ValueError as error:
        why, _, allowed = str(error).removeprefix(f"{path} ").rstrip(".").rpartition("; allowed: ")
        refuse(path.parent, f", whose {path.name} {why}", allowed)


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


def weight_files(folder: Path) -> list[Path]:
    """The weight files of a checkpoint: those that its index names, all where it has none."""
    listed = files_in_index(folder)
    return sorted(path for path in folder.glob("*.safetensors") if not listed or path.name in listed)


# What a policy is made of, beside its weights and its policy.json. Other files of a checkpoint are not taken over.
KEPT = (
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.jinja",
    "LICENSE*",
)


def taken(folder: Path) -> tuple[list[Path], list[Path]]:
    """The files of a checkpoint that a policy needs, and those that are left: other formats, optimizers, notes."""
    wanted = {*weight_files(folder), folder / INDEX}
    files = sorted(path for path in folder.iterdir() if path.is_file())
    kept = [path for path in files if path in wanted or any(path.match(pattern) for pattern in KEPT)]
    own = [path for path in files if path.name.startswith("_") or path.name == "policy.json"]
    return kept, [path for path in files if path not in kept and path not in own]


def files_in_index(folder: Path) -> set[str]:
    """The weight files that the index of a checkpoint names; none for one in a single file."""
    index = folder / INDEX
    return _weight_map(index) if index.is_file() else set()


def _weight_map(index: Path) -> set[str]:
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        refuse(index.parent, f", whose {index.name} has no weight_map", "a weight_map of tensors to files")
    return set(names.values())


def stored_tensors(folder: Path, files: Sequence[Path] | None = None) -> dict[str, Stored]:
    """Every tensor of a checkpoint by name, of its weight files unless others are given.

    Raises ValueError, in one sentence, for a file that cannot be read, and a tensor in two files.
    """
    from safetensors import SafetensorError, safe_open

    found: dict[str, Stored] = {}
    for path in weight_files(folder) if files is None else files:
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
    found = stored_tensors(folder, sorted(folder.glob("*.safetensors")))  # the reader of weights opens every one
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
    try:
        ids = tokens(read_json(folder / "tokenizer.json"))
    except (AttributeError, KeyError, TypeError):
        refuse(name, ", whose tokenizer.json is no tokenizer", "a file that the library tokenizers wrote")
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
