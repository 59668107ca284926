"""Where what clients keep and the examples go: on every device, divided among them, or elsewhere.

What `auto` chooses follows from sizes alone, before anything is compiled.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_lab import tree
from fedjax_lab.errors import BadInput
from fedjax_lab.types import Federation, Method

SMALL = 64 * 2**20  # bytes: what is no larger is on every device, which saves a collective a round
SHARE = 0.5  # of a device's memory that the clients' state and the examples may take, each


class Devices(NamedTuple):
    """Those of a run."""

    number: int
    memory: int  # bytes of one that are free; 0: that is not known


class Choice(NamedTuple):
    """Where something goes, and why."""

    where: str  # "replicated", "sharded", or what is beyond the devices
    reason: str


def state_bytes(method: Method, federation: Federation, num_classes: int) -> int:
    """Bytes of all that is kept by client: its description, its rows and its private state.

    Of a method whose first state follows from facts about the data the private state is not
    counted.
    """
    rows = federation.train, federation.validation, federation.test
    clients = len(federation.train)
    described = clients * 4 * (num_classes + 5)
    private = 0
    if method.init is not None:
        first = method.init
        state = jax.eval_shape(lambda: first(jax.random.key(0), clients))
        private = tree.num_bytes(state.private)
    return described + tree.num_bytes(rows) + private


def pool_bytes(federation: Federation) -> int:
    """Bytes of all examples."""
    x: Any = federation.x
    return int(np.prod(x.shape, dtype=np.int64)) * x.dtype.itemsize + 8 * len(x)


def choose(what: str, asked: str, size: int, devices: Devices, beyond: str) -> Choice:
    """Where `size` bytes go.

    what: "state" or "data", the key of config.engine that decides.
    asked: its value: "auto", "replicated", "sharded", or something beyond the devices.
    beyond: what does without the devices' memory: "host" or "stream".

    Raises:
      BadInput: it does not fit where it was asked to be.
    """
    room = SHARE * devices.memory if devices.memory else float("inf")
    share = -(-size // devices.number)
    if asked == "auto":
        if size <= min(SMALL, room) or (devices.number == 1 and size <= room):
            return Choice("replicated", f"{_amount(size)} on each device")
        if share <= room:
            return Choice("sharded", f"{_amount(size)}, {_amount(share)} on each device")
        return Choice(beyond, f"{_amount(share)} a device is more than {_amount(room)}")
    needed = {"replicated": size, "sharded": share}.get(asked, 0)
    if needed > room:
        remedy = f"config.engine.{what}={beyond}"
        if asked == "replicated" and share <= room:
            remedy = f"config.engine.{what}=sharded"
        raise BadInput(
            f"config.engine.{what}={asked} needs {_amount(needed)} on each device, more than"
            f" {_amount(room)}, half of its free memory; use {remedy}"
        )
    return Choice(asked, "as asked for")


def _amount(size):
    """Bytes for people to read."""
    if size < 2**30:
        return f"{size / 2**20:,.1f} MiB"
    return f"{size / 2**30:,.1f} GiB"
