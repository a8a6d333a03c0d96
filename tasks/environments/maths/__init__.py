"""Maths: problems of reasoning-gym's data sets, solved with an interpreter as a tool."""

from tasks.environments.maths.spec import SPEC

__all__ = ["SPEC"]
