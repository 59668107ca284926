"""From a config to all that a run needs. The only reader of configs; every message about a bad one.

A config has eight sections. `data`, `partition`, `model`, `embedding` and `method` name a function
of the package; its keyword-only arguments are the section's further keys. What a config leaves out
takes the defaults below and those of the named functions.
"""

import ast
import functools
import importlib.machinery
import importlib.util
import inspect
import math
import os
import warnings
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from fedjax_lab import methods, optim, parallel, partition
from fedjax_lab.augment import AUGMENTATIONS
from fedjax_lab.data.arrays import arrays
from fedjax_lab.data.cifar import cifar10, cifar100
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.digit_domains import digit_domains
from fedjax_lab.data.digits_five import digits_five
from fedjax_lab.data.domainnet import domainnet, domainnet_full
from fedjax_lab.data.idx import fashion_mnist, idx
from fedjax_lab.data.image_folders import image_folders, office_home, pacs, vlcs
from fedjax_lab.data.office_caltech import office_caltech
from fedjax_lab.data.prepared import tfds
from fedjax_lab.data.shakespeare import shakespeare
from fedjax_lab.data.svhn import svhn
from fedjax_lab.data.tiny_imagenet import tiny_imagenet
from fedjax_lab.embedding import Embeddings
from fedjax_lab.embedding.clip import clip
from fedjax_lab.embedding.precomputed import precomputed
from fedjax_lab.embedding.stand_in import stand_in
from fedjax_lab.engine import Joint, Simulation
from fedjax_lab.errors import (
    MACHINE,
    BadInput,
    check_choice,
    check_not_negative,
    check_positive,
    cut,
    nearest,
    quoted,
)
from fedjax_lab.models import (
    alexnet,
    cct,
    char_lstm,
    conv,
    inception,
    mobilenet,
    nets,
    resnet,
    vgg,
)
from fedjax_lab.models.task import make_task
from fedjax_lab.types import Federation, Method, Plan, Stage, Stages, Task

DEFAULTS = {
    "data": {
        "name": "digit_domains",
        "normalize": "unit",  # unit: pixels in 0..1; half: -1..1; else that set's mean and std
        "augment": "none",  # of training images
        "unseen": "",  # a domain that no client holds
        "shots": 0,  # images of it that each client holds after all
        "shots_per": "client",  # client: so many in all; class: so many of each class
    },
    "partition": {
        "name": "iid",
        "num_clients": 10,
        "validation": 0.0,  # fraction of each client's training examples
    },
    "model": {"name": "mlp"},
    "embedding": {"name": "stand_in"},  # of examples and labels, for methods that take them
    "method": {"name": "fedavg"},
    "local": {
        "optimizer": "sgd",
        "lr": 0.01,
        "momentum": 0.0,  # of sgd
        "weight_decay": 0.0,
        "clip": 0.0,  # largest norm of a step's gradient, before weight decay; 0: none
        "batch_size": 32,
        "epochs": 1,
    },
    "run": {
        "rounds": 50,  # fedconcat: of FedAvg, whose bytes it spends
        "cohort": 0,  # clients a round; 0: all
        "eval_every": 10,
        "seed": 0,
    },
    "engine": {
        "strategy": "auto",
        "chunk": 0,  # clients at a time for strategy=chunked; 0: a default
        "convolution": "auto",
        "seeds": "auto",
    },
}


def _table(*functions):
    return {function.__name__: function for function in functions}


NAMED = {
    "data": _table(
        digit_domains,
        fashion_mnist,
        idx,
        arrays,
        cifar10,
        cifar100,
        svhn,
        tiny_imagenet,
        shakespeare,
        digits_five,
        office_caltech,
        domainnet,
        domainnet_full,
        pacs,
        vlcs,
        office_home,
        image_folders,
        tfds,
    ),
    "partition": partition.PARTITIONS,
    "model": _table(
        nets.mlp,
        nets.simple_cnn,
        nets.concat_cnn,
        nets.lenet,
        nets.mcmahan_cnn,
        nets.digit_cnn,
        nets.fedbn_cnn,
        nets.pfl_cnn,
        nets.pfllib_cnn,
        vgg.vgg9,
        resnet.resnet18,
        resnet.resnet50,
        mobilenet.mobilenet_v2,
        cct.cct7,
        char_lstm.char_lstm,
        alexnet.alexnet_bn,
        inception.hfedf_cnn,
    ),
    "embedding": _table(stand_in, clip, precomputed),
    "method": methods.METHODS,
}

CHANNELS = {  # mean and std
    "cifar100": ((0.50708, 0.48655, 0.44092), (0.26733, 0.25644, 0.27615)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),  # of torchvision's weights
}

CHOICES = {
    "data.normalize": ("unit", "half", *CHANNELS),
    "data.augment": tuple(AUGMENTATIONS),
    "data.shots_per": ("client", "class"),
    "local.optimizer": ("sgd", "adam"),
    "engine.strategy": ("auto", "vectorised", "chunked", "sequential"),
    "engine.convolution": ("auto", "unrolled", "grouped", "im2col", "mapped"),
    "engine.seeds": ("auto", "vectorised", "sequential"),
}

POSITIVE = (
    "partition.num_clients",
    "local.lr",
    "local.batch_size",
    "local.epochs",
    "run.rounds",
    "run.eval_every",
)
NOT_NEGATIVE = (
    "data.shots",
    "local.momentum",
    "local.weight_decay",
    "local.clip",
    "run.cohort",
    "run.seed",
    "engine.chunk",
)


class Experiment(NamedTuple):
    """What a run needs: what the engine plays, and what that was made from."""

    config: ml_collections.ConfigDict
    dataset: Dataset
    task: Task
    simulation: Simulation


# Configs.


def load_config(path: str) -> dict:
    """The config of a file, `configs/quickstart.py` or `configs/quickstart.py:METHOD`."""
    path, _, method = path.partition(":")
    _check_file(path)
    if method and method not in methods.METHODS:
        raise BadInput(f"no method {quoted(method)}; {nearest(method, methods.METHODS)}")
    try:
        loader = importlib.machinery.SourceFileLoader("config_file", path)
        spec = importlib.util.spec_from_loader("config_file", loader)
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        return _as_dict(module.get_config(method) if method else module.get_config())
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # sys.exit among them: it would end the command without a word
        if isinstance(error, OSError) and error.errno in MACHINE:
            raise
        reason = cut(f"{type(error).__name__}: {error}", 300)
        raise BadInput(f"{path} cannot be loaded: {reason}") from error


def _check_file(path):
    """BadInput unless the path is that of a file; it names the nearest config file."""
    try:
        if Path(path).is_file():
            return
        nearby = [str(p) for p in Path(path).parent.glob("*.py") if p.is_file()]
    except (OSError, ValueError) as error:  # too long, not allowed to be read, with a NUL byte
        reason = getattr(error, "strerror", error)
        raise BadInput(f"no config file {quoted(path)}: {reason}") from error
    raise BadInput(f"no config file {quoted(path)}; {nearest(path, nearby)}")


def resolve(config: dict, overrides: list[tuple[str, str]] = ()) -> ml_collections.ConfigDict:
    """The whole, checked and locked config. Overrides are (dotted key, text), as from a shell."""
    config = _as_dict(config)
    if not isinstance(config, dict) or not all(isinstance(v, dict) for v in config.values()):
        raise BadInput(f"a config is a dict of sections, each a dict; got {quoted(config)}")
    for name, values in config.items():
        _check_section(name, values)
    sections = {name: dict(values) for name, values in config.items()}
    sections = {name: sections.get(name, {}) for name in DEFAULTS}
    for key, text in overrides:  # names first: they decide which other keys there are
        section, _, rest = key.partition(".")
        if rest == "name" and section in NAMED and text != sections[section].get("name"):
            general = {k: v for k, v in sections[section].items() if k in DEFAULTS[section]}
            sections[section] = {**general, "name": text}
    for key, text in overrides:
        if key == "method.base":  # and so does the method that is wrapped
            sections["method"] = _with_base(sections["method"], text)
    full = {name: _fill(name, values) for name, values in sections.items()}
    for key, text in overrides:
        _override(full, key, text)
    _check_values(full)
    resolved = ml_collections.ConfigDict(full)
    return resolved.lock()


def _check_section(name, values):
    """BadInput unless the section is known, its keys are text, and so is what names a function."""
    if name not in DEFAULTS:
        raise BadInput(f"no config section {quoted(name)}; {nearest(str(name), DEFAULTS)}")
    for key in values:
        if not isinstance(key, str):
            raise BadInput(f"a key of config.{name} must be text, got {quoted(key)}")
    for key in sorted({"name", "base"} & values.keys()):
        if not isinstance(values[key], str):
            raise BadInput(f"config.{name}.{key} must be text, got {quoted(values[key])}")


def _with_base(values, base):
    """Without the settings of the base method that they had."""
    name = values.get("name", DEFAULTS["method"]["name"])
    own = inspect.signature(methods.METHODS[name]).parameters if name in methods.METHODS else ()
    kept = {key: value for key, value in values.items() if key == "name" or key in own}
    return {**kept, "base": base}


def _as_dict(config):
    return config.to_dict() if isinstance(config, ml_collections.ConfigDict) else config


def _fill(section, values):
    """A section with all its keys: defaults, then those of the named function, then its own."""
    known, words = _known(section, values)
    full = dict(known)
    for key, value in values.items():
        if key not in known:
            raise BadInput(_unknown(section, key, known, values))
        full[key] = _typed(f"config.{section}.{key}", value, known[key], words.get(key, ()))
    return full


def _known(section, values):
    """The defaults of a section's keys, and the words that some take besides their type."""
    known = dict(DEFAULTS[section])
    if section not in NAMED:
        return known, {}
    name = values.get("name", known["name"])
    if name not in NAMED[section]:
        kind = {"data": "dataset"}.get(section, section)
        raise BadInput(f"no {kind} {quoted(name)}; {nearest(name, NAMED[section])}")
    function = NAMED[section][name]
    own = methods.settings(function, values)
    return known | {"name": name, **own}, methods.words(function, values)


def _override(full, key, text):
    section, _, rest = key.partition(".")
    if section not in full:
        raise BadInput(f"no config section {quoted(section)}; {nearest(section, full)}")
    if rest not in full[section]:
        raise BadInput(_unknown(section, rest, full[section], full[section]))
    known, words = _known(section, full[section])
    is_text = isinstance(known[rest], str) or known[rest] is inspect.Parameter.empty
    value = text if is_text else _literal(text)
    key = f"config.{section}.{rest}"
    full[section][rest] = _typed(key, value, known[rest], words.get(rest, ()))


def _unknown(section, key, known, values):
    owner = f"{section} {values['name']!r}" if "name" in values else f"config.{section}"
    settings = [name for name in known if name != "name"]
    return f"{owner} has no setting {quoted(key)}; {nearest(key, settings)}"


def _literal(text):
    """The Python value that the text writes; the text itself where it writes none."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of the text's syntax
            return ast.literal_eval({"true": "True", "false": "False"}.get(text.lower(), text))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text  # the last two: nested too deep for the parser


def _typed(key, value, old, words):
    """The value in the type of the old one, or one of the words; an int may stand for a float."""
    if isinstance(value, str) and value in words:
        return value
    if old is inspect.Parameter.empty:  # a setting without default: a path
        if not isinstance(value, (str, os.PathLike)):
            raise BadInput(f"{key} must be text, got {quoted(value)}")
        return str(value)
    kind = type(old)
    if kind is float and type(value) is int:
        value = _as_float(value)
    if kind is tuple and type(value) is list:
        value = tuple(value)
    if type(value) is not kind:
        allowed = " or ".join([f"of type {kind.__name__}", *map(repr, words)])
        raise BadInput(f"{key} must be {allowed}, got {quoted(value)}")
    if kind is tuple and old:
        return tuple(_typed(f"a value of {key}", each, old[0], ()) for each in value)
    return value


def _as_float(number):
    try:
        return float(number)
    except OverflowError:
        return math.inf  # refused by the check of values


def _check_values(full):
    for section, values in full.items():
        for key, value in values.items():
            if value is inspect.Parameter.empty:
                owner = f"{section} {values['name']!r}"
                raise BadInput(f"{owner} needs config.{section}.{key}")
            for each in value if isinstance(value, tuple) else (value,):
                _check_value(f"config.{section}.{key}", each)
    for key, known in CHOICES.items():
        check_choice(key, _get(full, key), known)
    for key in POSITIVE:
        check_positive(key, _get(full, key))
    for key in NOT_NEGATIVE:
        check_not_negative(key, _get(full, key))
    if not 0 <= full["partition"]["validation"] < 1:
        value = full["partition"]["validation"]
        raise BadInput(f"config.partition.validation must be in [0, 1), got {value}")
    cohort, clients = full["run"]["cohort"], full["partition"]["num_clients"]
    if cohort > clients:
        raise BadInput(
            f"config.run.cohort={cohort} is more than config.partition.num_clients={clients}"
        )


def _check_value(key, value):
    """BadInput for what no setting can be, whatever its name."""
    if isinstance(value, float) and not np.isfinite(value):
        raise BadInput(f"{key} must be finite, got {value}")
    if isinstance(value, int) and value >= 2**31:
        raise BadInput(f"{key} must be below 2**31, got {quoted(value)}")
    if isinstance(value, int) and value < -(2**31):
        raise BadInput(f"{key} must not be below -2**31, got {quoted(value)}")
    if isinstance(value, str) and "\0" in value:
        raise BadInput(f"{key} must not have a NUL byte, got {quoted(value)}")


def _get(full, key):
    section, rest = key.split(".")
    return full[section][rest]


# What a run needs.


def build(
    config: ml_collections.ConfigDict,
    seeds: list[int] | None = None,
    dataset: Dataset | None = None,
) -> Experiment:
    """All of it, from a resolved config. Nothing is compiled yet.

    `dataset`: what `load_data` gives for this config, where that is at hand.
    """
    seeds = [config.run.seed] if seeds is None else [int(seed) for seed in seeds]
    if not seeds or not all(0 <= seed < 2**32 for seed in seeds):
        raise BadInput(f"seeds must be from 0 to 2**32 - 1, got {quoted(seeds)}")
    if len(set(seeds)) < len(seeds):
        raise BadInput(f"a seed appears twice in {','.join(map(str, seeds))}")
    dataset = load_data(config) if dataset is None else dataset
    federations = make_federations(config, dataset, seeds)
    _check_scored(federations[0])
    embeddings = functools.cache(lambda: load_embeddings(config, dataset))
    task = make_model(config, dataset)
    task = task._replace(labels=lambda: jnp.asarray(embeddings().labels))
    method = methods.make(config.method.name, task, **_settings(config, "method"))
    stages = lay_out(method, config.run.rounds)
    training = pool(federations) if stages[0].method.pooled else federations
    rounds = sum(stage.rounds for stage in stages)
    plan = make_plan(config, training, dataset)._replace(rounds=rounds)
    simulation = Simulation(
        seeds=seeds,
        federations=federations,
        training=training,
        num_classes=task.num_classes,
        stages=stages,
        plan=plan,
        strategy=make_strategy(config, task, plan),
        vectorized_seeds=_vectorise_seeds(config, task, stages),
        embeddings=embeddings,
    )
    return Experiment(config, dataset, task, simulation)


def join(parts: list[Experiment]) -> Experiment:
    """Runs whose configs differ in numbers of `method` and `local` alone, as one computation.

    Its seeds are those of the first run, then those of the second, and so on; the numbers in which
    the runs differ are its `joint.settings`, which are traced. BadInput where that cannot be.
    """
    first, simulations = parts[0], [part.simulation for part in parts]
    stages = first.simulation.stages
    if len(stages) > 1 or stages[0].start is not None:
        raise BadInput(f"method {first.config.method.name} has stages")
    if not (first.simulation.vectorized_seeds or len(first.simulation.seeds) == 1):
        raise BadInput("the seeds of a run are not vectorised here (config.engine.seeds)")
    hyper = _settings(first.config, "method")
    differ = [
        f"{section}.{key}"
        for section in ("method", "local")
        for key, value in first.config[section].items()
        if any(part.config[section][key] != value for part in parts)
    ]

    def vary(settings):
        own = {key.removeprefix("method."): value for key, value in settings.items()}
        method = methods.make(
            first.config.method.name, first.task, **{key: own.get(key, hyper[key]) for key in hyper}
        )
        local = {k: settings.get(f"local.{k}", v) for k, v in first.config.local.items()}
        optimizer = make_optimizer(ml_collections.ConfigDict({"local": local}))
        return method, {"optimizer": optimizer, "clip": local["clip"]}

    settings = [
        {key: _get(part.config, key) for key in differ}
        for part in parts
        for _ in part.simulation.seeds
    ]
    together = first.simulation._replace(
        seeds=[seed for each in simulations for seed in each.seeds],
        federations=[federation for each in simulations for federation in each.federations],
        training=[federation for each in simulations for federation in each.training],
        vectorized_seeds=True,
        joint=Joint(settings, vary),
    )
    return first._replace(simulation=together)


def lay_out(method: Method | Stages, rounds: int) -> tuple[Stage, ...]:
    """The stages of a run: what a method makes of config.run.rounds, or one of so many.

    Last stages without a round are left out. BadInput where another one has none.
    """
    if isinstance(method, Method):
        return (Stage("train", method, rounds),)
    stages = method(rounds)
    while stages and stages[-1].rounds == 0:
        stages = stages[:-1]
    named = " + ".join(f"{stage.rounds} of {stage.name}" for stage in stages)
    if not stages or min(stage.rounds for stage in stages) < 1:
        raise BadInput(f"config.run.rounds={rounds} does not fit the stages: {named}")
    if len({stage.method.pooled for stage in stages}) > 1:
        raise BadInput(f"the stages {named} do not train on the same clients")
    return stages


def _settings(config, section):
    named = NAMED[section][config[section].name]
    return {key: config[section][key] for key in methods.settings(named, config[section])}


def load_data(config: ml_collections.ConfigDict) -> Dataset:
    """The examples of the named source."""
    dataset = NAMED["data"][config.data.name](**_settings(config, "data"))
    if len(dataset.x) == 0:
        raise BadInput("the dataset is empty")
    bad = (dataset.y < 0) | (dataset.y >= len(dataset.classes))
    if bad.any():
        row = int(np.argmax(bad))
        raise BadInput(
            f"row {row} has label {dataset.y[row]}, out of range 0..{len(dataset.classes) - 1}"
        )
    return dataset


def load_embeddings(config: ml_collections.ConfigDict, dataset: Dataset) -> Embeddings:
    """Those of the named source, of all examples that clients may train on."""
    _, unseen = _unseen_domain(config, dataset)
    dataset = dataset._replace(test=np.where(unseen, config.data.shots == 0, dataset.test))
    return NAMED["embedding"][config.embedding.name](dataset, **_settings(config, "embedding"))


def _check_scored(federation):
    if all(
        rows is None for rows in (federation.global_test, federation.unseen, federation.validation)
    ):
        raise BadInput(
            "nothing to score: the data have no test examples; name a domain with"
            " --config.data.unseen or hold some out with --config.partition.validation=0.1"
        )


def make_federations(
    config: ml_collections.ConfigDict, dataset: Dataset, seeds: list[int]
) -> list[Federation]:
    """One federation per seed over one pool, rows padded alike."""
    held, unseen = _unseen_domain(config, dataset)
    shots, unseen = _few_shots(config, dataset, unseen)
    train = np.flatnonzero(held & ~dataset.test)
    world = np.flatnonzero(held & dataset.test)
    parts = [_deal(config, dataset, train, world, shots, seed) for seed in seeds]
    train_rows, validation_rows, test_rows = (_same_width(p) for p in zip(*parts, strict=True))
    center, scale = _normalisation(config, dataset)
    pool = Federation(
        jnp.asarray(dataset.x),
        jnp.asarray(dataset.y, jnp.int32),
        jnp.asarray(dataset.domain, jnp.int32),
        center,
        scale,
        train=None,
        validation=None,
        test=None,
        global_test=jnp.asarray(world, jnp.int32) if len(world) else None,
        unseen=jnp.asarray(np.flatnonzero(unseen), jnp.int32) if unseen.any() else None,
    )
    return [
        pool._replace(train=a, validation=b, test=c)
        for a, b, c in zip(train_rows, validation_rows, test_rows, strict=True)
    ]


def _unseen_domain(config, dataset):
    name = config.data.unseen
    if not name:
        return np.ones(len(dataset.y), bool), np.zeros(len(dataset.y), bool)
    if name not in dataset.domains:
        raise BadInput(f"config.data.unseen: no domain {name!r}; {nearest(name, dataset.domains)}")
    unseen = dataset.domain == dataset.domains.index(name)
    return ~unseen, unseen


def _few_shots(config, dataset, unseen):
    """Rows of the unseen domain for each client [C, .], and which rows then remain unseen.

    As even over the classes as can be, in all and for each client, or of each class equally many;
    the same for all seeds.
    """
    clients, k = config.partition.num_clients, config.data.shots
    rows = np.flatnonzero(unseen)
    if k == 0:
        return np.zeros((clients, 0), int), unseen
    if config.data.shots_per == "class":
        _check_shots(config, dataset, rows)
        k *= len(dataset.classes)
    if clients * k >= len(rows):
        raise BadInput(
            f"config.data.shots={config.data.shots} for {clients} clients is more than the"
            f" {len(rows)} unseen examples leave"
        )
    rows = np.random.default_rng(0).permutation(rows)
    rows = rows[np.argsort(dataset.y[rows], kind="stable")]  # class after class
    y = dataset.y[rows]
    place = np.arange(len(y)) - np.searchsorted(y, y)  # in its class
    chosen = np.sort(np.argsort(place, kind="stable")[: clients * k])
    shots = np.stack([rows[chosen[i::clients]] for i in range(clients)])
    remaining = unseen.copy()
    remaining[shots.ravel()] = False
    return shots, remaining


def _check_shots(config, dataset, rows):
    """BadInput unless these rows have config.data.shots of each class for each client."""
    clients, k = config.partition.num_clients, config.data.shots
    counts = np.bincount(dataset.y[rows], minlength=len(dataset.classes))
    fewest = int(np.argmin(counts))
    if clients * k > counts[fewest]:
        raise BadInput(
            f"config.data.shots={k} of each class for {clients} clients is more than the"
            f" {counts[fewest]} unseen examples of class {dataset.classes[fewest]!r}; take fewer,"
            " or config.data.shots_per=client"
        )


def _deal(config, dataset, train, world, shots, seed):
    """Padded rows of one seed: training, validation, test; [C, .] each."""
    rng = np.random.default_rng([seed, 0])  # the partition's own stream
    deal = NAMED["partition"][config.partition.name]
    y, domain = dataset.y[train], dataset.domain[train]
    parts = deal(y, domain, config.partition.num_clients, rng, **_settings(config, "partition"))
    partition.check(parts, config.partition.name)
    tests = partition.deal_like(parts, y, domain, dataset.y[world], dataset.domain[world], rng)
    kept, validation = partition.hold_out(parts, config.partition.validation, rng)
    own = [np.concatenate([train[p], k]) for p, k in zip(kept, shots, strict=True)]
    return own, [train[p] for p in validation], [world[p] for p in tests]


def _same_width(parts_by_seed):
    """Parts [seed][client] as int32 rows [seed][C, N]; None where nobody has any."""
    padded = [partition.pad(parts) for parts in parts_by_seed]
    width = max(p.shape[1] for p in padded)
    if all((p < 0).all() for p in padded):
        return [None] * len(padded)
    wide = [np.pad(p, ((0, 0), (0, width - p.shape[1])), constant_values=-1) for p in padded]
    return [jnp.asarray(p, jnp.int32) for p in wide]


def _normalisation(config, dataset):
    if dataset.x.dtype != np.uint8:
        return jnp.float32(0), jnp.float32(1)
    if config.data.normalize == "half":
        return jnp.float32(127.5), jnp.float32(1 / 127.5)
    if config.data.normalize in CHANNELS:
        if dataset.x.shape[1:][2:] != (3,):
            raise BadInput(f"config.data.normalize={config.data.normalize} needs colour images")
        channels = CHANNELS[config.data.normalize]
        mean, std = (255 * jnp.array(a, jnp.float32) for a in channels)
        return mean, 1 / std
    return jnp.float32(0), jnp.float32(1 / 255)


def make_model(config: ml_collections.ConfigDict, dataset: Dataset) -> Task:
    """The task of the named model on examples of this dataset."""
    net = NAMED["model"][config.model.name](len(dataset.classes), **_settings(config, "model"))
    if hasattr(net, "convolution"):
        net = net.clone(convolution=conv.choose(config.engine.convolution))
    center, scale = _normalisation(config, dataset)
    lowest, highest = ((edge - center) * scale for edge in _pixel_range(dataset))
    shape, count = dataset.x.shape[1:], len(dataset.classes)
    return make_task(net, shape, count, lowest=lowest, highest=highest)


def _pixel_range(dataset):
    """Of images 0 .. 255; of other inputs the extremes that occur."""
    if dataset.x.dtype == np.uint8:
        return 0.0, 255.0
    return float(dataset.x.min()), float(dataset.x.max())


def pool(federations: list[Federation]) -> list[Federation]:
    """The same examples with one client that holds them all."""
    everything = [np.asarray(f.train).ravel() for f in federations]
    rows = _same_width([[rows[rows >= 0]] for rows in everything])
    return [f._replace(train=r) for f, r in zip(federations, rows, strict=True)]


def make_plan(
    config: ml_collections.ConfigDict, training: list[Federation], dataset: Dataset
) -> Plan:
    """The run's static sizes."""
    if config.data.augment != "none" and dataset.x.ndim != 4:
        raise BadInput(f"config.data.augment={config.data.augment} needs images")
    colour = dataset.x.dtype == np.uint8 and dataset.x.shape[3:] == (3,)
    if config.data.augment == "domainbed" and not colour:
        raise BadInput("config.data.augment=domainbed needs colour images of 8 bits")
    size = min(config.local.batch_size, training[0].train.shape[1])  # the same batches
    held = np.concatenate([np.asarray(f.train >= 0).sum(1) for f in training])
    longest = -(-training[0].train.shape[1] // size)
    return Plan(
        config.run.rounds,
        min(config.run.cohort or config.partition.num_clients, training[0].train.shape[0]),
        size,
        config.local.epochs,
        make_optimizer(config),
        config.local.clip,
        len(dataset.domains),
        equal_steps=bool((-(-held // size) == longest).all()),
        augment=AUGMENTATIONS[config.data.augment],
    )


def make_optimizer(config: ml_collections.ConfigDict):
    """The clients' optimiser."""
    local = config.local
    if local.optimizer == "adam":
        return optim.adam(local.lr, local.weight_decay)
    return optim.sgd(local.lr, local.momentum, local.weight_decay)


def make_strategy(config: ml_collections.ConfigDict, task: Task, plan: Plan) -> parallel.Strategy:
    """The configured way to run clients."""
    return parallel.choose(
        config.engine.strategy,
        cohort=plan.cohort,
        convolutional=has_convolutions(task),
        equal_steps=plan.equal_steps,
        chunk=config.engine.chunk,
    )


def has_convolutions(task: Task) -> bool:
    """Whether the model has convolution kernels, the leaves with four axes."""
    shapes = jax.eval_shape(task.init, jax.random.key(0)).params
    return any(len(a.shape) == 4 for a in jax.tree.leaves(shapes))


def _vectorise_seeds(config, task, stages):
    if config.engine.seeds == "auto":
        if any(stage.prepare for stage in stages):  # its facts may differ in size between seeds
            return False
        return jax.default_backend() != "cpu" or not has_convolutions(task)
    return config.engine.seeds == "vectorised"


def partition_counts(config: ml_collections.ConfigDict, seed: int) -> tuple[np.ndarray, Dataset]:
    """How many training examples of each class each client holds, [C, K]; and the dataset."""
    dataset = load_data(config)
    (federation,) = make_federations(config, dataset, [seed])
    parts = [rows[rows >= 0] for rows in np.asarray(federation.train)]
    return partition.counts(parts, dataset.y, len(dataset.classes)), dataset
