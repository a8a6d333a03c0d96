"""Coding: a function to be written from a text and a signature, graded by hidden tests in a sandbox."""

from tasks.environments.coding.spec import SPEC

__all__ = ["SPEC"]
