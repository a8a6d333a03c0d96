"""What a policy was made from, and where a trajectory comes from.

pyflyte run workflows/lineage.py lineage --policy runs/monday/policies/00032
pyflyte run workflows/lineage.py lineage --policy runs/monday/policies/00032 --trajectory 00003-00017-1
"""

from flytekit import workflow
from flytekit.types.file import FlyteFile

from tasks.lineage.task import show_lineage


@workflow
def lineage(policy: str, trajectory: str = "") -> FlyteFile:
    """Print the chain from a policy back to where its training began: policies, batches, and who sampled them.

    Args:
        policy: Directory of a policy that a training wrote, its URI, or its name in the registry.
        trajectory: Id of one trajectory, such as 00003-00017-1. Then print who sampled it, its task, reward, advantage
            and conversation, and which of the policies up to this one learned from it.

    Returns:
        The same as JSON, under runs/lineage/.
    """
    return show_lineage(policy=policy, trajectory=trajectory)
