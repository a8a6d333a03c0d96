"""vLLM against TorchTitan on the same tokens, over weight updates in place."""

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from checkpoints import PROMPTS, SERVED, TRAINING, completions, gap, make_checkpoint, sample, trained
from tasks.config import RolloutConfig
from tasks.policy.chat import open_chat
from tasks.policy.checkpoint import read_manifest
from tasks.rollout.engine import open_engine
from tasks.training.trainer import Trainer

CONFIG = RolloutConfig(max_episode_tokens=512)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_log_probabilities_are_the_trainers_before_and_after_an_update(
    tiny_policy: Path, tmp_path: Path, temperature: float
) -> None:
    before = sample(open_engine(tiny_policy, CONFIG), temperature=temperature)
    assert gap(Trainer(tiny_policy, TRAINING, temperature=temperature, schedule_steps=1), before) <= 1e-4
    policy, trainer = trained(tiny_policy, tmp_path / "next", temperature=temperature)
    assert gap(trainer, before) > 0.1  # the update changed something

    after = sample(open_engine(policy, CONFIG), temperature=temperature)
    assert gap(trainer, after) <= 1e-4
    again = sample(open_engine(tiny_policy, CONFIG), temperature=temperature)
    assert again == before  # and back


def test_new_weights_go_into_the_warm_engine(tiny_policy: Path, newborn: Callable[[int], Path]) -> None:
    engine, other = open_engine(tiny_policy, CONFIG), newborn(5)
    assert open_engine(other, CONFIG) is engine
    assert engine.digest == read_manifest(other).digest


def test_the_prefix_cache_never_serves_states_of_old_weights(tiny_policy: Path, tmp_path: Path) -> None:
    policy, trainer = trained(tiny_policy, tmp_path / "next")
    engine, prompt = open_engine(tiny_policy, CONFIG), {"prompt_token_ids": PROMPTS[-1]}
    sample(engine)
    assert engine.llm.generate([prompt], use_tqdm=False)[0].num_cached_tokens >= 128  # the cache is at work
    open_engine(policy, CONFIG)
    assert engine.llm.generate([prompt], use_tqdm=False)[0].num_cached_tokens == 0
    assert gap(trainer, sample(open_engine(policy, CONFIG))) <= 1e-4


def test_seeds_decide_what_is_sampled(tiny_policy: Path) -> None:
    engine = open_engine(tiny_policy, CONFIG)
    first = sample(engine)
    assert sample(engine) == first
    other = sample(engine, first_seed=1000)
    assert [c.token_ids for c in other] != [c.token_ids for c in first]


def test_one_stream_of_chance_for_all_requests(newborn_policy: Path) -> None:
    config = CONFIG.replace(seeds="engine")
    engine = open_engine(newborn_policy, config, seed=3)
    first, second = sample(engine), sample(engine)
    assert [c.token_ids for c in first] != [c.token_ids for c in second]  # the stream goes on, whatever the seeds
    trainer = Trainer(newborn_policy, TRAINING, temperature=1.0, schedule_steps=1)
    assert gap(trainer, first) <= 1e-4 and gap(trainer, second) <= 1e-4
    open_engine(newborn_policy, CONFIG)
    assert sample(open_engine(newborn_policy, config, seed=3)) == first  # and begins anew with an engine


def test_what_else_is_sampled_does_not_matter(newborn_policy: Path) -> None:
    engine = open_engine(newborn_policy, CONFIG)
    together = sample(engine)
    options = {"temperature": 1.0, "max_tokens": 8, "end_ids": [2]}
    backwards = completions(engine, PROMPTS[::-1], [4, 3, 2, 1, 0], **options)[::-1]
    alone = [completions(engine, [prompt], [i], **options)[0] for i, prompt in enumerate(PROMPTS)]
    for found in (backwards, alone):
        assert [c.token_ids for c in found] == [c.token_ids for c in together]


def test_a_request_that_is_given_up_is_forgotten(newborn_policy: Path) -> None:
    engine = open_engine(newborn_policy, CONFIG)
    options = {"temperature": 1.0, "max_tokens": 8, "end_ids": [2], "seed": 0}
    kept, given_up = engine.add(PROMPTS[0], **options), engine.add(PROMPTS[1], **options)
    engine.abort([given_up])
    found = {}
    while engine.busy:
        found.update(engine.step())
    assert list(found) == [kept]


def test_a_greedy_reply_does_not_depend_on_the_seed(newborn_policy: Path) -> None:
    engine = open_engine(newborn_policy, CONFIG)
    first, other = sample(engine, temperature=0.0), sample(engine, temperature=0.0, first_seed=77)
    assert [c.token_ids for c in first] == [c.token_ids for c in other]


def test_a_reply_that_was_truncated_says_so(tiny_policy: Path) -> None:
    engine, chat = open_engine(tiny_policy, CONFIG), open_chat(tiny_policy)
    hand = {"role": "user", "content": "Cards 10 6, hard 16. Dealer 10."}
    system = {"role": "system", "content": "You play BlackJack. Answer only HIT or STAND."}
    prompts, options = [chat.initial_ids([system, hand])], {"temperature": 0.0, "end_ids": chat.end_ids}
    (whole,) = completions(engine, prompts, [0], max_tokens=8, **options)
    assert not whole.truncated
    assert whole.token_ids[-1] == chat.end_id  # the end of the turn was sampled too
    assert len(whole.logprobs) == len(whole.token_ids) < 8
    (cut,) = completions(engine, prompts, [0], max_tokens=len(whole.token_ids) - 1, **options)
    assert cut.truncated
    assert cut.token_ids == whole.token_ids[:-1]


def test_a_stop_string_ends_a_reply_and_is_in_it(tiny_policy: Path) -> None:
    engine, chat = open_engine(tiny_policy, CONFIG), open_chat(tiny_policy)
    system = {"role": "system", "content": "You play BlackJack. Answer only HIT or STAND."}
    prompts, options = [chat.initial_ids([system])], {"temperature": 1.0, "max_tokens": 8, "end_ids": chat.end_ids}
    for seed in range(8):
        (whole,) = completions(engine, prompts, [seed], **options)
        texts = [chat.reply_text(whole.token_ids[: n + 1]) for n in range(len(whole.token_ids))]
        stop = texts[-1][1]
        first = next(n for n, text in enumerate(texts) if stop in text)  # later characters of its token stay
        (found,) = completions(engine, prompts, [seed], **options, stop=["?", stop])
        assert (found.token_ids, found.logprobs) == (whole.token_ids[: first + 1], whole.logprobs[: first + 1])
        assert found.token_ids[-1] != chat.end_id and not found.truncated and not engine.busy


@pytest.mark.parametrize("shape", SERVED)  # last: each needs an engine of its own
def test_every_architecture_before_and_after_an_update(shape: str, tiny_policy: Path, tmp_path: Path) -> None:
    first = make_checkpoint(tiny_policy, tmp_path / "first", SERVED[shape])
    before = sample(open_engine(first, CONFIG))
    assert gap(Trainer(first, TRAINING, temperature=1.0, schedule_steps=1), before) <= 1e-4
    policy, trainer = trained(first, tmp_path / "next")
    assert gap(trainer, before) > 0.1  # the update changed something
    assert gap(trainer, sample(open_engine(policy, CONFIG))) <= 1e-4


def test_an_engine_that_is_replaced_gives_its_memory_back(newborn_policy: Path) -> None:
    def open_with(share: float) -> int:
        open_engine(newborn_policy, RolloutConfig(gpu_memory_utilization=share))  # another setting, another engine
        return psutil.Process().memory_info().rss

    first = open_with(0.5)
    assert open_with(0.6) - first < 2**29  # each has an attention cache of 2**30 bytes
