"""Compares the estimates of `memory.py` with the memory that this machine has left, and refuses what will not fit."""

import gc
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from tasks.config import GrpoConfig, RolloutConfig, TrainingConfig
from tasks.launcher import world_size
from tasks.policy import refuse
from tasks.policy.memory import GIB, cache_bytes, expected, generator_role, scorer_role, training_role
from tasks.settings import require

OWN_GROUPS = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")
LESS = (
    'with a smaller policy, training.dtype or rollout.dtype "bfloat16", training.lora.rank 16, fewer training.rows, '
    "training.score_rows or rollout.concurrent_episodes"
)


def check_room(needs: Mapping[str, float], policy: object) -> None:
    """Raise ValueError, in one sentence, when `needs`, bytes by role, are together more than there is left here."""
    needed = sum(needs.values())
    if needed > memory_left()[0]:
        gc.collect()  # an engine of another shape that nothing refers to may still hold memory
    left, kind = memory_left()
    if needed > left:
        cache = "rollout.gpu_memory_utilization" if kind == "GPU memory" else "rollout.kv_cache_gib"
        takes = f", which takes about {needed / GIB:.1f} GiB of {kind} ({listed(needs)})"
        refuse(policy, takes, f"at most the {left / GIB:.1f} GiB left here, {LESS}, or a smaller {cache}")


def check_cache(config_json: Mapping[str, Any], rollout: RolloutConfig, *, gpu: float) -> None:
    """Raise ValueError where vLLM's attention cache on a CPU would not hold the longest episode."""
    needed, given = cache_bytes(config_json, rollout), rollout.kv_cache_gib
    longest = rollout.max_episode_tokens or config_json["max_position_embeddings"]
    room = f"room for an episode of rollout.max_episode_tokens, {longest}"
    allowed = f"{math.ceil(needed / GIB)} or more, as vLLM wants {room}"
    require(bool(gpu) or needed <= given * GIB, "rollout.kv_cache_gib", given, allowed)


def check_generator(policy: Path, rollout: RolloutConfig) -> None:
    """Raise ValueError when a new engine for `policy` does not fit beside what this process already has."""
    config_json, gpu = json.loads((policy / "config.json").read_text()), gpu_bytes()
    check_gpus(rollout)
    check_cache(config_json, rollout, gpu=gpu)
    check_room({"generator": sum(generator_role(config_json, rollout, gpu=gpu))}, policy)


def fitted_beside_trainer(policy: Path, config: GrpoConfig) -> GrpoConfig:
    """The settings of a process that both samples and trains, with the share of a GPU that a trainer leaves to vLLM.

    vLLM sleeps while the trainer works, but not the other way round: what the trainer holds has to fit beside it.
    Raises ValueError where the two do not fit.
    """
    config_json, gpu = json.loads((policy / "config.json").read_text()), gpu_bytes()
    if not gpu:
        check_cache(config_json, config.rollout, gpu=gpu)
        check_room(expected(config_json, config), policy)
        return config
    training = training_role(config_json, config.training, config.rollout.max_tokens)
    held = training.resident
    if config.algorithm.kl_coefficient:
        held += scorer_role(config_json, config.training, config.rollout.max_tokens).resident
    check_room({"held by the trainer": held, "working": training.working}, policy)
    share = min(config.rollout.gpu_memory_utilization, math.floor(100 * (gpu - held) / gpu) / 100 - 0.05)
    weights = generator_role(config_json, config.rollout.replace(gpu_memory_utilization=1.0), gpu=1).resident
    if share <= 0 or weights > 0.9 * share * gpu:
        takes = f", whose trainer holds {held / GIB:.1f} GiB and whose generator {weights / GIB:.1f}"
        refuse(policy, takes, f"both on one GPU of {gpu / GIB:.1f} GiB, {LESS}, or cluster.iterations_per_pod 0")
    return config.replace(rollout=config.rollout.replace(gpu_memory_utilization=share))


def check_trainer(policy: Path, training: TrainingConfig, *, scores_only: bool = False) -> None:
    """The same for a trainer, this rank's part of it. The number of logits is not known here: it counts few.

    Ranks that share a machine ask at the same time, each for itself, so together they may not fit.
    """
    role, name = (scorer_role, "reference") if scores_only else (training_role, "training")
    config_json, ranks = json.loads((policy / "config.json").read_text()), world_size()
    check_room({name: sum(role(config_json, training, 1, ranks=ranks))}, policy)


def check_ranks(training: TrainingConfig) -> None:
    """Raise ValueError where this machine has GPUs, and not one for each rank that is to run here."""
    import torch

    gpus, ranks = torch.cuda.device_count(), training.ranks // training.nodes
    allowed = f"at most {gpus} on each of training.nodes = {training.nodes}, a GPU for every rank"
    require(ranks <= gpus or gpus == 0, "training.ranks", training.ranks, allowed)


def check_gpus(rollout: RolloutConfig) -> None:
    """Raise ValueError where this machine has less GPUs than are to share the generator."""
    import torch

    gpus = max(1, torch.cuda.device_count())
    allowed = f"at most {gpus}, a GPU for each share of the weights"
    require(rollout.tensor_parallel <= gpus, "rollout.tensor_parallel", rollout.tensor_parallel, allowed)


def listed(needs: Mapping[str, float]) -> str:
    """`training 20.7, generator 8.9, working 35.1`, in GiB."""
    return ", ".join(f"{name} {size / GIB:.1f}" for name, size in needs.items())


def memory_left() -> tuple[float, str]:
    """Bytes that this process can still take, and of what: the accelerator's memory where there is one, else RAM."""
    import torch  # a second, so only where memory is compared

    if torch.cuda.is_available():
        free, _ = torch.cuda.mem_get_info()
        cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()  # torch can reuse it
        return free + cached, "GPU memory"
    return min(float(psutil.virtual_memory().available), cgroup_left()), "memory"


def gpu_bytes() -> float:
    """The GPU's whole memory, which rollout.gpu_memory_utilization is a share of; 0 without one."""
    import torch

    return float(torch.cuda.mem_get_info()[1]) if torch.cuda.is_available() else 0.0


def _groups(controller: str) -> Iterator[tuple[Path, bool]]:
    """The control groups of this process that `controller` bounds, the innermost first, and whether of version 1.

    A limit on a group holds for all below it.
    """
    for line in OWN_GROUPS.read_text().splitlines() if OWN_GROUPS.is_file() else []:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = GROUPS / controllers
        group = base / path.lstrip("/")
        for folder in (group, *group.parents):  # in a container the path is the host's, and only the base is here
            if not folder.is_relative_to(base):
                break
            yield folder, bool(controllers)


def _read(path: Path) -> str:
    return path.read_text().strip() if path.is_file() else "max"


def memory_limit() -> float:
    """Bytes that this process's control groups allow; infinite without a limit."""
    limits = (_read(folder / f"memory.{'limit_in_bytes' if old else 'max'}") for folder, old in _groups("memory"))
    return min((float(limit) for limit in limits if limit != "max"), default=math.inf)


def cpu_limit() -> float:
    """Cores that this process's control groups allow; infinite without a limit."""
    found = math.inf
    for folder, old in _groups("cpu"):
        quota, period = (
            (_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))
            if old
            else [*_read(folder / "cpu.max").split(), "100000"][:2]
        )
        if quota not in ("max", "-1"):
            found = min(found, int(quota) / int(period))
    return found


def cgroup_left() -> float:
    """Bytes below the tightest memory limit of this process's control groups, version 1 or 2; infinite without one.

    The kernel frees a group's page cache before it kills a process, so the part of it that was not used lately does
    not count as taken.
    """
    left = math.inf
    for folder, old in _groups("memory"):
        limit, usage = ("limit_in_bytes", "usage_in_bytes") if old else ("max", "current")
        if (most := _read(folder / f"memory.{limit}")) != "max":
            stat = _read(folder / "memory.stat").splitlines()
            entries = dict(entry.split() for entry in stat if " " in entry)
            # Version 1 has both: with all groups below, and alone.
            reclaimable = entries.get("total_inactive_file", entries.get("inactive_file", 0))
            left = min(left, int(most) - int(_read(folder / f"memory.{usage}")) + int(reclaimable))
    return left
