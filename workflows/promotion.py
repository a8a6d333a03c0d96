"""The champion of a model in the registry, by hand.

pyflyte run workflows/promotion.py promote --model grpo-NAME --version 7
pyflyte run workflows/promotion.py demote --model grpo-NAME
"""

from flytekit import workflow

from tasks.promotion.task import demote_champion, promote_version


@workflow
def promote(model: str, version: int) -> str:
    """Make a version the champion: what models:/NAME@champion names from now on.

    Args:
        model: Name in the registry, such as grpo-NAME.
        version: Number of a version of it.

    Returns:
        What was done, in a sentence.
    """
    return promote_version(model=model, version=version)


@workflow
def demote(model: str) -> str:
    """Give `champion` back to the version that had it before.

    Args:
        model: Name in the registry, such as grpo-NAME.

    Returns:
        What was done, in a sentence.
    """
    return demote_champion(model=model)
