"""The policy `tiny`: a Qwen3 checkpoint made on the spot, small enough to learn on a laptop.

It has the files of any other (config.json, safetensors, a ByteLevel BPE tokenizer with a ChatML template). Its weights
are random; the supervised cold start in `tasks/training/cold_start.py` teaches it to answer at all.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tasks.config import TinyPolicyConfig

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCABULARY = 512  # an upper limit: the BPE stops when nothing is left to merge
POSITIONS = 1024  # tokens that a conversation may have


def make_tokenizer(texts: Iterable[str], folder: Path, *, single_digits: bool = False) -> int:
    """Train a ByteLevel BPE on `texts` and save it with the chat template; returns the size of its vocabulary.

    With `single_digits` each digit and each punctuation mark is a token.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if single_digits:
        apart = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Punctuation("isolated")]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*apart, words])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    ends = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    chat = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=POSITIONS, chat_template=CHAT_TEMPLATE, **ends
    )
    chat.save_pretrained(folder)
    return len(chat)


def shape(config: TinyPolicyConfig, vocabulary: int = VOCABULARY) -> dict[str, Any]:
    """The sizes in the config.json of the policy that `make_weights` writes."""
    return {
        "model_type": "qwen3",
        "vocab_size": vocabulary,
        "hidden_size": config.hidden_size,
        "intermediate_size": 3 * config.hidden_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.heads,
        "head_dim": config.hidden_size // config.heads,
        "max_position_embeddings": POSITIONS,
        "tie_word_embeddings": False,
    }


def make_weights(config: TinyPolicyConfig, vocabulary: int, end_id: int, pad_id: int, seed: int, folder: Path) -> None:
    """Write a randomly initialised Qwen3 checkpoint in float32, with an output head of its own."""
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    sizes = {key: value for key, value in shape(config, vocabulary).items() if key != "model_type"}
    ids = {"bos_token_id": None, "eos_token_id": end_id, "pad_token_id": pad_id}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(Qwen3Config(**sizes, **ids, dtype="float32"))
    model.generation_config = GenerationConfig(eos_token_id=end_id, pad_token_id=pad_id)
    model.save_pretrained(folder)
