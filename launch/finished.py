"""A finished run, read again: what the scripts that analyse one begin with."""

from pathlib import Path
from typing import NamedTuple

from fedjax_lab import experiment, files, runner, simulate, tree
from fedjax_lab.config import resolve
from fedjax_lab.errors import BadInput
from fedjax_lab.types import Client, Federation, PyTree, State


class Finished(NamedTuple):
    """One seed of a run."""

    experiment: experiment.Experiment
    hyper: dict  # the config's section `method`
    federation: Federation
    state: State
    everyone: Client  # [C], with what the clients keep

    @property
    def method(self):
        """The method of the last stage."""
        return self.experiment.simulation.stages[-1].method

    def client(self, i: int) -> tuple[Client, PyTree]:
        """Client i, and the message that it is scored with."""
        client = tree.take(self.everyone, i)
        send = self.method.scored or self.method.round[-1].send
        return client, send(self.state.server, client.id)


def load(workdir: Path, seed: int | None = None) -> Finished:
    """A seed of a run (the first by default), from its last checkpoint. BadInput if unfinished."""
    summary = files.read_json(workdir / "summary.json", files.FINISHED)
    config = files.read_json(workdir / "config.json", files.CONFIG)
    if summary is None or config is None:
        raise BadInput(f"{workdir} holds no finished run")
    if "diverged" in summary:
        raise BadInput(f"the run of {workdir} diverged")
    seeds = config.pop("seeds")
    seed = seeds[0] if seed is None else seed
    if seed not in seeds:
        raise BadInput(f"{workdir} has no seed {seed}, but {seeds}")
    e, i = experiment.build(resolve(config), seeds), seeds.index(seed)
    state = runner.run(e, workdir, resume=True, quiet=True).states[i]
    everyone = simulate.population(e.simulation.federations[i], e.task.num_classes)
    everyone = everyone._replace(private=state.private)
    return Finished(e, config["method"], e.simulation.federations[i], state, everyone)
