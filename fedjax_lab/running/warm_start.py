"""Runs that begin where another run has ended: config.run.start_from and start_with.

Each seed starts from the same seed of the other run, or from its only one.
"""

import jax

from fedjax_lab import processes, tree
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import Experiment, with_first_weights
from fedjax_lab.models import pretrained
from fedjax_lab.running import cloud, saved


def warmed(experiment: Experiment) -> Experiment:
    """The experiment with what it starts from; itself where config.run.start_from is empty.

    BadInput where that folder, at its newest checkpoint, has nothing that the run can start from.
    """
    run = experiment.config.run
    if not run.start_from:
        return experiment
    try:
        with cloud.staged(run.start_from, writes=False) as path:
            cloud.take(path)
            was = saved.read(path)
            return {"global": _with_models, "state": _with_states}[run.start_with](experiment, was)
    except BadInput as error:
        raise BadInput(f"config.run.start_from={run.start_from}: {error}") from error


def _with_models(experiment, was):
    """With that run's global model as the first weights, as those of config.model.pretrained."""
    shapes = jax.eval_shape(experiment.task.init, jax.random.key(0))

    def weights(state):
        model = saved.global_model(was.config.method.name, was.stage.method, state)
        arrays = jax.tree.leaves(processes.on_host(model))
        tensors = dict(zip(tree.names(model), arrays, strict=True))
        return pretrained.match(tensors, shapes)

    return with_first_weights(experiment, [weights(state) for state in _states(experiment, was)])


def _with_states(experiment, was):
    """With that run's final states as the first ones: the server's and the clients'."""
    if processes.count() > 1:
        raise BadInput("config.run.start_with=state needs a run of one process")
    start = _states(experiment, was)
    return experiment._replace(simulation=experiment.simulation._replace(start=start))


def _states(experiment, was):
    """Of that run one for each seed of this one."""
    there = was.experiment.simulation.seeds
    states = dict(zip(there, was.states, strict=True))
    if len(there) == 1:
        return was.states * len(experiment.simulation.seeds)
    for seed in experiment.simulation.seeds:
        if seed not in states:
            raise BadInput(f"it has no seed {seed}, but {', '.join(map(str, there))}")
    return [states[seed] for seed in experiment.simulation.seeds]
