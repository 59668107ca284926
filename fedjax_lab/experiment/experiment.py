"""Builds the objects of a run from its config: data, model, method, plan and simulation."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from fedjax_lab import defaults, tree
from fedjax_lab.data import held_out, leaks, normalize, precision
from fedjax_lab.data.dataset import Dataset, are_numerals, numerals, without_marks
from fedjax_lab.data.formats.text_rows import are_words
from fedjax_lab.data.lazy import limits
from fedjax_lab.data.normalize import Scale
from fedjax_lab.engine import fsdp
from fedjax_lab.engine.input import BASE, Seed, Simulation
from fedjax_lab.errors import BadInput, check_seeds, cut, printable, quoted
from fedjax_lab.experiment import (
    checks,
    clocks,
    local_settings,
    pooled,
    traits,
    transforming,
    unlike_models,
    variants,
)
from fedjax_lab.experiment.devices import check_fsdp, engine_fields, platform_of
from fedjax_lab.experiment.federation import (
    class_counts,
    is_of_domain,
    make_federations,
    pool,
)
from fedjax_lab.experiment.optimizers import check_optimizer
from fedjax_lab.experiment.registry import NAMED, bind, has_own_test, look_up, make_method
from fedjax_lab.experiment.stages import ends, lay_out
from fedjax_lab.models import adapters, kernels, modules, token_ids, unlike
from fedjax_lab.models.embeddings import Embeddings
from fedjax_lab.models.frozen import Model, model_of
from fedjax_lab.models.task import make_task
from fedjax_lab.simulation import contract, metrics
from fedjax_lab.simulation.simulator import make_plan
from fedjax_lab.tasks import Labels
from fedjax_lab.transforms.guarantee import Guarantee
from fedjax_lab.types import Failures, Federation, Objective, Task


class Experiment(NamedTuple):
    """The simulation that the engine plays, with the config, dataset and task it was built from."""

    config: ml_collections.ConfigDict
    dataset: Dataset
    task: Task
    simulation: Simulation
    remarks: tuple[str, ...] = ()  # what the examples are, and how they are scaled


@defaults.restored()
def build(
    config: ml_collections.ConfigDict,
    seeds: Sequence[int] | None = None,
    dataset: Dataset | None = None,
    devices: Sequence[jax.Device] | None = None,
    memory: int = 0,
) -> Experiment:
    """Builds the experiment of a resolved config. Nothing is compiled yet.

    seeds: the seeds of the run; None: the config's seed.
    dataset: the result of `load_data` for this config, if it is already loaded.
    devices: the devices that the run is built for; None: all that JAX finds. For an abstract engine
        they may be descriptions of devices that this machine does not have.
    memory: bytes of each of these devices if they are only described; 0: unknown.
    """
    seeds = [config.run.seed] if seeds is None else [int(seed) for seed in seeds]
    check_seeds(seeds)
    dataset = load_data(config.data) if dataset is None else dataset
    objective = make_objective(config, dataset)
    if checks.are_numbers(objective):
        precision.check_labels("the labels", np.asarray(dataset.y))
        dataset = dataset._replace(classes=())
    dataset = dataset._replace(y=_as_labels(np.asarray(dataset.y), objective))
    embeddings = functools.cache(lambda: load_embeddings(config, dataset))
    scale = make_scale(config.data, dataset)
    federations = deal_dataset(config, dataset, seeds, embeddings, scale)
    checks.check_clients(config, federations[0])
    model = make_model(config, dataset, platform_of(devices), scale, objective)
    model = model.changed(
        lambda task: task._replace(embeddings=embeddings, levels=tuple(config.partition.capacity))
    )
    with transforming.naming_users_of_classes(config):
        simulation = _simulation(config, seeds, dataset, federations, model, devices, memory)
    remarks = (
        *describe_examples(config, dataset, scale),
        *describe_model(model),
        *transforming.describe_attackers(config, simulation),
        *pooled.remarks(config, simulation.stages),
    )
    return Experiment(config, dataset, model.unbound, simulation, remarks)


def _simulation(config, seeds, dataset, federations, model, devices, memory):
    """The simulation of a run. Raises BadInput if its parts do not fit."""
    task = model.unbound
    check_optimizer(config.local, task)
    setup, training = transforming.make_setup(config, federations), federations
    variant = functools.partial(variants.variant, config, model, setup)
    stages, of_step = variant({})
    if pooled.are_pooled(stages):
        config, training = pooled.without_clients(config, stages), pool(federations)
        variant = functools.partial(variants.variant, config, model, setup)
        stages, of_step = variant({})
    checks.check_skewed(config, stages)
    checks.check_target(config, task.objective)
    checks.check_moved(config, task.objective)
    checks.check_validation(config, stages, training[0])
    plan = _plan(config, training, stages, of_step, dataset, task.objective)
    local_settings.check(config.local, training, stages, plan)
    plan = plan._replace(feature_skew=feature_skew(config, dataset.x, federations[0]))
    plan, timed = clocks.timed(config, plan, stages, list(map(Seed, seeds, federations, training)))
    simulation = Simulation(
        seeds=timed,
        num_classes=task.objective.num_classes,
        stages=stages,
        plan=plan,
        variant=variant,
        base=model if jax.tree.leaves(model.base) else None,
        scheduled=variants.scheduled(config, [stage.rounds for stage in stages]),
        **engine_fields(config.engine, plan, stages, model, federations, devices, memory),
    )
    check_fsdp(config, plan, stages)
    transforming.check_first_round(config, simulation)
    return simulation


@defaults.restored()
def with_base(experiment: Experiment) -> Experiment:
    """The experiment with the frozen weights in its task and stages, outside of the engine."""
    simulation = experiment.simulation
    if simulation.base is None:
        return experiment
    assert simulation.variant is not None  # a built experiment has it
    weights = simulation.base.load()
    stages, _ = simulation.variant({BASE: weights})
    task = simulation.base.bind(weights)
    return experiment._replace(task=task, simulation=simulation._replace(stages=stages))


@defaults.restored()
def guarantee(experiment: Experiment) -> Guarantee | None:
    """The privacy guarantee of the run; None if it has none, or if epsilon is infinite."""
    return experiment.simulation.stages[0].method.extra.guarantee


def check_noise(experiment: Experiment, old: int, new: int, played: int) -> None:
    """Raises BadInput if another number of rounds changes the noise of rounds already played.

    old, new: the earlier and the new number of rounds of the run. played: rounds played so far.
    """
    promised = guarantee(experiment)
    if old == new or not played or promised is None or promised.rounds is None:
        return
    raise BadInput(
        f"config.privacy: the noise depends on config.run.rounds: {new} rounds instead of {old}"
        f" would have changed the noise of the first {played} rounds; name another folder"
    )


def ends_with(experiment: Experiment, rounds: int) -> dict[str, int]:
    """As `ends`, for a run that differs from the experiment only in config.run.rounds."""
    config = experiment.config
    if rounds == config.run.rounds:
        return ends(experiment.simulation.stages)
    return ends(lay_out(make_method(task=experiment.task, **config.method), rounds))


@defaults.restored()
def load_data(section: Mapping) -> Dataset:
    """Loads the dataset of the source that a config's section `data` names.

    With config.data.test, a share of the examples become test examples, unless the source has its
    own setting `test`.

    Raises BadInput if the result is not a valid Dataset, or if it already has a test set.
    """
    dataset = bind("data", section)()
    if not isinstance(dataset, Dataset):
        raise BadInput(f"data {section['name']} must return a Dataset, not {quoted(dataset)}")
    _check_arrays(dataset)
    if len(dataset.x) == 0:
        raise BadInput(f"the data source {section['name']} returned no examples")
    dataset = dataset._replace(x=normalize.as_meant(dataset.x))
    dataset = _without_marks(dataset, section.get("no_label"))
    held_out.check_whole(dataset)
    if dataset.has_classes:
        _check_numbers("label", dataset.y, dataset.classes)
    _check_numbers("domain", dataset.domain, dataset.domains)
    if dataset.client is not None:
        _check_numbers("client", dataset.client, dataset.users)
    if (share := section.get("test")) and not has_own_test(section["name"]):
        dataset = held_out.with_test(dataset, section["name"], share, section["test_seed"])
    if share or dataset.test_is_drawn or section["name"] not in NAMED["data"]:
        leaks.report(dataset)  # the package's readers of a user's files report by themselves
    if dataset.test_is_drawn:
        dataset = dataset._replace(remarks=(*dataset.remarks, held_out.remark(dataset)))
    from fedjax_lab.data.fetching import catalog  # the tables are read when they are needed

    return catalog.credited(dataset, section)


def _as_labels(y, objective):
    """The labels [R, ...] in the type of the task; those with fractions stay real numbers."""
    is_whole = y.dtype.kind == "f" and not (y % 1).any()
    return y.astype(objective.label.dtype) if checks.are_numbers(objective) or is_whole else y


def _without_marks(dataset, marks):
    """The dataset with IGNORED in place of these marks of tokens or pixels that do not count."""
    y = np.asarray(dataset.y)
    if not marks:
        return dataset
    if y.ndim < 2 or y.dtype.kind not in "iu" or not all(type(mark) is int for mark in marks):
        raise BadInput(
            f"config.data.no_label={quoted(marks)} takes whole labels of tokens or pixels, and a"
            f" label of these data is {y.dtype}{list(y.shape[1:])}; leave out examples without a"
            " label"
        )
    y = without_marks(y, marks)
    numbered = are_numerals(dataset.classes)
    return dataset._replace(y=y, classes=numerals(y) if numbered else dataset.classes)


def _check_arrays(dataset):
    """Raises BadInput unless the fields are arrays of numbers with one entry per example."""
    types = {"x": "biuf", "y": "biuf", "domain": "biu", "test": "biu"}
    types |= {} if dataset.client is None else {"client": "biu"}
    for field, valid in types.items():
        array = getattr(dataset, field)
        if not (hasattr(array, "dtype") and np.ndim(array)):
            raise BadInput(f"the dataset's {field} must be an array, not {quoted(array)}")
        precision.check_unmasked(f"the dataset's {field}", array)
        if np.dtype(array.dtype).kind not in valid:
            numbers = "numbers" if field in "xy" else "whole numbers"
            raise BadInput(f"the dataset's {field} must be {numbers}, not {array.dtype}")
        if len(array) != len(dataset.x):
            raise BadInput(
                f"the dataset has {len(dataset.x)} examples, but its {field} has shape"
                f" {list(np.shape(array))}"
            )
        if 0 in (shape := np.shape(array)[1:]):
            raise BadInput(f"the dataset's {field} has no columns: an example has shape {[*shape]}")
        if field not in ("x", "y") and np.ndim(array) != 1:
            raise BadInput(f"the dataset's {field} must have one number of each example")


def _check_numbers(what, numbers, names):
    """Raises BadInput unless each number is an index of `names`."""
    if not isinstance(names, (list, tuple)):
        raise BadInput(f"the {what} names must be a tuple of text, not {quoted(names)}")
    bad = (numbers < 0) | (numbers >= len(names))
    if bad.any():
        row = int(np.argmax(bad))
        raise BadInput(f"row {row} has {what} {numbers[row]}, out of range 0..{len(names) - 1}")


@defaults.restored()
def deal_dataset(
    config: ml_collections.ConfigDict,
    dataset: Dataset,
    seeds: Sequence[int],
    embeddings: Callable[[], Embeddings] | None = None,
    scale: Scale | None = None,
) -> list[Federation]:
    """Divides the dataset among clients as the config's sections `data` and `partition` specify.

    Returns one federation per seed. embeddings: () -> the result of `load_embeddings` for this
    config, and scale: that of `make_scale`, if they are to be shared.
    """
    load = embeddings or functools.cache(lambda: load_embeddings(config, dataset))
    checks.check_partition(config, dataset)
    return make_federations(
        dataset,
        bind("partition", config.partition),
        seeds,
        num_clients=config.partition.num_clients,
        name=config.partition.name,
        embed=lambda: np.asarray(load().examples),
        validation=config.partition.validation,
        scale=make_scale(config.data, dataset) if scale is None else scale,
        unseen=config.data.unseen,
        shots=config.data.shots,
        shots_per=config.data.shots_per,
        new_clients=config.partition.new_clients,
        public=config.partition.public,
        traits=traits.makers(config),
    )


@defaults.restored()
def make_scale(section: Mapping, dataset: Dataset) -> Scale:
    """How examples become inputs of the model, by config.data.normalize.

    Only training examples are used, without test examples and those of the unseen domain. They
    include validation examples and new clients, which each seed holds out later.
    """
    return normalize.scale_of(dataset.x, section["normalize"], _training_rows(section, dataset))


def _training_rows(section, dataset):
    """The numbers of the training examples; those of all if there are none."""
    is_training = ~dataset.test & ~is_of_domain(dataset, section["unseen"])
    return np.flatnonzero(is_training if is_training.any() else np.ones(len(dataset.y)))


def describe_examples(
    config: ml_collections.ConfigDict, dataset: Dataset, scale: Scale
) -> tuple[str, ...]:
    """Lines on what the examples are, how they are scaled, and what is wrong with the scale."""
    data, x = config.data, dataset.x
    lines = [*dataset.remarks, normalize.described(x, data.normalize, scale)]
    if not token_ids.takes_ids(bind("model", config.model)(max(len(dataset.classes), 1)), x):
        rows = _training_rows(data, dataset)
        lines += filter(None, [normalize.remark(x, data.normalize, scale, rows)])
    return (*lines, *_unused_classes(dataset), *_unused_users(config, dataset))


def _unused_classes(dataset):
    """A line if classes of examples or of pixels, but not of words or tokens, never occur."""
    y, classes = np.asarray(dataset.y), dataset.classes
    if y.dtype.kind not in "iu" or y.ndim == 2 or are_words(classes):
        return
    unused = np.setdiff1d(np.arange(len(classes)), y)
    if len(unused):
        names = cut(printable(", ".join(classes[number] for number in unused)), 80)
        yield (
            f"{len(unused)} of {len(classes)} classes occur in no example: {names}; the model has"
            " an output for each of them"
            + "; number labels from 0 without gaps to avoid this"
            * are_numerals(classes)
        )


def _unused_users(config, dataset):
    """A line if the user has named the client of each example, and the partition ignores it."""
    name = config.partition.name
    named = config.data.get("client") or callable(config.data.name)
    if dataset.client is not None and named and name in NAMED["partition"].keys() - {"by_client"}:
        count = len(dataset.users)
        yield (
            f"the partition {name} makes the clients, and not the {count} users whom the data name:"
            " choose --config.partition.name=by_client for those"
        )


@defaults.restored()
def partition_counts(config: ml_collections.ConfigDict, seed: int) -> tuple[np.ndarray, Dataset]:
    """The number of training examples of each class of each client, [C, K], and the dataset."""
    dataset = load_data(config.data)
    (federation,) = deal_dataset(config, dataset, [seed])
    return class_counts(federation.train, dataset.strata, len(dataset.stratum_names)), dataset


@defaults.restored()
def load_embeddings(config: ml_collections.ConfigDict, dataset: Dataset) -> Embeddings:
    """The embeddings, from the named source, of all examples that clients may train on."""
    unseen = is_of_domain(dataset, config.data.unseen)
    dataset = dataset._replace(test=np.where(unseen, config.data.shots == 0, dataset.test))
    made = bind("embedding", config.embedding)(dataset)
    if not isinstance(made, Embeddings):
        name = config.embedding.name
        raise BadInput(f"embedding {name} must return Embeddings, not {quoted(made)}")
    _check_embeddings(config.embedding.name, made, len(dataset.x), len(dataset.classes))
    return made


def _check_embeddings(name, made, count, classes):
    """Raises BadInput unless the embeddings are numbers [count, E] and [classes, E], E > 0."""
    width = np.shape(made.examples)[-1:] or (0,)
    for field, rows in (("examples", count), ("labels", classes)):
        array = getattr(made, field)
        is_float = np.dtype(getattr(array, "dtype", object)).kind == "f"
        if not is_float or np.shape(array) != (rows, *width) or not width[0]:
            kind, shape = getattr(array, "dtype", type(array).__name__), [*np.shape(array)]
            raise BadInput(
                f"embedding {name} must return {field} of shape [{rows}, E] with E > 0, the same E"
                f" for examples and labels, in float32; its {field} are {kind}{shape}"
            )


@defaults.restored()
def make_objective(config: ml_collections.ConfigDict, dataset: Dataset) -> Objective:
    """What the model learns, by config.task, from the labels of the training examples."""
    y, rows = np.asarray(dataset.y), _training_rows(config.data, dataset)
    others = np.delete(y, rows, axis=0)
    labels = Labels(y[rows], dataset.classes, others, dataset.class_bytes)
    made = bind("task", config.task)(labels)
    if not isinstance(made, Objective):
        raise BadInput(f"task {config.task.name} must return an Objective, not {quoted(made)}")
    checks.check_numbers(config, dataset, made)
    return made


@defaults.restored()
def make_model(
    config: ml_collections.ConfigDict,
    dataset: Dataset,
    platform: str | None = None,
    scale: Scale | None = None,
    objective: Objective | None = None,
) -> Model:
    """Makes the config's model for examples of this dataset.

    platform: "cpu", "gpu" or "tpu", on which the model will run; None: that of JAX's devices.
    scale, objective: the results of `make_scale` and `make_objective`, if they are to be shared.
    """
    objective = make_objective(config, dataset) if objective is None else objective
    scale = make_scale(config.data, dataset) if scale is None else scale
    unlike_models.check(config)
    nets = [
        _make_net(config, section, dataset, platform, scale, objective)
        for section in unlike_models.sections(config.model)
    ]

    def make(net, pretrained_file):
        return make_task(
            net,
            dataset.x.shape[1:],
            objective,
            lowest=scale.lowest,
            highest=scale.highest,
            compute_dtype=jnp.dtype(config.engine.dtype),
            pretrained_file=pretrained_file,
        )

    if config.model.kinds:
        return model_of(unlike.mixed_task([make(net, "") for net in nets]))
    adapter = bind("adapter", config.adapter)(objective)
    return adapters.apply(adapter, nets[0], config.model.pretrained, make)


def _make_net(config, section, dataset, platform, scale, objective):
    """The module that a section `model` names."""
    net = bind("model", section)(objective.outputs[-1])
    modules.check_module(net)
    if hasattr(net, "kernels"):
        net = net.clone(
            kernels=kernels.choose(platform or platform_of(None), config.engine.convolution)
        )
    if token_ids.takes_ids(net, dataset.x):
        ends = normalize.id_limits(dataset.x, scale)
        net = token_ids.with_vocabulary(net, dataset.x, ends, len(dataset.classes))
    return net


def describe_model(model: Model) -> tuple[str, ...]:
    """A line on the part of the model that is trained; () if it is all of it."""
    if not jax.tree.leaves(model.base):
        return ()
    shapes = jax.eval_shape(model.unbound.init, jax.random.key(0))
    trained, fixed = (sum(a.size for a in jax.tree.leaves(part)) for part in (shapes, model.base))
    size = tree.num_bytes(model.base) / 2**20
    return (
        f"trained: {trained:,} of the model's {trained + fixed:,} numbers; the others"
        f" ({size:,.1f} MiB) are frozen",
    )


def _plan(config, training, stages, of_step, dataset, objective):
    extra, named = stages[0].method.extra, (look_up("metric", m) for m in config.run.metrics)
    plan = make_plan(
        training,
        rounds=sum(stage.rounds for stage in stages),
        cohort=config.run.cohort,
        batch_size=config.local.batch_size,
        epochs=config.local.epochs,
        steps=config.local.steps,
        accumulate=config.local.accumulate,
        failures=Failures(
            dropout=config.run.dropout,
            straggler=config.run.straggler,
            attackers=transforming.attackers(config.attack),
        ),
        num_domains=len(dataset.domains),
        example_shape=dataset.x.shape[1:],
        augment=_augmentation(config.data.augment, dataset.x),
        metrics=metrics.make((*named, *extra.metrics), objective),
        objective=objective,
        **of_step,
    )
    _check_words(plan.metrics, dataset.classes)
    checks.check_accumulated(config, plan)
    return plan._replace(eval_batch=fsdp.even(plan.eval_batch, config.engine.fsdp))


def _check_words(measured, classes):
    """Raises BadInput if the word accuracy is a metric, but the classes are not words."""
    if not are_words(classes) and any(m.name == "word_accuracy" for m in measured):
        raise BadInput(
            "config.run.metrics: word_accuracy is for data whose classes are words, such as"
            " config.data.task=next_word; use top5, or the accuracy, which is always measured"
        )


def _augmentation(name: str, x: np.ndarray) -> Callable | None:
    """The named augmentation of training images; BadInput if it does not fit the examples x."""
    if name in NAMED["augmentation"] and name != "none" and x.ndim != 4:
        raise BadInput(f"config.data.augment={name} needs images")
    if name == "domainbed" and not (x.dtype == np.uint8 and x.shape[3:] == (3,)):
        raise BadInput("config.data.augment=domainbed needs 8-bit color images")
    return look_up("augmentation", name)


@defaults.restored()
def feature_skew(
    config: ml_collections.ConfigDict, x: np.ndarray, federation: Federation
) -> Callable | None:
    """The config's feature skew as a function of raw examples x; None if there is none.

    The skew itself sees pixels from 0 to 255 in 0..1, examples in float64 scaled by `in_float32`,
    and others unchanged.

    Raises BadInput if it does not fit the examples.
    """
    name, skews = config.partition.feature_skew, federation.traits.get("skew")
    if skews is None:
        return None
    of_ids = not normalize.is_image(x) and x.dtype.kind in "iu" and limits(x)[1] > 1
    if name == "noise" and of_ids:
        raise BadInput(
            f"config.partition.feature_skew=noise needs images or real numbers, not {x.dtype}"
        )
    skew = bind("feature_skew", config.partition, "feature_skew")
    of_pixels = normalize.is_pixels(x) or config.data.normalize == "pixels"
    scale, num_clients = 255 if of_pixels else 1, len(skews.client)

    def skew_raw(key, x, client):
        skewed = contract.check_skewed(skew(key, x / scale, client, num_clients), x)
        return skewed * scale

    like = jax.ShapeDtypeStruct(x.shape[1:], jnp.float32)
    jax.eval_shape(skew_raw, jax.random.key(0), like, jnp.int32(0))  # BadInput if it does not fit
    return skew_raw
