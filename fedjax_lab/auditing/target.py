"""A run at one of its checkpoints, as an attack gets it."""

from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab import streams, tree
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import titles, transforming
from fedjax_lab.experiment.experiment import Experiment, with_base
from fedjax_lab.experiment.registry import make_method
from fedjax_lab.experiment.stages import lay_out
from fedjax_lab.running import loading
from fedjax_lab.simulation import simulate
from fedjax_lab.simulation.simulate import Program
from fedjax_lab.simulation.strategies import vectorized
from fedjax_lab.streams import Keys
from fedjax_lab.transforms import kinds
from fedjax_lab.types import Federation, Method, Plan, Stage, State, Task


class Target(NamedTuple):
    """One seed of a run after some of its rounds."""

    run: loading.Run
    seed: int
    round: int  # the number of finished rounds, which is the number t of the next one
    stage: Stage  # with the method of this round, in which the transforms of the config are
    plain: Method  # the method of this round without the transforms
    plan: Plan
    federation: Federation
    state: State  # after the finished rounds

    @property
    def title(self) -> str:
        """The method, the data and the partition, for messages and pictures."""
        return titles.run_title(self.run.config)

    @property
    def task(self) -> Task:
        """The model."""
        return self.run.experiment.task

    @property
    def key(self) -> jax.Array:
        """The key of the run's random numbers."""
        return jax.random.key(self.seed)

    @property
    def keys(self) -> Keys:
        """The streams of the run's random numbers."""
        return streams.make_keys(self.key)

    def program(self, method: Method | None = None, plan: Plan | None = None) -> Program:
        """The next round as a program; None: with the run's method and plan."""
        return Program(method or self.stage.method, plan or self.plan, vectorized())

    def transformed(self, plain: Method) -> Method:
        """A method in place of `plain`, with the transforms of the run's config."""
        config, seeds = self.run.config, self.run.experiment.simulation.seeds
        setup = transforming.make_setup(config, [seed.federation for seed in seeds])
        stage = self.stage._replace(method=plain)
        return transforming.as_configured(stage, self.task, config, setup).method


def make_target(run: loading.Run, seed: int | None = None) -> Target:
    """The target of a loaded run. seed: one of the run; None: its first one.

    Raises BadInput for a stage that trains on something other than the examples of the clients, and
    if the run has diverged.
    """
    i, config, simulation = run.index(seed), run.config, run.experiment.simulation
    task = run.experiment.task
    made = kinds.mixed_method(lambda task: make_method(task=task, **config.method), task)
    stage, plain = run.stage, lay_out(made, config.run.rounds)[run.number].method
    if stage.frozen or stage.view or stage.embeddings or stage.method.extra.pooled:
        what = "all examples at once" if stage.method.extra.pooled else "features of the examples"
        raise BadInput(
            f"stage {stage.name} of method {config.method.name} trains on {what}, which no client"
            " uploads; audit a run of another method, or a checkpoint of another stage"
        )
    state = jax.tree.map(jnp.asarray, run.states[i])
    if not tree.finite(state):
        raise BadInput(
            f"the models after {run.rounds} rounds have values that are not finite; audit an"
            " earlier checkpoint (--rounds)"
        )
    last = sum(stage.rounds for stage in simulation.stages) - 1
    return Target(
        run,
        run.seeds[i],
        run.rounds,
        stage,
        plain,
        run.plan_of_round(min(run.rounds, last)),
        jax.tree.map(jnp.asarray, simulation.seeds[i].federation),
        state,
    )


def untrained(built: Experiment, folder: Path | str | None) -> loading.Run:
    """The run of an experiment before its first round.

    Raises BadInput if it starts from another run.
    """
    loading.check_first_state(built.config)
    built = with_base(built)
    method = built.simulation.stages[0].method

    def first(seed):
        keys = streams.make_keys(jax.random.key(seed.number))
        return seed.start or simulate.init(
            method, keys, len(seed.federation.train), seed.federation.traits
        )

    states = list(map(first, built.simulation.seeds))
    return loading.Run(folder, built.config, built, 0, [], states, 0)
