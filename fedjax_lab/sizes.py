"""Where what clients keep and the examples go: on every device, divided among them, or elsewhere.

What `auto` chooses follows from sizes alone, before anything is compiled.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_lab import contract, tree
from fedjax_lab.errors import BadInput
from fedjax_lab.sampling import AT_RANDOM
from fedjax_lab.types import CLIENT_ROWS, Federation, Method

SMALL = 64 * 2**20  # bytes: what is no larger is on every device, which saves a collective a round,
PART = 16  # and so is what is no more than such a part of an accelerator's memory
ON_HOST = {"host", "disk", "stream"}  # where something is when it is not on the devices
SHARE = 0.5  # of a device's memory that the clients' state and the examples may take, each


class Devices(NamedTuple):
    """Those of a run."""

    number: int
    memory: int  # bytes of one that are free; 0: that is not known
    of_host: bool = False  # whether that memory is the host's, as a CPU's is


class Choice(NamedTuple):
    """Where something goes, and why."""

    where: str  # "replicated", "sharded", or what is beyond the devices
    reason: str


class Division(NamedTuple):
    """What the devices of a run divide."""

    state: Choice
    data: Choice
    by_device: bool  # whether each draws from the clients that it holds

    @property
    def on_host(self) -> bool:
        """Whether rounds are played on a part of the clients at a time."""
        return bool({self.state.where, self.data.where} & ON_HOST)

    @property
    def divided(self) -> dict[str, bool]:
        """As arguments of `mesh.on_mesh`."""
        return {
            "by_client": self.state.where in ("sharded", "host", "disk"),
            "by_row": self.data.where in ("sharded", "stream"),
            "by_device": self.by_device,
        }

    @property
    def words(self) -> str:
        """One line that says where everything is, and why."""
        parts = {"what clients keep": self.state, "the examples": self.data}
        return "; ".join(f"{what}: {part.where} ({part.reason})" for what, part in parts.items())


def divide(
    methods: Sequence[Method],
    federations: Sequence[Federation],
    num_classes: int,
    cohort: int,
    devices: Devices,
    *,
    state: str = "auto",
    data: str = "auto",
    sampling: str = "exact",
) -> Division:
    """Where a run keeps what it has, by the keys of config.engine; BadInput if that cannot be."""
    first = federations[0]
    by_device = sampling == "device" and devices.number > 1
    if by_device:
        if not {state, data} <= {"auto", "sharded"}:
            raise BadInput(
                f"{BY_DEVICE} divides what clients keep and the examples among the devices; leave"
                " config.engine.state and config.engine.data at auto"
            )
        _check_by_device(methods, first, cohort, len(federations), devices.number)
        state = data = "sharded"
    of_state = len(federations) * max(state_bytes(m, first, num_classes) for m in methods)
    division = Division(
        choose("state", state, of_state, devices, beyond="disk" if devices.of_host else "host"),
        choose("data", data, pool_bytes(first), devices, beyond="stream"),
        by_device,
    )
    if division.data.where in ON_HOST and division.state.where not in ON_HOST:
        division = division._replace(state=_beside_stream(division, state))
    return division


def _beside_stream(division, state):
    """Where state is when examples are streamed: on the host. BadInput if it was asked for else."""
    if state in ("replicated", "sharded"):
        raise BadInput(
            f"config.engine.state={state} does not go with examples that are streamed"
            f" ({division.data.reason}): what clients keep is on the host then too; use auto, host"
            " or disk"
        )
    return Choice("host", "examples are streamed")


BY_DEVICE = "config.engine.sampling=device"


def _check_by_device(methods, federation, cohort, seeds, devices):
    """BadInput where devices cannot each draw from the clients that they hold."""
    if seeds > 1:
        raise BadInput(
            f"{BY_DEVICE} is for one seed, because the examples are divided as its clients are; got"
            f" {seeds} seeds"
        )
    if not all(method.sample in AT_RANDOM for method in methods):
        raise BadInput(f"{BY_DEVICE} needs a method that draws its clients at random")
    counts = {"clients": len(federation.train), "clients a round": cohort}
    if federation.new_train is not None:
        counts["new clients"] = len(federation.new_train)
    for what, count in counts.items():
        if count % devices:
            raise BadInput(
                f"{BY_DEVICE} divides {count} {what} among {devices} devices; take a multiple of"
                f" {devices} (a run has no more devices than clients a round)"
            )


def check_model(method: Method, group: int, devices: Devices) -> None:
    """BadInput where the server's state is more than the memory of a group of devices.

    A CPU's memory is checked when the state is made.
    """
    if devices.of_host or not devices.memory or method.init is None:
        return
    state = jax.eval_shape(lambda: contract.first_state(method, jax.random.key(0), 1))
    size = tree.num_bytes(state.server)
    if size > group * devices.memory:
        raise BadInput(
            f"the server's state needs {_amount(-(-size // group))} on each device, which has"
            f" {_amount(devices.memory)} free; use at least"
            f" config.engine.fsdp={2 ** math.ceil(math.log2(size / devices.memory))}"
        )


def state_bytes(method: Method, federation: Federation, num_classes: int) -> int:
    """Bytes of all that is kept by client: its description, its rows and its private state.

    Of a method whose first state follows from facts about the data the private state is not
    counted.
    """
    rows = [getattr(federation, name) for name in CLIENT_ROWS]
    clients, new = len(federation.train), federation.new_train
    described = (clients + (0 if new is None else len(new))) * 4 * (num_classes + 5)
    private = 0
    if method.init is not None:
        state = jax.eval_shape(lambda: contract.first_state(method, jax.random.key(0), clients))
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
    beyond: what does without the devices' memory: "host", "disk" or "stream".

    Raises:
      BadInput: it does not fit where it was asked to be.
    """
    room = SHARE * devices.memory if devices.memory else float("inf")
    share = -(-size // devices.number)
    if asked == "auto":
        small = SMALL if devices.of_host else max(SMALL, devices.memory // PART)
        if size <= min(small, room) or (devices.number == 1 and size <= room):
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
