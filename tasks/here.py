"""Whether the stages of a run are calls in one process on this machine, or pods of a cluster."""

from flytekit import FlyteContextManager


def is_here() -> bool:
    """Whether this is a run on one machine, whose engine and trainer stay warm between stages.

    False in a pod, and where a cluster's graph is compiled.
    """
    state = FlyteContextManager.current_context().execution_state
    return state is not None and state.is_local_execution()
