"""What the engine plays: a run as functions and arrays, without a config."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fedjax_lab.engine import parallel
from fedjax_lab.models.frozen import Model
from fedjax_lab.simulation.asynchronous import Timeline
from fedjax_lab.types import Array, Federation, Plan, PyTree, Stage, State

BASE = "base"  # key of the frozen weights among the settings of a seed

Settings = dict[str, PyTree]


def unscheduled(number: int, settings: Settings, t: Array) -> Settings:
    """Returns the settings of a seed, none of which depends on the round."""
    return settings


class Host(NamedTuple):
    """What is kept on the host: the private state and, with `stream`, the examples."""

    on_disk: bool = False  # whether the private state is in a file, not in memory
    stream: bool = False


class Seed(NamedTuple):
    """What belongs to one seed of a run. Arrays are in NumPy."""

    number: int  # from which all random numbers are made
    federation: Federation  # the clients that are scored
    training: Federation  # those that train: the same, or one client that holds all examples
    settings: Settings = {}  # those in which the seeds differ, by name; the seeds may
    # belong to several runs
    start: State | None = None  # the initial state; None: that of the method's `init`
    task_seconds: np.ndarray | None = None  # of each client [C], if xi = 1; None: no clock
    timeline: Timeline | None = None  # of an asynchronous run; None: rounds are synchronous

    @property
    def is_pooled(self) -> bool:
        """Whether one client that holds all examples trains, and nothing is sent."""
        return self.training is not self.federation


class Simulation(NamedTuple):
    """The input of the engine. The federations of its seeds share one pool of examples."""

    seeds: list[Seed]
    num_classes: int
    stages: tuple[Stage, ...]  # one for a plain method; their rounds sum to the plan's
    plan: Plan
    strategy: parallel.Strategy
    placement: str = ""  # a text that says where state and examples are kept, and why
    vectorized_seeds: bool = False
    precision: str | None = None  # of float32 products, as JAX names it; None: JAX's default
    base: Model | None = None  # a model of which a part is frozen; None: all of it is trained
    variant: Callable[[Settings], tuple[tuple[Stage, ...], dict[str, Any]]] | None = None
    # settings -> the stages of a seed, and its fields of the plan
    scheduled: Callable[[int, Settings, Array], Settings] = unscheduled
    # (number of the stage, settings of a seed, round) -> the settings in that round
    host: Host | None = None  # what is kept on the host; None: everything is on the devices

    @property
    def seed_numbers(self) -> list[int]:
        """The number of each seed."""
        return [seed.number for seed in self.seeds]

    def varied(self, number: int, settings: Settings) -> tuple[Stage, dict[str, Any]]:
        """The stage with this number for a seed with these settings, and its fields of the plan."""
        if not settings:
            return self.stages[number], {}
        assert self.variant is not None  # a simulation with settings has it
        stages, fields = self.variant(settings)
        return stages[number], fields

    @property
    def federations(self) -> list[Federation]:
        """The clients of each seed that are scored."""
        return [seed.federation for seed in self.seeds]
