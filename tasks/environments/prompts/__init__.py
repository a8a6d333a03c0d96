"""A user's own prompts and reward functions. Importing this imports nothing heavy."""

from tasks.environments.prompts.spec import SPEC as SPEC
