"""What only a GPU can show, in about ten minutes; on any machine, without a training that went before.

    make gpu-check

Each part says what it measured, and passes or fails. A part that this machine cannot do is named with what is missing;
it has not passed. Without a GPU nothing is checked at all.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from checkpoints import SERVED, TRAINING, gap, make_checkpoint, sample, trained
from tasks.config import MISMATCH, GrpoConfig, RolloutConfig, TinyPolicyConfig, TrainingConfig
from tasks.folders import use_scratch_folder
from tasks.policy.memory import GIB, training_role
from tasks.rollout.engine import open_engine, sleep
from tasks.training.cold_start import tiny_policy
from tasks.training.losses import supervised_loss
from tasks.training.packing import FlatSamples
from tasks.training.trainer import Trainer

ROOT = Path(__file__).parents[2]
NUMBERS = "--numbers"  # prints those of a training stage on the device at hand, for the CPU's in another process
SHAPE = SERVED["qwen3, untied"]
LARGE = {**SHAPE, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 16}
CONFIG = TRAINING.replace(seq_len=512, rows=8, score_rows=8)


def recorded(samples: int, length: int) -> FlatSamples:
    """A batch, the same on every machine."""
    draw = np.random.default_rng(9)
    tokens = draw.integers(3, 300, samples * length)
    return FlatSamples(np.arange(samples + 1) * length, tokens, np.arange(samples * length) % length > length // 2)


def stage(policy: Path, config: TrainingConfig = CONFIG) -> dict[str, list[float]]:
    """Scores before, losses and norms of three optimizer steps, scores after."""
    trainer, data = Trainer(policy, config, temperature=1.0, schedule_steps=3), recorded(16, 64)
    before = trainer.score(data)[data.loss_mask_N][:64].tolist()
    steps = [trainer.step(data, range(len(data)), supervised_loss) for _ in range(3)]
    after = trainer.score(data)[data.loss_mask_N][:64].tolist()
    return {"before": before, "loss": [step["loss"] for step in steps], "after": after}


def attention() -> str:
    """FlexAttention with the mask of packed rows against the dense mask: outputs and gradients."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch.manual_seed(0)
    inputs = [torch.randn(2, 4, 256, 64, device="cuda", requires_grad=True) for _ in range(3)]
    ends = torch.tensor([100, 256], device="cuda")

    def seen(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (q >= k) & (torch.searchsorted(ends, q, right=True) == torch.searchsorted(ends, k, right=True))

    place = torch.arange(256, device="cuda")
    dense = seen(place, place, place[:, None], place[None, :])
    found = torch.compile(flex_attention)(*inputs, block_mask=create_block_mask(seen, None, None, 256, 256))
    wanted = torch.nn.functional.scaled_dot_product_attention(*inputs, attn_mask=dense)
    gradients = [torch.autograd.grad(of.sum(), inputs) for of in (found, wanted)]
    difference = max(
        float((a - b).abs().max()) for a, b in zip((found, *gradients[0]), (wanted, *gradients[1]), strict=True)
    )
    assert difference < 1e-2, difference
    return f"outputs and gradients differ by {difference:.1e}"


def adamw() -> str:
    """The fused AdamW against the plain one."""
    start, weights = torch.randn(1000, generator=torch.Generator().manual_seed(0)), []
    for fused in (True, False):
        weight = start.clone().cuda().requires_grad_()
        optimizer = torch.optim.AdamW([weight], lr=1e-3, betas=(0.9, 0.95), fused=fused)
        for step in range(20):
            weight.grad = torch.sin(start * (step + 1)).cuda()
            optimizer.step()
        weights.append(weight.detach())
    difference = float((weights[0] - weights[1]).abs().max())
    assert difference < 1e-6, difference
    return f"weights differ by {difference:.1e} after 20 steps"


def against_the_cpu(policy: Path) -> str:
    """A training stage on recorded batches against the numbers of the CPU, in a process that sees no GPU."""
    line = [sys.executable, __file__, NUMBERS, str(policy)]
    own = {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(line, env=own, capture_output=True, text=True, check=True)
    wanted, found = json.loads(done.stdout.splitlines()[-1]), stage(policy)
    worst = {name: float(np.abs(np.subtract(found[name], wanted[name])).max()) for name in wanted}
    assert max(worst.values()) < 2e-2, worst
    return ", ".join(f"{name} differ by {value:.1e}" for name, value in worst.items())


def bfloat16(policy: Path) -> str:
    """The trainer in bfloat16 against itself in float32, as a run tolerates it."""
    found, wanted = (stage(policy, CONFIG.replace(dtype=dtype))["before"] for dtype in ("bfloat16", "float32"))
    mean = float(np.abs(np.subtract(found, wanted)).mean())
    assert mean < MISMATCH["bfloat16"], mean
    return f"log-probabilities differ by {mean:.1e} on average"


def speed(policy: Path) -> str:
    """Tokens a second of optimizer steps, and the memory that they took beside the estimate."""
    config = CONFIG.replace(dtype="bfloat16", rows=16)
    torch.cuda.reset_peak_memory_stats()
    trainer, data = Trainer(policy, config, temperature=1.0, schedule_steps=5), recorded(64, 512)
    trainer.step(data, range(64), supervised_loss)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(3):
        trainer.step(data, range(64), supervised_loss)
    torch.cuda.synchronize()
    tokens = 3 * 64 * 512 / (time.perf_counter() - began)
    role = training_role(json.loads((policy / "config.json").read_text()), config, 256)
    return (
        f"{tokens:,.0f} tokens/s; {torch.cuda.max_memory_reserved() / GIB:.2f} GiB, expected "
        f"{(role.resident + role.working) / GIB:.2f}"
    )


def generator(policy: Path, folder: Path) -> str:
    """Log-probabilities of vLLM and the trainer, before and after an update, and after sleep."""
    config = RolloutConfig(max_episode_tokens=512, gpu_memory_utilization=0.3)
    before = gap(Trainer(policy, TRAINING, temperature=1.0, schedule_steps=1), sample(open_engine(policy, config)))
    new, trainer = trained(policy, folder)
    after = gap(trainer, sample(open_engine(new, config)))
    free = torch.cuda.mem_get_info()[0]
    sleep()
    given_back = torch.cuda.mem_get_info()[0] - free
    awake = gap(trainer, sample(open_engine(new, config)))
    assert max(before, after, awake) < 2e-2 and given_back > 0, (before, after, awake, given_back)
    return f"differ by {before:.1e}, {after:.1e}, after sleep {awake:.1e}; it gave {given_back / GIB:.1f} GiB back"


def small_run(folder: Path) -> str:
    """Two iterations of the default settings."""
    line = [str(Path(sys.executable).with_name("pyflyte")), "run", str(ROOT / "workflows/grpo.py"), "grpo"]
    line += ["--run_name", "gpu", "--iterations", "2", "--config", json.dumps(GrpoConfig().to_dict())]
    subprocess.run(line, cwd=folder, check=True, capture_output=True)
    summary = json.loads((folder / "runs" / "gpu" / "summary.json").read_text())
    return f"reward {summary['reward']:+.3f} after {summary['episodes']:,} episodes, {summary['seconds']:.0f} s"


def parts(folder: Path) -> Iterator[tuple[str, str, Callable[[], str]]]:
    """Name, what this machine lacks for it, and the check."""
    gpu = "" if torch.cuda.is_available() else "a GPU with its driver"
    served = gpu or ("" if _is_gpu_vllm() else "vLLM's build for GPUs (make gpu-setup)")
    yield "FlexAttention", gpu, attention
    yield "fused AdamW", gpu, adamw
    template = tiny_policy(TinyPolicyConfig(), TrainingConfig(), "blackjack", seed=0) if not gpu else folder
    small = folder / "small" if gpu else make_checkpoint(template, folder / "small", SHAPE)
    large = folder / "large" if gpu else make_checkpoint(template, folder / "large", LARGE)
    yield "a training stage against the CPU", gpu, lambda: against_the_cpu(small)
    yield "bfloat16", gpu, lambda: bfloat16(small)
    yield "speed and memory", gpu, lambda: speed(large)
    yield "generator and trainer", served, lambda: generator(small, folder / "next")
    yield "a small run", served, lambda: small_run(folder)


def _is_gpu_vllm() -> bool:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return bool(version("vllm"))
    except PackageNotFoundError:
        return False


def main(console: Console) -> int:
    """Check all parts; the number of those that failed, and 1 where nothing could be checked."""
    use_scratch_folder()
    counts = {"passed": 0, "FAILED": 0, "skipped": 0}
    with tempfile.TemporaryDirectory() as folder:
        for name, lacks, check in parts(Path(folder)):
            said, how = f"lacks {lacks}", "skipped"
            if not lacks:
                try:
                    said, how = check(), "passed"
                except Exception as error:
                    said, how = f"{type(error).__name__}: {error}", "FAILED"
            counts[how] += 1
            console.print(f"{how:<8} {name}: {said}")
    console.print(", ".join(f"{count} {how}" for how, count in counts.items()))
    if not counts["passed"] + counts["FAILED"]:
        console.print("nothing was checked on this machine")
        return 1
    return counts["FAILED"]


if __name__ == "__main__":
    if sys.argv[1:2] == [NUMBERS]:
        use_scratch_folder()
        print(json.dumps(stage(Path(sys.argv[2]))))
    else:
        sys.exit(main(Console(soft_wrap=True)))
