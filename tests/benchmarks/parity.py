"""Every architecture in transformers, TorchTitan and vLLM: how far apart they are on the same tokens.

    make parity

Small random checkpoints, tied and untied, with grouped queries; the same that the tests take. The logits are of
TorchTitan against transformers, the log-probabilities of vLLM's own samples against TorchTitan, before a weight update
in the warm engine and after it. All in float32: 1e-4 is what a run tolerates.
"""

import tempfile
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
from tasks.config import GrpoConfig
from tasks.folders import use_scratch_folder
from tasks.rollout.engine import open_engine
from tasks.training.cold_start import tiny_policy
from tasks.training.trainer import Trainer


def differences(shape: str, template: Path, folder: Path) -> list[float]:
    """The largest difference of logits, of log-probabilities, and of log-probabilities after an update."""
    config = GrpoConfig().rollout
    first = make_checkpoint(template, folder / "first", SERVED[shape])
    tokens = torch.randint(3, 300, (2, 48), generator=torch.Generator().manual_seed(3))
    logits = float((by_torchtitan(first, tokens) - by_transformers(first, tokens)).abs().max())
    before = gap(Trainer(first, TRAINING, temperature=1.0, schedule_steps=1), sample(open_engine(first, config)))
    policy, trainer = trained(first, folder / "next")
    return [logits, before, gap(trainer, sample(open_engine(policy, config)))]


def main() -> None:
    use_scratch_folder()
    config = GrpoConfig()
    template = tiny_policy(config.tiny, config.training, "blackjack", seed=0)  # for its tokenizer
    table = Table(title="The largest differences, in float32")
    table.add_column("architecture")
    table.add_column("tied")
    for column in ("logits, transformers", "log-probs, vLLM", "after an update"):
        table.add_column(column, justify="right")
    for shape in track(SERVED, "architectures"):
        with tempfile.TemporaryDirectory() as folder:
            found = differences(shape, template, Path(folder))
            tied = "yes" if is_tied(Path(folder) / "next") else "no"
        table.add_row(SERVED[shape]["model_type"], tied, *(f"{number:.1e}" for number in found))
    Console().print(table)


if __name__ == "__main__":
    main()
