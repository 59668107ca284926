"""Loads a finished run for analyses of its models."""

from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import experiment
from fedjax_lab.running import loading
from fedjax_lab.running.storage import files
from fedjax_lab.simulation import by_kind
from fedjax_lab.simulation.population import make_population
from fedjax_lab.types import Client, Federation, Plan, PyTree, State, Weights


class Finished(NamedTuple):
    """One seed of a finished run."""

    seed: int
    experiment: experiment.Experiment
    hyper: dict  # the config's section `method`
    federation: Federation
    state: State
    population: Client  # [C], with the clients' private state

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
        """The number of training clients, C."""
        return len(self.federation.train)

    def client(self, i: int) -> tuple[Client, PyTree]:
        """Client i, and the message with which it is scored."""
        client = by_kind.entry(self.population, i)
        return client, self.method.sends_scored(self.state.server, client.id)

    def model(self, i: int) -> Weights:
        """The model of client i: its message, its private state, or both joined.

        Raises BadInput if the client does not have exactly one model.
        """
        client, message = self.client(i)
        task = self.experiment.task
        return loading.model_of(self.hyper["name"], self.method, task, message, client)


def load(workdir: Path, seed: int | None = None) -> Finished:
    """Loads one seed of a run (the first by default) from its last checkpoint.

    Raises BadInput if the run is not finished or has diverged.
    """
    summary = files.read_json(workdir / "summary.json", files.FINISHED)
    if summary is None or not (workdir / "config.json").is_file():
        raise BadInput(f"{workdir} holds no finished run")
    if "diverged" in summary:
        raise BadInput(f"the run in {workdir} diverged")
    run = loading.load(workdir)
    i = run.index(seed)
    federation = run.experiment.simulation.seeds[i].federation
    population = make_population(federation, run.experiment.task.objective.num_classes)
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
