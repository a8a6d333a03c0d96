"""The shapes of Qwen2.5-1.5B-Instruct on the CPU: two iterations with adapters, their memory beside the estimate.

    make rehearse-1.5b                                                # 22 GiB of memory, 16 GB of disk, a while
    PYTHONPATH=tests python tests/benchmarks/real_size.py --layers 8  # with less memory: the same widths

The config is the model's own, the weights are random and in bfloat16, the tokenizer is that of `tiny` with Qwen's chat
template, and the environment pays for any text of even length: what is learned means nothing. At last the policy is
read again from its shards, with its tied head, and the adapter is opened by PEFT.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from safetensors import safe_open

from checkpoints import QWEN25_INSTRUCT, copy_tokenizer, random_model
from tasks.config import GrpoConfig, TinyPolicyConfig, TrainingConfig
from tasks.environments.catalog import get_environment
from tasks.folders import use_scratch_folder
from tasks.policy.checkpoint import read_manifest
from tasks.policy.memory import GIB, LIBRARIES, generator_role, training_role
from tasks.stages import read_metrics
from tasks.training.cold_start import tiny_policy
from tasks.training.lora import ADAPTER

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "tests" / "policy" / "templates" / "Qwen2.5-Instruct.jinja"
CONFIG = {
    "rollout": {"groups": 4, "max_groups": 4, "group_size": 4, "max_tokens": 8, "dtype": "bfloat16"},
    "algorithm": {"kl_coefficient": 0.0, "max_mismatch": 1.0},  # random layers amplify what bfloat16 rounds
    "training": {"dtype": "bfloat16", "seq_len": 512, "rows": 1, "score_rows": 1, "minibatch_size": 8},
    "evaluation": {"tasks": 8},
}
CONFIG["rollout"]["concurrent_episodes"] = 16
CONFIG["training"]["lora"] = {"rank": 16}
NEAR = 0.2  # of the estimate


def make_policy(folder: Path, layers: int) -> str:
    """Random weights in shards of 1 GB, by which mostly tokens are sampled that the tokenizer knows."""
    template = tiny_policy(TinyPolicyConfig(cold_start_steps=1), TrainingConfig(), "blackjack", seed=0)
    copy_tokenizer(template, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE.read_text())
    tokens = json.loads((template / "config.json").read_text())
    ends = {name: tokens.get(name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    sizes = {**QWEN25_INSTRUCT, "num_hidden_layers": layers, **ends}
    model = random_model(sizes, dtype=torch.bfloat16)
    known = len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"])
    with torch.no_grad():  # the output head too: it is tied. Logits of 0, and of a deviation of about 4
        weight = model.get_input_embeddings().weight
        weight[known:] = 0
        weight[:known] *= 5
    model.save_pretrained(folder, max_shard_size="1GB")
    return "a policy with random weights is made"


def expected(policy: Path, config: GrpoConfig) -> dict[str, float]:
    """Bytes at the peak of each stage: libraries, what is warm, and what the stage adds."""
    config_json = json.loads((policy / "config.json").read_text())
    training = training_role(config_json, config.training, config.rollout.max_tokens)
    sampling = generator_role(config_json, config.rollout)
    held = LIBRARIES + sampling.resident
    return {
        "evaluate": held + sampling.working,
        "train": held + training.resident + training.working,
        "rollout": held + training.resident + sampling.working,  # from the second iteration on
    }


def check_files(first: Path, last: Path) -> str:
    """The policy is whole and tied, and its adapter is PEFT's."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    read_manifest(last)
    model = AutoModelForCausalLM.from_pretrained(last, dtype=torch.bfloat16)
    assert model.get_output_embeddings().weight.data_ptr() == model.get_input_embeddings().weight.data_ptr()
    base = AutoModelForCausalLM.from_pretrained(first, dtype=torch.bfloat16)
    theirs = PeftModel.from_pretrained(base, last / ADAPTER).merge_and_unload().state_dict()
    worst, shards = 0.0, sorted(last.glob("*.safetensors"))
    for path in shards:
        with safe_open(path, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                if name in theirs:
                    worst = max(worst, float((opened.get_tensor(name).float() - theirs[name].float()).abs().max()))
    assert worst < 1e-2, worst
    return f"{len(shards)} shards, a tied head; weights differ by {worst:.1e} from PEFT's merge"


def alone(*given: object) -> None:
    """`make_policy` or `check_files` in a process of its own: what it holds, the training would lack."""
    subprocess.run([sys.executable, __file__, *map(str, given)], check=True)


def main(console: Console, layers: int) -> None:
    """Make the policy, train, print."""
    with tempfile.TemporaryDirectory() as home:
        policy, line = Path(home, "policy"), [str(Path(sys.executable).with_name("pyflyte")), "run"]
        alone(policy, "--layers", layers)
        line += [str(ROOT / "workflows/grpo.py"), "grpo", "--run_name", "large", "--policy", str(policy)]
        line += ["--environment", "any_reply", "--iterations", "2", "--config", json.dumps(CONFIG)]
        variables = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
        subprocess.run(line, cwd=home, env=variables, check=True)
        run = Path(home, "runs", "large")
        config = GrpoConfig.from_dict(CONFIG).resolved(get_environment("any_reply").defaults)
        made = {"evaluate": "evaluations/00000", "rollout": "rollouts/00001", "train": "policies/00002"}
        found = {stage: read_metrics(run / folder) for stage, folder in made.items()}
        peaks = {stage: metrics[f"memory/{stage}_gib"] for stage, metrics in found.items()}
        assert found["train"]["train/steps"] > 0
        table = Table(
            "stage", "GiB", "expected", "off by", title="Memory of the process at its peak", title_justify="left"
        )
        off = {}
        for stage, size in expected(policy, config).items():
            off[stage] = peaks[stage] * GIB / size - 1
            table.add_row(stage, f"{peaks[stage]:.1f}", f"{size / GIB:.1f}", f"{off[stage]:+.0%}")
        console.print(table)
        stages = {name: metrics[f"stage/{name}_s"] for name, metrics in found.items()}
        seconds = ", ".join(f"{name} {value:.0f}" for name, value in stages.items())
        console.print(f"the second iteration took {found['train']['time/iteration_s']:.0f} s; stages: {seconds}")
        alone(run / "policies" / "00000", run / "policies" / "00002")
        assert max(map(abs, off.values())) <= NEAR, off


if __name__ == "__main__":
    use_scratch_folder()
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=QWEN25_INSTRUCT["num_hidden_layers"])
    parser.add_argument("folders", nargs="*", type=Path)
    given = parser.parse_args()
    if given.folders:
        made = check_files(*given.folders) if given.folders[1:] else make_policy(*given.folders, given.layers)
        print(made, flush=True)
    else:
        main(Console(width=120, soft_wrap=True), given.layers)
