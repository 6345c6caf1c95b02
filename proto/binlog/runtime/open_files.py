"""The number of connections that a server may have, which are open files."""

from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit


def connections_max(limit: int, *, files_share: int) -> int:
    """Return `limit`, or one `files_share`-th of the files that this process may open if that is less."""
    files_max = getrlimit(RLIMIT_NOFILE)[0]
    return limit if files_max == RLIM_INFINITY else min(limit, files_max // files_share)
