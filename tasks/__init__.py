"""The tasks of the workflows; importing any of them first says how many threads its libraries may start."""

from tasks.threads import configure

configure()
