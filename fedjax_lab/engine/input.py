"""What the engine plays: a run as functions and arrays, without a config."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedjax_lab.engine import parallel
from fedjax_lab.engine.host.runs import Host
from fedjax_lab.models.frozen import Model
from fedjax_lab.simulation.asynchronous import Schedule, Tasks
from fedjax_lab.simulation.clock import Pace
from fedjax_lab.types import Array, Federation, Plan, PyTree, Stage, State


class Simulation(NamedTuple):
    """The input of the engine. Federations [seed] share one pool of examples.

    `training` differs from `federations` only for a pooled method: one client holds all examples.
    """

    seeds: list[int]
    federations: list[Federation]
    training: list[Federation]
    num_classes: int
    stages: tuple[Stage, ...]  # one for a plain method; their rounds sum to the plan's
    plan: Plan
    strategy: parallel.Strategy
    placement: str = ""  # a text that says where state and examples are kept, and why
    vectorized_seeds: bool = False
    precision: str | None = None  # of float32 products, as JAX names it; None: JAX's default
    settings: list[dict[str, PyTree]] | None = None  # [seed] those in which seeds differ, by name,
    # besides their random numbers; the seeds may belong to several runs
    base: Model | None = None  # a model of which a part is frozen; None: all of it is trained
    variant: Callable[[dict[str, PyTree]], tuple[tuple[Stage, ...], dict[str, Any]]] | None = None
    # settings -> the stages of a seed, and its fields of the plan
    start: list[State] | None = None  # [seed] initial states; None: those of the method's `init`
    scheduled: Callable[[int, dict[str, PyTree], Array], dict[str, PyTree]] | None = None
    # (number of the stage, settings of a seed, round) -> the settings in that round; None: no
    # setting depends on the round
    host: Host | None = None  # what is kept on the host; None: everything is on the devices
    paces: list[Pace] | None = None  # [seed] of all clients, in NumPy; None: there is no clock
    task_seconds: list[np.ndarray] | None = None  # [seed] of each client [C], if xi = 1
    schedules: list[Schedule] | None = None  # [seed] of an asynchronous run, in NumPy
    tasks: list[Tasks] | None = None  # [seed] what became of its clients' tasks
