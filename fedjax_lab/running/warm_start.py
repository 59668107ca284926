"""Starts a run from the result of another run: config.run.start_from and config.run.start_with.

Each seed starts from the same seed of the other run, or from that run's only seed.
"""

import jax

from fedjax_lab import tree
from fedjax_lab.engine import processes
from fedjax_lab.engine.engine import Engine
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment.experiment import Experiment
from fedjax_lab.experiment.joint import with_first_weights, with_start
from fedjax_lab.models import pretrained
from fedjax_lab.running import loading
from fedjax_lab.running.client_models import global_model, model_of
from fedjax_lab.simulation import contract
from fedjax_lab.simulation.population import make_population
from fedjax_lab.transforms import private_state


def warmed(experiment: Experiment) -> Experiment:
    """The experiment with its start; unchanged if config.run.start_from is empty.

    Raises BadInput if the newest checkpoint of that folder has nothing the run can start from.
    """
    run = experiment.config.run
    if not run.start_from:
        return experiment
    try:
        return STARTS[run.start_with](experiment, loading.load(run.start_from))
    except BadInput as error:
        raise BadInput(f"config.run.start_from={run.start_from}: {error}") from error


def _with_models(experiment, was):
    """The experiment with the other run's global model as first weights, like pretrained ones."""
    name, method = was.config.method.name, was.stage.method
    models = [global_model(name, method, state) for state in _states(experiment, was)]
    return with_first_weights(experiment, [_fitted(experiment, model) for model in models])


def _with_own_models(experiment, was):
    """The experiment with the other run's personal models as its clients' models.

    Parts of a model that clients do not keep start from the mean of the personal models.
    """
    _check_alone("personal")
    models = [processes.on_host(_own_models(was, state)) for state in _states(experiment, was)]
    mean = [jax.tree.map(lambda a: a.mean(0), of_seed) for of_seed in models]
    warm = with_first_weights(experiment, [_fitted(experiment, model) for model in mean])
    first = Engine(warm.simulation).final_states()
    name = experiment.config.method.name
    return with_start(
        warm,
        [
            state._replace(private=_with_part(name, of_seed, state.private))
            for state, of_seed in zip(first, models, strict=True)
        ],
    )


def _with_states(experiment, was):
    """The experiment with the other run's states of server and clients as its initial states."""
    _check_alone("state")
    return with_start(experiment, _states(experiment, was))


STARTS = {"global": _with_models, "personal": _with_own_models, "state": _with_states}


def _check_alone(start_with):
    if processes.count() > 1:
        raise BadInput(f"config.run.start_with={start_with} is only possible with one process")


def _own_models(was, state):
    """The models [C, ...] of the other run's clients, before any tuning."""
    name, method, task = was.config.method.name, was.stage.method, was.experiment.task

    def one(client):
        return model_of(name, method, task, method.sends_scored(state.server, client.id), client)

    federation = was.experiment.simulation.seeds[0].federation
    everybody = make_population(federation, task.objective.num_classes)
    return jax.vmap(one)(everybody._replace(private=state.private))


def _fitted(experiment, model):
    """A model as weights of the experiment's task. Raises BadInput if the shapes differ."""
    shapes = jax.eval_shape(experiment.task.init, jax.random.key(0))
    return pretrained.match(tree.by_name(processes.on_host(model)), shapes)


def _with_part(method, models, private):
    """The clients' private state, with its part of the model replaced by that of `models`."""
    return private_state.with_plain(private, _part(method, models, private_state.plain(private)))


def _part(method, models, private):
    """The part of the models that the private state has. Raises BadInput if it has no such part."""
    of_model, of_client = tree.by_name(models), tree.by_name(private)
    if not of_client or not of_client.keys() <= of_model.keys():
        raise BadInput(
            f"the clients of {method} do not keep a part of a model; use"
            " config.run.start_with=global"
        )
    parts = [of_model[name] for name in of_client]
    contract.check_alike("the clients must keep", parts, list(of_client.values()))
    return jax.tree.unflatten(jax.tree.structure(private), parts)


def _states(experiment, was):
    """The other run's state for each seed of this run."""
    seeds = was.experiment.simulation.seed_numbers
    states = dict(zip(seeds, was.states, strict=True))
    if len(seeds) == 1:
        return was.states * len(experiment.simulation.seeds)
    for seed in experiment.simulation.seed_numbers:
        if seed not in states:
            raise BadInput(f"the run has no seed {seed}, only {', '.join(map(str, seeds))}")
    return [states[seed] for seed in experiment.simulation.seed_numbers]
