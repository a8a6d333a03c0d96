"""Checks the tokens of a checkpoint, as its tokenizer.json lists them, against what its model and a chat need."""

import json
from pathlib import Path
from typing import Any

from tasks.policy.refusal import refuse


def check_vocabulary(folder: Path, name: str, rows: int) -> None:
    """Raise ValueError where the tokenizer has a token beyond the `rows` of the embeddings, or none that ends a turn.

    The model may have more rows than there are tokens: vocabularies are padded.
    """
    ids = tokens(json.loads((folder / "tokenizer.json").read_text()))
    count = max(ids.values(), default=-1) + 1
    if count > rows:
        why = f", whose tokenizer has {count} tokens and whose config.json has vocab_size {rows}"
        refuse(name, why, "at most as many tokens as vocab_size")
    end = end_token(folder)
    if end not in ids:
        why = f"names {end} as its eos_token, which is none of its tokens" if end else "names no eos_token"
        refuse(name, f", whose tokenizer {why}", "a tokenizer with a token to end a turn")


def tokens(tokenizer: dict[str, Any]) -> dict[str, int]:
    """Token to id of a parsed tokenizer.json: those of its model, and those added."""
    listed = tokenizer.get("model", {}).get("vocab", {})
    if isinstance(listed, list):  # a unigram model lists pairs of token and score, by id
        listed = {token: i for i, (token, _) in enumerate(listed)}
    return {**listed, **{added["content"]: added["id"] for added in tokenizer.get("added_tokens", [])}}


def end_token(folder: Path) -> str:
    """The eos_token that transformers would take, "" where no file names one."""
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        if (folder / file).is_file() and (given := json.loads((folder / file).read_text()).get("eos_token")):
            return given["content"] if isinstance(given, dict) else given
    return ""
