"""A finished run, read again: where the analyses of its models begin."""

from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab import experiment, loaded, simulate, tree
from fedjax_lab.errors import BadInput
from fedjax_lab.running import files
from fedjax_lab.types import Client, Federation, Plan, PyTree, State, Weights


class Finished(NamedTuple):
    """One seed of a run."""

    seed: int
    experiment: experiment.Experiment
    hyper: dict  # the config's section `method`
    federation: Federation
    state: State
    population: Client  # [C], with what the clients keep

    @property
    def method(self):
        """The method of the last stage."""
        return self.experiment.simulation.stages[-1].method

    @property
    def plan(self) -> Plan:
        """The sizes of the run."""
        return self.experiment.simulation.plan

    @property
    def num_clients(self) -> int:
        """C."""
        return len(self.federation.train)

    def client(self, i: int) -> tuple[Client, PyTree]:
        """Client i, and the message that it is scored with."""
        client = tree.take(self.population, i)
        send = self.method.scored or self.method.round[-1].send
        return client, send(self.state.server, client.id)

    def model(self, i: int) -> Weights:
        """The model of client i: what it is sent, what it keeps, or both together.

        BadInput where these are more or less than one model.
        """
        client, message = self.client(i)
        task = self.experiment.task
        return loaded.model_of(self.hyper["name"], self.method, task, message, client)


def load(workdir: Path, seed: int | None = None) -> Finished:
    """A seed of a run (the first by default), from its last checkpoint. BadInput if unfinished."""
    summary = files.read_json(workdir / "summary.json", files.FINISHED)
    if summary is None or not (workdir / "config.json").is_file():
        raise BadInput(f"{workdir} holds no finished run")
    if "diverged" in summary:
        raise BadInput(f"the run of {workdir} diverged")
    run = loaded.load(workdir)
    i = run.index(seed)
    federation = run.experiment.simulation.federations[i]
    population = simulate.population(federation, run.experiment.task.num_classes)
    federation, population = jax.tree.map(jnp.asarray, (federation, population))
    state = run.states[i]
    return Finished(
        seed=run.seeds[i],
        experiment=run.experiment,
        hyper=run.config.method.to_dict(),
        federation=federation,
        state=state,
        population=population._replace(private=state.private),
    )
