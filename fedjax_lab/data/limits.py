"""The limits of this process's memory that a shell or a scheduler has set, as `ulimit -v` does."""

import resource

LIMITS = {  # by the command that sets them: their kind; how much of the address space they count
    "ulimit -v": (resource.RLIMIT_AS, 1.0),
    "ulimit -d": (resource.RLIMIT_DATA, 0.5),
}


def memory() -> dict[str, int]:
    """The limits in bytes, by the command that sets them; without those that are infinite."""
    each = {name: resource.getrlimit(kind)[0] for name, (kind, _) in LIMITS.items()}
    return {name: limit for name, limit in each.items() if limit != resource.RLIM_INFINITY}


def too_low(size: int) -> str:
    """The name of a limit too low for `size` bytes of address space; "" if there is none."""
    for name, limit in memory().items():
        if limit < (needed := LIMITS[name][1] * size):
            return f"{name} is {limit / 2**30:.2f} GiB, but about {needed / 2**30:.2f} are needed"
    return ""
