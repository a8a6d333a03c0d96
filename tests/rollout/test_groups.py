"""Which groups make a batch, by hand: no engine, rewards given."""

import random

import pytest

from tasks.config import RolloutConfig
from tasks.environments.interface import Task
from tasks.rollout.episode import SampledEpisode
from tasks.rollout.groups import GroupSchedule
from tasks.rollout.loop import Job

CONFIG = RolloutConfig(groups=3, max_groups=100, group_size=2)


def job(number: int, member: int) -> Job:
    return Job(Task(str(number), "train", number), number * 2 + member, lambda turn: turn)


def schedule(config: RolloutConfig = CONFIG, numbers: range = range(100), **known: object) -> GroupSchedule:
    return GroupSchedule(numbers, config, job, lambda episode: episode.reward, **known)  # type: ignore[arg-type]


def finish(plan: GroupSchedule, given: Job, varies: bool) -> bool:
    reward = float(varies and given.number % 2)
    return plan.finished(given, SampledEpisode(given.task, reward=reward, finish_reason="finished"))


VARIES = [True, False, True, False, False, True, True, False, True, True]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("at_once", [1, 3, 10])
def test_the_first_groups_with_variance_make_the_batch_whichever_ends_first(seed: int, at_once: int) -> None:
    rng, plan, running = random.Random(seed), schedule(), []
    done = False
    while not done:
        while len(running) < at_once and (new := next(plan.jobs, None)):
            running.append(new)
        ended = running.pop(rng.randrange(len(running)))
        done = finish(plan, ended, VARIES[int(ended.task.id) % 10])
    assert plan.checked == 6  # the groups 0 to 5, of which 0, 2 and 5 have variance
    assert plan.begun <= 6 + at_once
    assert all([e.task.id for e in plan.episodes[n].values()] == [str(n)] * 2 for n in range(6))


def test_no_more_groups_begin_than_will_probably_do() -> None:
    plan = schedule(RolloutConfig(groups=100, max_groups=1000, group_size=2), range(1000))
    first = [next(plan.jobs, None) for _ in range(300)]
    assert sum(j is not None for j in first) == 200  # nothing known: as if every group had variance
    for number in range(50):  # of the first fifty every other one has
        for member in range(2):
            finish(plan, first[2 * number + member], varies=number % 2 == 0)  # type: ignore[arg-type]
    # 25 of 50 are kept: 75 are missing, share 26 / 51; 50 run, so that about 97 more would do, and half a deviation.
    more = 0
    while next(plan.jobs, None):
        more += 1
    assert 97 * 2 <= more <= (97 + 2 * 6) * 2


def test_all_numbers_are_played_where_there_is_never_enough() -> None:
    plan = schedule(numbers=range(5))
    jobs, ends = [], []
    while new := next(plan.jobs, None):
        jobs.append(new)
        ends.append(finish(plan, new, varies=int(new.task.id) == 3))
    assert len(jobs) == 10 and ends == [False] * 9 + [True]
    assert (plan.checked, plan.kept) == (5, 1)


def test_groups_played_elsewhere_are_taken_and_missing_ones_played() -> None:
    known = {0: [0.0, 1.0], 1: [1.0, 1.0], 3: [0.0, 1.0], 4: [0.0, 1.0]}
    plan = schedule(known=known)
    assert not plan.enough
    jobs = [next(plan.jobs, None), next(plan.jobs, None)]
    assert [j.task.id for j in jobs if j] == ["2", "2"]
    assert finish(plan, jobs[0], varies=True) is False  # type: ignore[arg-type]
    assert finish(plan, jobs[1], varies=True) is True  # type: ignore[arg-type]
    assert plan.checked == 4  # 0, 2 and 3; 4 is left over
    assert next(schedule(known={n: [0.0, 1.0] for n in range(4)}).jobs, None) is None  # nothing has to be played


@pytest.mark.parametrize(
    ("rewards", "varies"),
    [
        ([1.0, 1.0], False),
        ([0.1, 0.1 + 1e-9], False),
        ([0.0, 1e-3], True),
        ([None, 1.0], False),
        ([None, None], False),
        ([-1.0, 1.0, None], True),
    ],
)
def test_a_group_is_kept_whose_known_rewards_differ(rewards: list[float | None], varies: bool) -> None:
    assert schedule(known={0: rewards}).kept == varies
