"""A TorchTitan ModelSpec from a parsed config.json, with one small file for each architecture.

All sizes come from config.json, none from TorchTitan's list of flavours. Settings that a spec does not support are
refused earlier, by `tasks/policy/architectures.py`.
"""

from collections.abc import Callable
from typing import Any

from tasks.training.architectures.llama import llama_spec
from tasks.training.architectures.qwen2 import qwen2_spec
from tasks.training.architectures.qwen3 import qwen3_spec

from torchtitan.protocols.model_spec import ModelSpec

# By the model_type of config.json. Each takes config.json and the length of the longest row, in tokens.
SPECS: dict[str, Callable[[dict[str, Any], int], ModelSpec]] = {
    "qwen3": qwen3_spec,
    "qwen2": qwen2_spec,
    "llama": llama_spec,
}
