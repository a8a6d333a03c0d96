"""Anybody's OpenEnv server. Importing this imports nothing heavy; the package `openenv` is another one."""

from tasks.environments.openenv.spec import SPEC as SPEC
