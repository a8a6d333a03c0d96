"""The limit on open files: every session holds a socket at both of its ends."""

import resource


def allow_many_open_files() -> int:
    """Raise this process's soft limit, often a mere 1,024, to its hard one. Returns the limit, in files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
