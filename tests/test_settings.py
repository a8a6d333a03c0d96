"""Records on their way through Flyte: what was given stays known, and equal settings are the same for its cache."""

import json
from typing import NamedTuple

import pytest
from flytekit import FlyteContextManager, LaunchPlan, dynamic, task, workflow
from flytekit.core.type_engine import TypeEngine
from flytekit.models.literals import Literal, Scalar
from google.protobuf import json_format, struct_pb2

import tasks.flyte_types  # noqa: F401
from tasks.config import GrpoConfig, RolloutConfig, Run

GIVEN = {"rollout": {"groups": 5, "invalid_reward": None}, "training": {"learning_rate": 1e-6, "lora": {"rank": 4}}}


class Created(NamedTuple):
    run: Run
    config: GrpoConfig


@task
def create(config: GrpoConfig) -> Created:
    names = dict.fromkeys(("name", "token", "environment", "environment_url", "mlflow_run_id", "tracking_uri"), "x")
    return Created(Run(**names, seed=0, given=config.on_one_rank()), config.resolved({"rollout": {"max_turns": 3}}))


@task
def arrived(run: Run, config: GrpoConfig, rollout: RolloutConfig) -> str:
    assert rollout.to_json() == config.rollout.to_json()
    return json.dumps([run.given.to_dict(), config.to_dict()])


@dynamic
def unrolled(run: Run, config: GrpoConfig) -> str:
    config = config.on_one_rank()
    return arrived(run=run, config=config, rollout=config.rollout)


@workflow
def chain(config: GrpoConfig = GrpoConfig()) -> str:
    created = create(config=config)
    return unrolled(run=created.run, config=created.config)


with_groups = LaunchPlan.get_or_create(
    chain, name="tests.with_groups", default_inputs={"config": GrpoConfig(rollout=RolloutConfig(groups=3))}
)


@pytest.mark.parametrize(
    ("start", "given"),
    [
        (lambda: chain(), {}),
        (lambda: chain(config=GrpoConfig.from_dict(GIVEN)), GIVEN),
        (lambda: with_groups(), {"rollout": {"groups": 3}}),
    ],
)
def test_workflows_graphs_and_tasks_are_given_what_was_given(start, given: dict) -> None:
    arrived_given, arrived_config = json.loads(start())
    assert arrived_given == given
    wanted = GrpoConfig.from_dict(given).resolved({"rollout": {"max_turns": 3}})
    assert arrived_config == wanted.on_one_rank().to_dict()
    assert arrived_config["rollout"].keys() == RolloutConfig.model_fields.keys()


def literal(value: GrpoConfig) -> Literal:
    context = FlyteContextManager.current_context()
    return TypeEngine.to_literal(context, value, GrpoConfig, TypeEngine.to_literal_type(GrpoConfig))


def test_equal_settings_are_equal_inputs_of_a_cached_stage() -> None:
    spelled_out = {"training": {"lora": {"rank": 4}, "learning_rate": 1e-06, "ranks": 2}, "rollout": {"groups": 5.0}}
    one, two = (GrpoConfig.from_dict(given).resolved().on_one_rank() for given in (GIVEN, spelled_out))
    assert one == two and one.to_json() == two.to_json() and hash(one) == hash(two)
    assert literal(one).to_flyte_idl().SerializeToString() == literal(two).to_flyte_idl().SerializeToString()
    another = GrpoConfig.from_dict({**GIVEN, "buffer": {"groups": 6}}).resolved().on_one_rank()
    assert literal(one).to_flyte_idl().SerializeToString() != literal(another).to_flyte_idl().SerializeToString()


def test_flytes_console_sends_whole_numbers_as_floats() -> None:
    text = json.dumps({"rollout": {"groups": 5, "temperature": 2, "thinking": False}})
    sent = Literal(scalar=Scalar(generic=json_format.Parse(text, struct_pb2.Struct())))
    found = TypeEngine.to_python_value(FlyteContextManager.current_context(), sent, GrpoConfig)
    assert found.to_dict() == json.loads(text) and isinstance(found.rollout.groups, int)


def test_a_bad_input_of_flytes_is_one_sentence() -> None:
    text = json.dumps({"rollout": {"groups": 0}})
    sent = Literal(scalar=Scalar(generic=json_format.Parse(text, struct_pb2.Struct())))
    with pytest.raises(ValueError, match=r"^rollout.groups is 0; allowed: 1 or more\.$"):
        TypeEngine.to_python_value(FlyteContextManager.current_context(), sent, GrpoConfig)


def test_the_type_of_a_record_is_small_wherever_it_is_an_input() -> None:
    for record in (GrpoConfig, RolloutConfig, Run):
        assert len(TypeEngine.to_literal_type(record).to_flyte_idl().SerializeToString()) < 100  # bytes
