"""The one form of every complaint about a policy."""

from typing import NoReturn


def refuse(policy: object, why: str, allowed: str) -> NoReturn:
    """Raise ValueError: `policy is "DIR", which has no config.json; allowed: …`. `why` follows the name."""
    raise ValueError(f'policy is "{policy}"{why}; allowed: {allowed}.')
