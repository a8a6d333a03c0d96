"""Settings of a training that takes seconds, for tests that run a whole one."""

SMALL = {
    "rollout": {"groups": 24, "max_groups": 24, "group_size": 4},
    "training": {"minibatch_size": 32},
    "evaluation": {"tasks": 128},
    "tiny": {
        "hidden_size": 64,
        "layers": 1,
        "heads": 2,
        "cold_start_steps": 60,
        "cold_start_demonstrations": 256,
        "cold_start_batch": 16,
        "cold_start_learning_rate": 0.01,
    },
}
