"""What a pod may really take, beside what it asked for: a cluster cuts requests down to its limits without a word."""

import os

import psutil

from tasks.policy import machine
from tasks.resources import FILE, ROLE, ROLES, Pod


def shortfall(asked: Pod) -> str:
    """What this process has less than `asked`: `memory 1 of 96 GiB, CPUs 2 of 8, GPUs 0 of 1`; "" where nothing."""
    from kubernetes.utils.quantity import parse_quantity  # half a second

    memory = min(float(psutil.virtual_memory().total), machine.memory_limit())
    cpus = min(float(len(os.sched_getaffinity(0))), machine.cpu_limit())
    found = {
        "memory": (memory / machine.GIB, float(parse_quantity(asked.mem)) / machine.GIB, " GiB"),
        "CPUs": (cpus, float(parse_quantity(asked.cpu)), ""),
        "GPUs": (float(_gpus()) if asked.gpu else 0.0, float(asked.gpu), ""),
    }
    # A node's memory is a little less than its name says.
    short = {name: values for name, values in found.items() if values[0] < 0.99 * values[1]}
    return ", ".join(f"{name} {has:.3g} of {wanted:.3g}{unit}" for name, (has, wanted, unit) in short.items())


def complaint(stage: str) -> str:
    """A sentence where this pod has less than its role asked for; "" elsewhere, and where this is no pod."""
    role = os.environ.get(ROLE, "")
    less = shortfall(ROLES[role]) if role in ROLES else ""
    limits = "raise task_resources.limits in flyteadmin's configuration, or ask for less"
    return f"{stage} got less than {FILE} asks for as {role}: {less}; {limits}" if less else ""


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()
