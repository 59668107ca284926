"""Runs that begin where another run has ended: config.run.start_from and start_with.

Each seed starts from the same seed of the other run, or from its only one.
"""

import jax

from fedjax_lab import contract, processes, simulate, tree
from fedjax_lab.engine import Engine
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import Experiment, with_first_weights
from fedjax_lab.models import pretrained
from fedjax_lab.running import cloud, saved
from fedjax_lab.transforms import beside


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
            return STARTS[run.start_with](experiment, was)
    except BadInput as error:
        raise BadInput(f"config.run.start_from={run.start_from}: {error}") from error


def _with_models(experiment, was):
    """With that run's global model as the first weights, as those of config.model.pretrained."""
    name, method = was.config.method.name, was.stage.method
    models = [saved.global_model(name, method, state) for state in _states(experiment, was)]
    return with_first_weights(experiment, [_fitted(experiment, model) for model in models])


def _with_own_models(experiment, was):
    """With that run's clients' own models, as far as clients keep a model; with their mean else."""
    _check_alone("personal")
    models = [processes.on_host(_own_models(was, state)) for state in _states(experiment, was)]
    mean = [jax.tree.map(lambda a: a.mean(0), of_seed) for of_seed in models]
    warm = with_first_weights(experiment, [_fitted(experiment, model) for model in mean])
    first = Engine(warm.simulation).final_states()
    name = experiment.config.method.name
    start = [
        state._replace(private=_with_part(name, of_seed, state.private))
        for state, of_seed in zip(first, models, strict=True)
    ]
    return warm._replace(simulation=warm.simulation._replace(start=start))


def _with_states(experiment, was):
    """With that run's final states as the first ones: the server's and the clients'."""
    _check_alone("state")
    start = _states(experiment, was)
    return experiment._replace(simulation=experiment.simulation._replace(start=start))


STARTS = {"global": _with_models, "personal": _with_own_models, "state": _with_states}


def _check_alone(start_with):
    if processes.count() > 1:
        raise BadInput(f"config.run.start_with={start_with} needs a run of one process")


def _own_models(was, state):
    """The models [C, ...] that the clients of that run have, before any tuning."""
    name, method, task = was.config.method.name, was.stage.method, was.experiment.task
    send = method.scored or method.round[-1].send

    def one(client):
        return saved.model_of(name, method, task, send(state.server, client.id), client)

    federation = was.experiment.simulation.federations[0]
    everybody = simulate.population(federation, task.num_classes)
    return jax.vmap(one)(everybody._replace(private=state.private))


def _fitted(experiment, model):
    """A model as weights of the experiment's task. BadInput where the models differ."""
    shapes = jax.eval_shape(experiment.task.init, jax.random.key(0))
    return pretrained.match(_by_name(processes.on_host(model)), shapes)


def _by_name(model):
    return dict(zip(tree.names(model), jax.tree.leaves(model), strict=True))


def _with_part(method, models, private):
    """The clients' private state with a part of these models in the place of its own."""
    return beside.with_plain(private, _part(method, models, beside.plain(private)))


def _part(method, models, private):
    """Of the clients' models the part that their private state has. BadInput where it has none."""
    of_model, of_client = _by_name(models), _by_name(private)
    if not of_client or not of_client.keys() <= of_model.keys():
        raise BadInput(
            f"the clients of {method} do not keep a part of a model; use"
            " config.run.start_with=global"
        )
    parts = [of_model[name] for name in of_client]
    contract.check_alike("the clients must keep", parts, list(of_client.values()))
    return jax.tree.unflatten(jax.tree.structure(private), parts)


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
