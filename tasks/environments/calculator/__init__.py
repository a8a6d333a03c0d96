"""Arithmetic with a tool that evaluates one expression; `SPEC` is the environment."""

from tasks.environments.calculator.spec import SPEC

__all__ = ["SPEC"]
