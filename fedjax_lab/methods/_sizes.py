"""Limits of methods that keep, or upload, far more numbers than models have."""

import math

from fedjax_lab.errors import BadInput

MOST_PAIRS = 1 << 28  # pairs of clients for which a method may keep a number: 1 GiB
MOST_UPLOADED = 1 << 32  # bytes of all uploads at once


def check_pairs(method: str, num_clients: int) -> None:
    """Raises BadInput if there are too many clients to keep a number for each pair of them."""
    most, size = math.isqrt(MOST_PAIRS), num_clients**2 / 2**28
    if num_clients > most:
        raise BadInput(
            f"method {method} keeps a number for each pair of clients, {size:,.1f} GiB for"
            f" {num_clients:,} clients; it takes at most {most:,} (config.partition)"
        )


def check_uploads(method: str, num_clients: int, size: int) -> None:
    """Raises BadInput if the uploads of all clients are too large to be held at once.

    size: bytes of one upload.
    """
    if size > MOST_UPLOADED:
        raise BadInput(
            f"method {method}: one upload has {size / 2**30:,.1f} GiB, but all uploads together may"
            f" have at most {MOST_UPLOADED / 2**30:g} GiB; take a model with fewer features"
            " (config.model)"
        )
    if num_clients * size > MOST_UPLOADED:
        raise BadInput(
            f"method {method} has {num_clients * size / 2**30:,.1f} GiB of uploads at once,"
            f" {size / 2**10:,.1f} KiB from each of {num_clients:,} clients; with this model it"
            f" takes at most {MOST_UPLOADED // size:,} clients (config.partition)"
        )
