"""Policy directories: where they come from, what they must hold, what memory they take."""

from typing import NoReturn


def refuse(policy: object, why: str, allowed: str) -> NoReturn:
    """Raise ValueError: `policy is "DIR", which has no config.json; allowed: …`. `why` begins behind the name."""
    raise ValueError(f'policy is "{policy}"{why}; allowed: {allowed}.')
