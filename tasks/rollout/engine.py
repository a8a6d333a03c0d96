"""The vLLM engine: token ids in, sampled token ids and their log-probabilities out.

One engine lives in this process and stays warm over policy versions of the same shape: new weights are loaded in
place, and the prefix cache, which would serve attention states of the old ones, is dropped. Only this file imports
vllm.
"""

import functools
import importlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.config import RolloutConfig
from tasks.policy import hub, machine
from tasks.policy.checkpoint import read_manifest
from tasks.policy.contents import settings_digest


@dataclass(frozen=True)
class Completion:
    """What the policy sampled for one prompt."""

    token_ids: list[int]  # with the end-of-turn token, where it was sampled
    logprobs: list[float]  # at the sampling temperature, one a token
    truncated: bool  # ended by max_tokens, not by the policy


class Engine:
    """vLLM with the weights of one policy directory at a time. Requests are added; `step` samples for all of them."""

    def __init__(self, policy: Path, config: RolloutConfig, seed: int = 0):
        load_libraries(config)
        import torch
        from vllm import LLM, SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self.settings = functools.partial(
            SamplingParams,
            logprobs=0,
            detokenize=False,
            skip_special_tokens=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            skip_clone=True,  # nothing else holds them
        )
        self.digest, self.on_gpu = "", torch.cuda.is_available()
        self.seed_each = config.seeds == "request" or (config.seeds == "auto" and not self.on_gpu)
        self.requests = 0  # so far: their ids
        self.tied = bool(json.loads((policy / "config.json").read_text()).get("tie_word_embeddings", False))
        self.llm = LLM(
            model=str(policy),
            dtype=config.dtype,  # pyright: ignore[reportArgumentType]
            seed=seed,
            tensor_parallel_size=config.tensor_parallel,
            max_num_seqs=1024,
            max_model_len=config.max_episode_tokens,  # None: the model's own
            gpu_memory_utilization=config.gpu_memory_utilization,
            enforce_eager=not self.on_gpu,  # CUDA graphs where they can be
            enable_sleep_mode=self.on_gpu,
            disable_log_stats=True,
            use_tqdm_on_load=False,
            # Groups share their first prompt, all episodes its beginning; but only whole blocks are shared, and a CPU's
            # default block of 128 tokens is longer than a short episode.
            enable_prefix_caching=True,
            block_size=32,
            # A prompt in two chunks is sampled from twice and its generator set back, which a CPU generator cannot do.
            enable_chunked_prefill=torch.accelerator.is_available(),
            # What the ratio divides by: after the temperature, not before.
            logprobs_mode="processed_logprobs",
            # On a CPU the output head keeps a packed copy of its own, which tied embeddings would leave stale.
            hf_overrides={"tie_word_embeddings": False},
            generation_config="vllm",  # not the checkpoint's: each request says what ends it
        )

    def load(self, policy: Path, digest: str) -> None:
        """Take the weights of `policy`, unless it has them."""
        if digest == self.digest:
            return
        if self.tied:  # also the first time: vLLM found no output head of its own
            self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": _untied(policy)})
        elif self.digest:
            self.llm.collective_rpc("reload_weights", kwargs={"weights_path": str(policy)})
        self.llm.reset_prefix_cache()
        self.digest = digest

    def add(
        self,
        prompt: Sequence[int],
        *,
        temperature: float,
        max_tokens: int,
        end_ids: Sequence[int],
        seed: int,
        stop: Sequence[str] = (),
    ) -> str:
        """Ask for a completion; returns the request's id. A string of `stop` ends it as `end_ids` do, and is in it.

        Where each request has a seed of its own, what is sampled does not depend on what else is; a GPU samples such
        requests one by one. A temperature of 0 is greedy. The whole distribution is sampled from, no top-k and no
        top-p: the trainer's ratio needs the log-probability of what was really drawn.
        """
        self.requests += 1
        request, texts = str(self.requests), {}
        if stop:
            texts = {"stop": list(stop), "include_stop_str_in_output": True, "detokenize": True}
        self.llm.llm_engine.add_request(
            request,
            {"type": "token", "prompt_token_ids": list(prompt)},  # pyright: ignore[reportArgumentType]
            self.settings(
                temperature=temperature,
                max_tokens=max_tokens,
                seed=seed if self.seed_each else None,
                stop_token_ids=list(end_ids),
                **texts,
            ),
        )
        return request

    @property
    def busy(self) -> bool:
        """Whether a request is not answered yet."""
        return self.llm.llm_engine.has_unfinished_requests()

    def step(self) -> Iterator[tuple[str, Completion]]:
        """Sample a token for the requests at hand; the completions that are whole now, by request."""
        for output in self.llm.llm_engine.step():
            reply: Any = output.outputs[0]  # type: ignore[union-attr]
            logprobs = [at[token].logprob for at, token in zip(reply.logprobs, reply.token_ids, strict=True)]
            yield output.request_id, Completion(list(reply.token_ids), logprobs, reply.finish_reason == "length")

    def abort(self, requests: Iterable[str]) -> None:
        """Give up requests that nobody waits for any more."""
        self.llm.llm_engine.abort_request(list(requests))

    def sleep(self) -> None:
        """Move the weights to the machine's memory and drop the attention cache, where there is a GPU."""
        if self.on_gpu and not self.llm.llm_engine.is_sleeping():
            self.llm.sleep(level=1)

    def wake_up(self) -> None:
        """The opposite."""
        if self.on_gpu and self.llm.llm_engine.is_sleeping():
            self.llm.wake_up()

    def close(self) -> None:
        """Give back the attention cache, which would stay even when nothing refers to the engine any more."""
        self.llm.llm_engine.engine_core.shutdown()


def _untied(policy: Path) -> Iterator[tuple[str, Any]]:
    """All weights of a checkpoint by name, the embeddings once more as the output head."""
    from safetensors.torch import load_file

    for path in sorted(policy.glob("*.safetensors")):
        for name, weight in load_file(path).items():
            if name != "lm_head.weight":
                yield name, weight
            if name == "model.embed_tokens.weight":
                yield "lm_head.weight", weight


def load_libraries(config: RolloutConfig) -> None:
    """Import vLLM, which takes seconds."""
    _set_environment(config)
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        # Else small functions of vLLM's go through g++ in each new process: half a minute, and no g++ is an error.
        current_platform.simple_compile_backend = "eager"
    importlib.import_module("vllm.entrypoints.llm")


def _set_environment(config: RolloutConfig) -> None:
    """What vLLM reads from the environment when it is imported; a user's own settings win."""
    for name, value in {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process: seconds instead of most of a minute
        "VLLM_CPU_KVCACHE_SPACE": str(config.kv_cache_gib),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }.items():
        os.environ.setdefault(name, value)
    hub.stay_offline()


_warm: dict[str, Engine] = {}


def sleep() -> None:
    """Give the GPU's memory back until `open_engine`, to a trainer in the same process; nothing to do on a CPU."""
    for engine in _warm.values():
        engine.sleep()


def open_engine(policy: Path, config: RolloutConfig, seed: int = 0) -> Engine:
    """The engine with the weights of `policy`: the warm one where all but the weights is the same, else a new one.

    The stream of chance of a new one begins with `seed`.
    """
    manifest = read_manifest(policy)
    shape = settings_digest(policy)
    settings = [config.dtype, config.kv_cache_gib, config.gpu_memory_utilization, config.max_episode_tokens]
    settings += [config.seeds, config.tensor_parallel]
    key = json.dumps([shape, *settings])
    if key not in _warm:
        for old in _warm.values():  # one at a time: each holds its share of the memory
            old.close()
        _warm.clear()
        machine.check_generator(policy, config)
        _warm[key] = Engine(policy, config, seed)
    _warm[key].wake_up()
    _warm[key].load(policy, manifest.digest)
    return _warm[key]
