"""Decides where a run keeps the clients' state and the examples.

They are kept on every device, divided among the devices, or outside of them. The choice of `auto`
depends only on sizes, and is made before anything is compiled.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_lab import streams, tree
from fedjax_lab.errors import BadInput
from fedjax_lab.simulation import contract, simulate
from fedjax_lab.types import CLIENT_ROWS, Federation, Method

# `auto` replicates arrays up to SMALL bytes, or up to 1 / PART of an accelerator's memory, on every
# device, which saves a collective operation in each round.
SMALL = 64 * 2**20
PART = 16
ON_HOST = {"host", "disk", "stream"}  # the places outside of the devices
SHARE = 0.5  # of a device's memory that the clients' state may take, and that the examples may take


class Devices(NamedTuple):
    """The devices of a run."""

    number: int
    memory: int  # free bytes of one device; 0: unknown
    of_host: bool = False  # whether this is the host's memory, as for a CPU


class Choice(NamedTuple):
    """A place for the clients' state or for the examples, and the reason."""

    where: str  # "replicated", "sharded", or a place in ON_HOST
    reason: str


class Division(NamedTuple):
    """The places of the clients' state and of the examples."""

    state: Choice
    data: Choice

    @property
    def on_host(self) -> bool:
        """Whether the devices hold only some of the clients at a time."""
        return bool({self.state.where, self.data.where} & ON_HOST)

    @property
    def divided(self) -> dict[str, bool]:
        """The corresponding arguments of `mesh.on_mesh`."""
        return {
            "by_client": self.state.where in ("sharded", "host", "disk"),
            "by_row": self.data.where in ("sharded", "stream"),
        }

    @property
    def words(self) -> str:
        """One line with the places and the reasons."""
        parts = {"clients' state": self.state, "examples": self.data}
        return "; ".join(f"{what}: {part.where} ({part.reason})" for what, part in parts.items())


def divide(
    methods: Sequence[Method],
    federations: Sequence[Federation],
    num_classes: int,
    devices: Devices,
    *,
    state: str = "auto",
    data: str = "auto",
) -> Division:
    """Decides where a run keeps the clients' state and the examples.

    state, data: the keys of config.engine. Raises BadInput if they cannot be satisfied.
    """
    first = federations[0]
    of_state = len(federations) * max(state_bytes(m, first, num_classes) for m in methods)
    division = Division(
        choose("state", state, of_state, devices, beyond="disk" if devices.of_host else "host"),
        choose("data", data, pool_bytes(first), devices, beyond="stream"),
    )
    if division.data.where in ON_HOST and division.state.where not in ON_HOST:
        division = division._replace(state=_beside_stream(division, state))
    return division


def _beside_stream(division, state):
    """The place of the state if examples are streamed: the host.

    Raises BadInput for other choices.
    """
    if state in ("replicated", "sharded"):
        raise BadInput(
            f"config.engine.state={state} cannot be combined with streamed examples"
            f" ({division.data.reason}), because the clients' state is then kept on the host; use"
            " auto, host or disk"
        )
    return Choice("host", "examples are streamed")


def check_model(method: Method, group: int, devices: Devices, base: int = 0) -> None:
    """Raises BadInput if the server's state does not fit in the memory of a group of devices.

    base: the bytes of the frozen weights of the model, which must fit beside it.

    The memory of a CPU is checked later, when the state is made.
    """
    if devices.of_host or not devices.memory or method.init is None:
        return
    state = jax.eval_shape(lambda: contract.first_state(method, jax.random.key(0), 1))
    size = tree.num_bytes(state.server) + base
    what, remedy = "the server's state needs", ""
    if base:
        what, remedy = (
            "the frozen weights and the server's state need",
            " or fewer config.adapter.bits",
        )
    if size > group * devices.memory:
        raise BadInput(
            f"{what} {_amount(-(-size // group))} on each device, which has"
            f" {_amount(devices.memory)} free; use at least"
            f" config.engine.fsdp={2 ** math.ceil(math.log2(size / devices.memory))}{remedy};"
            f" {largest(tree.by_name(state._asdict()))[1]}"
        )


def largest(arrays: Mapping[str, Any]) -> tuple[str, tuple[int, ...], str]:
    """The name and the shape of the largest of these arrays, and a description of it in words."""
    name, array = max(arrays.items(), key=lambda named: tree.num_bytes(named[1]))
    size = _amount(tree.num_bytes(array))
    words = f"the largest array is {name}, {array.dtype} {list(array.shape)}, {size}"
    return name, array.shape, words


def step_words(number: int, client: int, memory: int) -> str:
    """The memory that a step needs, in words, and what to change if it may not fit.

    number: of clients at a time. client: the bytes of a step of one client. memory: the bytes of a
    device that are free beside frozen weights.
    """
    needed = number * client
    words = f"a step of {number} client{'s' * (number > 1)}: about {_amount(needed)}"
    if needed <= memory:
        return words
    return (
        f"{words}, which may not fit in {_amount(memory)}: lower"
        + " config.engine.chunk," * (number > 1)
        + " config.local.batch_size or config.task.block, or raise config.local.accumulate"
    )


def state_bytes(method: Method, federation: Federation, num_classes: int) -> int:
    """The bytes of all arrays of clients: their descriptions, rows and private states.

    Private states are not counted if the method's first state depends on facts about the data.
    """
    rows = [getattr(federation, name) for name in CLIENT_ROWS]
    clients, new = len(federation.train), federation.new_train
    described = (clients + (0 if new is None else len(new))) * 4 * (num_classes + 5)
    private = 0
    if method.init is not None:
        keys = streams.make_keys(jax.random.key(0))
        state = jax.eval_shape(lambda: simulate.init(method, keys, clients, federation.traits))
        private = tree.num_bytes(state.private)
    return described + tree.num_bytes(rows) + private


def pool_bytes(federation: Federation) -> int:
    """The bytes of all examples."""
    x: Any = federation.x
    return int(np.prod(x.shape, dtype=np.int64)) * x.dtype.itemsize + 8 * len(x)


def choose(what: str, asked: str, size: int, devices: Devices, beyond: str) -> Choice:
    """Decides where `size` bytes are kept.

    what: "state" or "data", the key of config.engine.
    asked: its value: "auto", "replicated", "sharded", or a place outside of the devices.
    beyond: the place outside of the devices to use or to recommend: "host", "disk" or "stream".

    Raises:
      BadInput: the bytes do not fit in the requested place.
    """
    room = SHARE * devices.memory if devices.memory else float("inf")
    share = -(-size // devices.number)
    if asked == "auto":
        small = SMALL if devices.of_host else max(SMALL, devices.memory // PART)
        if size <= min(small, room) or (devices.number == 1 and size <= room):
            return Choice("replicated", f"{_amount(size)} on each device")
        if share <= room:
            return Choice("sharded", f"{_amount(size)}, {_amount(share)} on each device")
        return Choice(beyond, f"{_amount(share)} per device is more than {_amount(room)}")
    needed = {"replicated": size, "sharded": share}.get(asked, 0)
    if needed > room:
        remedy = f"config.engine.{what}={beyond}"
        if asked == "replicated" and share <= room:
            remedy = f"config.engine.{what}=sharded"
        raise BadInput(
            f"config.engine.{what}={asked} needs {_amount(needed)} on each device, more than"
            f" {_amount(room)}, half of its free memory; use {remedy}"
        )
    return Choice(asked, "requested by the config")


def _amount(size):
    """A number of bytes as text with a unit."""
    if size < 2**30:
        return f"{size / 2**20:,.1f} MiB"
    return f"{size / 2**30:,.1f} GiB"
