"""The keys that every config has: their defaults, meanings, choices and limits.

A config has sixteen sections. Each of them except `local`, `run` and `engine` has a key `name`,
the name of a function in the registry, whose settings are further keys of the section. Other keys
name functions too. This module imports nothing heavy, so that reports of runs start quickly.
"""

from typing import Any, NamedTuple

from fedjax_lab.ranges import BELOW_ONE, NOT_NEGATIVE, POSITIVE, SHARE, Limit, OneOf, Within


class Key(NamedTuple):
    """A key of a config, whose values have the type of the default."""

    default: Any
    meaning: str
    limit: Limit | None = None
    kind: str = ""  # of the function that a value names; a key `name` has that of its section


KEYS: dict[str, Key] = {  # by SECTION.KEY
    "data.name": Key("digit_domains", "the source of the examples"),
    "data.normalize": Key(
        "unit",
        "how numbers become inputs of the model: unit, pixels become 0 to 1 and other numbers stay"
        " as they are; half, pixels become -1 to 1; the name of a dataset, by whose mean and"
        " standard deviation pixels are normalized; standard, by the mean and standard deviation"
        " of each column or channel in the training examples; pixels, all numbers from 0 to 255"
        " are divided by 255; none, as they are",
        limit=OneOf(("unit", "half", "cifar100", "imagenet", "pixels", "standard", "none")),
    ),
    "data.augment": Key("none", "the random augmentation of training images", kind="augmentation"),
    "data.unseen": Key(
        "", "a domain that no client holds, on which models are scored; empty: none"
    ),
    "data.shots": Key(
        0,
        "the number of images of the unseen domain that each client gets nevertheless",
        NOT_NEGATIVE,
    ),
    "data.shots_per": Key(
        "client",
        "client: data.shots is the number of images of a client; class: the number of images of"
        " each class of a client",
        limit=OneOf(("client", "class")),
    ),
    "data.test": Key(
        0.0,
        "the share of examples that become test examples if the source has no test set; the draw"
        " is stratified by class, domain and user; 0: none",
    ),
    "data.no_label": Key(
        (),
        "labels of tokens or pixels that do not count, besides -1; the usual ones are -100, as in"
        " PyTorch, and 255, the edges of objects in masks",
    ),
    "data.test_seed": Key(0, "the seed of the draw of these test examples", NOT_NEGATIVE),
    "partition.name": Key("iid", "how the training examples are divided among the clients"),
    "partition.num_clients": Key(
        10,
        "the number of clients; by_client draws this number of users at random, or takes all users"
        " if it is 0",
        NOT_NEGATIVE,
    ),
    "partition.validation": Key(
        0.0,
        "the fraction of each client's training examples that is held out for validation",
        BELOW_ONE,
    ),
    "partition.new_clients": Key(
        0.0, "the share of clients that are scored, but never trained on", BELOW_ONE
    ),
    "partition.public": Key(
        0.0,
        "the share of the training examples that no client holds, and that the server and all"
        " clients have",
        BELOW_ONE,
    ),
    "partition.feature_skew": Key(
        "none",
        "how the examples of one client differ from those of another; it changes training,"
        " validation and test examples of clients, but not the global test set or the unseen"
        " domain",
        kind="feature_skew",
    ),
    "partition.capacity": Key(
        (),
        "the shares of the model's channels or layers that clients can train, above 0 and at most"
        " 1, for methods that train parts of it: one number for each client, or fewer, which"
        " equally many clients have, at random; empty: all clients can train the whole model",
    ),
    "task.name": Key(
        "classification", "what the model learns: the kind of the labels, the loss and the metrics"
    ),
    "model.name": Key("mlp", "the model that is trained"),
    "model.pretrained": Key(
        "", "a file or folder with the initial weights; empty: random initialization"
    ),
    "model.kinds": Key(
        (),
        "the nets of other clients than those with model.name, each with the settings that are its"
        " defaults; the features of all nets are pooled to the smallest width; empty: all clients"
        " have one net",
        kind="model",
    ),
    "model.shares": Key(
        (),
        "the shares of the clients with model.name and with each of model.kinds, who are chosen at"
        " random; empty: equal shares",
    ),
    "adapter.name": Key(
        "none",
        "what is trained of the model: none, all weights; frozen, those of some layers; lora,"
        " low-rank adapters",
    ),
    "embedding.name": Key(
        "stand_in", "the embeddings of examples and labels, for methods that use them"
    ),
    "method.name": Key("fedavg", "the federated method"),
    "attack.name": Key("none", "what attacking clients do"),
    "attack.share": Key(
        0.2,
        "the share of clients that attack in every round, rounded down, but at least one client",
        SHARE,
    ),
    "attack.clients": Key(
        (), "the numbers of the clients that attack, from 0; empty: attack.share says how many"
    ),
    "attack.per_round": Key(
        0,
        "how many clients of each round attack, drawn anew in each round; 0: the same clients"
        " attack whenever they take part",
        NOT_NEGATIVE,
    ),
    "attack.first": Key(1, "the first round in which clients attack", Within(1)),
    "attack.last": Key(
        0, "the last round in which clients attack; 0: the last one of the run", NOT_NEGATIVE
    ),
    "privacy.name": Key(
        "none",
        "the mechanism of differential privacy; set its noise, or the epsilon that the run has"
        " after its last round, and the other is computed",
    ),
    "aggregator.name": Key(
        "none", "how the server aggregates the updates of a round; none: as the method does"
    ),
    "aggregator.mixing": Key(
        "none",
        "of which of the updates the aggregator gets means: none, bucketing or nearest_neighbors",
        kind="mixing",
    ),
    "aggregator.momentum": Key(
        0.0,
        "the share of a client's earlier updates in what it sends for an aggregator",
        BELOW_ONE,
    ),
    "aggregator.excluded": Key(
        False, "whether rows of metrics count whom the aggregator leaves out, and who attacks"
    ),
    "compression.name": Key("none", "how uploads are compressed"),
    "downlink.name": Key("none", "how messages from the server to the clients are compressed"),
    "clock.name": Key(
        "none",
        "the law of the clients' speeds, with which a run measures its time in virtual seconds",
    ),
    "clock.availability": Key(
        "always", "when clients are available for training", kind="availability"
    ),
    "clock.over_selection": Key(
        1.0,
        "the factor by which more clients are drawn in a synchronous round than run.cohort, whose"
        " uploads alone are used: those that arrive first",
        Within(1),
    ),
    "clock.deadline": Key(
        0.0,
        "the virtual seconds after which a synchronous round ends without the late clients; 0: it"
        " waits for all",
        NOT_NEGATIVE,
    ),
    "clock.late": Key(
        "lost",
        "what becomes of uploads after the deadline: lost; partial, clients upload what they have"
        " trained by then",
        limit=OneOf(("lost", "partial")),
    ),
    "clock.concurrency": Key(
        0,
        "the number of clients that train at a time without waiting for each other; the server is"
        " updated after each run.cohort uploads, which is a round; 0: rounds are synchronous",
        NOT_NEGATIVE,
    ),
    "clock.max_staleness": Key(
        0,
        "the number of updates of the server during a client's training above which its upload is"
        " dropped; 0: no upload is",
        NOT_NEGATIVE,
    ),
    "clock.start_rate": Key(
        0.0,
        "the number of clients that begin to train per virtual second, at random, while fewer than"
        " clock.concurrency do; 0: one begins when another one ends",
        NOT_NEGATIVE,
    ),
    "clock.exponent": Key(
        0.5,
        "a in the weight (1 + staleness)^-a of an update in asynchronous runs of methods that do"
        " not define one themselves",
        NOT_NEGATIVE,
    ),
    "local.optimizer": Key("sgd", "the clients' optimizer", kind="optimizer"),
    "local.lr": Key(0.01, "the clients' learning rate", POSITIVE),
    "local.head_factor": Key(
        1.0, "by what the learning rate is multiplied for the model's last layer", POSITIVE
    ),
    "local.schedule": Key(
        "constant", "how the clients' learning rate changes from round to round", kind="schedule"
    ),
    "local.warmup": Key(
        0,
        "the number of rounds in which the clients' learning rate rises linearly before its"
        " schedule begins",
        NOT_NEGATIVE,
    ),
    "local.momentum": Key(0.0, "the momentum of sgd, nesterov and rmsprop", NOT_NEGATIVE),
    "local.weight_decay": Key(
        0.0, "the weight decay, added to the gradient; for adamw and lion decoupled", NOT_NEGATIVE
    ),
    "local.clip": Key(
        0.0, "the largest norm of a step's gradient, before weight decay; 0: no limit", NOT_NEGATIVE
    ),
    "local.batch_size": Key(32, "the number of examples of a step", POSITIVE),
    "local.epochs": Key(
        1, "the number of passes of a client over its examples in a round", POSITIVE
    ),
    "local.steps": Key(
        0,
        "the number of steps of a client in a round, over as many passes as they take; 0:"
        " local.epochs decides. Trainings for which a method sets its own passes keep them",
        NOT_NEGATIVE,
    ),
    "local.per_client": Key(
        "",
        "a CSV file with other epochs (or steps), lr and batch_size for some clients, by number or"
        " by size; empty: all clients train alike",
    ),
    "local.accumulate": Key(
        1,
        "the number of equal parts of a batch whose gradients are computed one after another, which"
        " takes less memory; the step is the same unless the model or the loss compares"
        " examples of a batch, as BatchNorm does",
        POSITIVE,
    ),
    "run.rounds": Key(
        50,
        "the number of rounds; for some methods of several stages, the number of FedAvg's rounds"
        " that need as many bytes as the run",
        POSITIVE,
    ),
    "run.cohort": Key(0, "clients that take part in a round; 0: all", NOT_NEGATIVE),
    "run.eval_every": Key(10, "the number of rounds between two evaluations", POSITIVE),
    "run.patience": Key(
        0,
        "ends the run after this many evaluations without a better accuracy on validation"
        " examples; 0: never",
        NOT_NEGATIVE,
    ),
    "run.target": Key(
        0.0,
        "ends the run when its accuracy in percent, or in a task without one its RMSE or loss,"
        " reaches this value; 0: never",
        NOT_NEGATIVE,
    ),
    "run.max_seconds": Key(
        0.0,
        "ends the run, and saves its state, when the command has compiled, trained and evaluated"
        " for this many seconds; --resume continues it; 0: never",
        NOT_NEGATIVE,
    ),
    "run.metrics": Key(
        (), "the metrics that are reported besides accuracy and loss", kind="metric"
    ),
    "run.seed": Key(0, "the random seed, unless --seeds is given", NOT_NEGATIVE),
    "run.start_from": Key(
        "", "the folder of a run from whose end this run starts; empty: no such run"
    ),
    "run.start_with": Key(
        "global",
        "what the run takes from run.start_from: global, its global model; personal, its clients'"
        " own models for clients that keep a model, and their mean for the server; state, its"
        " whole state, whose shapes must be those of this run",
        limit=OneOf(("global", "personal", "state")),
    ),
    "run.sampling": Key(
        "", "how the clients of a round are drawn; empty: as the method does", kind="sampling"
    ),
    "run.dropout": Key(
        0.0, "the probability that a client's uploads of a round are lost", BELOW_ONE
    ),
    "run.straggler": Key(
        0.0, "the probability that a client makes only some of its passes in a round", SHARE
    ),
    "run.server_schedule": Key(
        "constant",
        "how the method's setting server_lr changes from round to round",
        kind="schedule",
    ),
    "run.server_warmup": Key(
        0,
        "the number of rounds in which server_lr rises linearly before its schedule begins",
        NOT_NEGATIVE,
    ),
    "engine.strategy": Key(
        "auto",
        "how the clients of a round share a device",
        limit=OneOf(("auto", "vectorized", "chunked", "sequential")),
    ),
    "engine.chunk": Key(
        0,
        "the number of clients that a device trains at a time, if the strategy is auto or chunked;"
        " 0: as many as fit",
        NOT_NEGATIVE,
    ),
    "engine.state": Key(
        "auto",
        "where the state of the clients is kept",
        limit=OneOf(("auto", "replicated", "sharded", "host", "disk")),
    ),
    "engine.data": Key(
        "auto",
        "where the examples are kept",
        limit=OneOf(("auto", "replicated", "sharded", "stream")),
    ),
    "engine.fsdp": Key(
        1, "the number of devices that together hold one model and train one client", POSITIVE
    ),
    "engine.dtype": Key(
        "float32",
        "the type of the model's products; weights, sums and losses are float32",
        limit=OneOf(("float32", "bfloat16")),
    ),
    "engine.precision": Key(
        "default",
        "the precision of float32 products; default on a TPU: one bfloat16 pass",
        limit=OneOf(("default", "high", "highest")),
    ),
    "engine.convolution": Key(
        "auto",
        "how the convolutions of many clients are computed",
        limit=OneOf(("auto", "mapped", "grouped", "im2col", "by_shape")),
    ),
    "engine.seeds": Key(
        "auto",
        "whether all seeds of a run are trained in one computation",
        limit=OneOf(("auto", "vectorized", "sequential")),
    ),
}

_NAMES = [tuple(key.split(".")) for key in KEYS]
DEFAULTS: dict[str, dict[str, Any]] = {
    section: {name: KEYS[f"{of}.{name}"].default for of, name in _NAMES if of == section}
    for section, _ in _NAMES
}
PARTS: dict[str, str] = {  # the kinds of the functions that keys name; of run.metrics, several
    **{f"{section}.name": section for section, names in DEFAULTS.items() if "name" in names},
    **{key: each.kind for key, each in KEYS.items() if each.kind},
    "method.base": "method",
}


def naming(section: str) -> list[str]:
    """The keys of a section that name functions whose settings are further keys of it."""
    kinds = {name: PARTS.get(f"{section}.{name}") for name in DEFAULTS[section]}
    several = [name for name, default in DEFAULTS[section].items() if isinstance(default, tuple)]
    return [
        name
        for name, kind in kinds.items()
        if kind not in (None, "augmentation") and name not in several
    ]
