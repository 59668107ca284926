"""The data types of the simulator.

Shapes: B examples of a batch, K classes, C clients, M sampled clients, R rows of the pool. Shapes
with K are those of a classification; in other tasks an example has the outputs [...] and the label
[...] of `Objective`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab.errors import BadInput

Array = jax.Array
PyTree = Any


class Weights(NamedTuple):
    """The arrays that a model needs for a forward pass."""

    params: PyTree  # trained by gradient
    stats: PyTree  # running statistics of normalization layers; {} if there are none


class Output(NamedTuple):
    """The result of a forward pass."""

    logits: Array  # [B, K]; [B, *outputs] of the `Objective`
    features: Array  # [B, D], the input of the head; [B, T, D] of each token, and so on
    stats: PyTree  # running statistics after the pass
    extra: PyTree = ()  # additional outputs of a wrapped task, for the method's loss


class Batch(NamedTuple):
    """A batch of examples, with a mask for padding."""

    x: Array  # [B, ...] float32
    y: Array  # [B] int32; [B, *label] of the `Objective`
    mask: Array  # [B] float32, 0 where padded
    references: PyTree = ()  # [B, ...] results of the argument `references` of `Work.train`


class Objective(NamedTuple):
    """What a model learns: how its outputs are compared with the labels of its examples.

    An example has one label that counts, or several, such as its tokens or pixels. Losses are sums
    over the labels of an example, and means over all labels of a batch.
    """

    name: str  # as in config.task.name
    outputs: tuple[int, ...]  # shape of the outputs of an example: (K,), or (T, K) for T tokens
    label: jax.ShapeDtypeStruct  # shape and type of the label of an example
    losses: Callable[[Array, Array], Array]
    # (logits [B, *outputs], y [B, *label]) -> sum of the losses of each example [B]
    correct: Callable[[Array, Array], Array] | None = None
    # (logits, y) -> number of labels of each example that are predicted [B]; None: no accuracy
    num_labels: Callable[[Array], Array] | None = None
    # y -> number of labels of each example that count [B]; None: one
    predict: Callable[[Array], Array] | None = None  # logits -> predictions; None: the logits
    metrics: tuple[Any, ...] = ()  # `metrics.Metric`s that every evaluation measures
    optional: tuple[str, ...] = ()  # names of other metrics that can be measured
    has_classes: bool = False  # an example has one label, which is one of K classes
    losses_at: Callable[[Callable[[Array], Array], Array, Array], Array] | None = None
    # (head: features [B, T', D] -> logits, features [B, T, D], y) -> `losses` of the logits, of
    # which a part is held at a time; None: `losses` gets all

    @property
    def num_classes(self) -> int:
        """K, or 0 if examples do not have one class each."""
        return self.outputs[-1] if self.has_classes else 0


class Adapters(NamedTuple):
    """The low-rank factors of a model whose other weights are frozen: see `models.adapters`."""

    scale: float  # s in y = x W + s (x A) B
    changed: Callable[[dict[str, Array]], "Task"]
    # {path of a kernel: what is added to it} -> the task with these frozen weights
    published: dict[str, str]  # the names of layers on the hub, {} for the number of a block
    given: bool = False  # whether the first factors are those of a file or of another run


class Task(NamedTuple):
    """The model that a method trains, as pure functions, and what it learns."""

    init: Callable[[Array], Weights]
    apply: Callable[..., Output]  # (weights, x, key=None, mask=None); with a key in training mode
    objective: Objective
    layers: tuple[str, ...]  # paths of all layers with weights, in the order of the forward pass
    batch_norms: tuple[str, ...]  # paths of the BatchNorm layers
    dense: tuple[str, ...]  # paths of the Dense layers; the last one is the head
    input_shape: tuple[int, ...]  # of one example
    apply_at: Callable[..., Output]  # (layer, weights, x, features=None, key=None, mask=None)
    # like `apply`, but `Output.features` is the input of the named layer. If `features` are passed,
    # they replace that input: the layers before it are then not computed (once jitted), and
    # `Output.features` is the input of the head again
    embeddings: Callable[[], Any] | None = None  # () -> `Embeddings` of examples and class names
    bounds: tuple[Array | float, Array | float] = (0.0, 1.0)  # of inputs, each [] or [channels]
    adapters: Adapters | None = None  # None: the model has no low-rank factors
    levels: tuple[float, ...] = ()  # config.partition.capacity: of the clients, in these shares
    kinds: tuple["Task", ...] = ()  # the models of all kinds of clients: trait `kind`; (): one

    @property
    def shared(self) -> "Task":
        """The model that clients of all kinds can send each other: that of the first kind."""
        return self.kinds[0] if self.kinds else self

    @property
    def head(self) -> str:
        """The path of the last layer. Raises BadInput if it is frozen."""
        if "head" not in self.dense:
            raise BadInput(
                "the method treats the model's head in another way than the other layers, but it is"
                " frozen; add it to config.adapter.layers, or choose another method"
            )
        return "head"

    @property
    def num_classes(self) -> int:
        """K. Raises BadInput if the examples are not divided into classes."""
        if not self.objective.has_classes:
            raise needs_classes(f"task {self.objective.name} has none")
        return self.objective.outputs[-1]

    def loss(self, logits: Array, batch: Batch) -> Array:
        """The mean loss [] over the labels of a batch that count; logits [B, *outputs]."""
        return self.mean(self.objective.losses(logits, batch.y), batch)

    def mean(self, losses: Array, batch: Batch) -> Array:
        """The losses of examples [B] as their mean [] over the labels that count."""
        objective, mask = self.objective, batch.mask
        labels = mask if objective.num_labels is None else mask * objective.num_labels(batch.y)
        return jnp.sum(losses * mask) / jnp.maximum(jnp.sum(labels), 1.0)


class NeedsClasses(BadInput):
    """The formulas of a method or transform need one class per example."""


def needs_classes(reason: str) -> NeedsClasses:
    """The error if there are no classes; reason: what there is instead."""
    return NeedsClasses(
        f"its formulas need one class per example, and {reason}; choose another, such as method"
        " fedavg, or --config.task.name=classification"
    )


@jax.tree_util.register_static
class NoCounts:
    """Replaces the numbers of examples of each class where examples have no class.

    Any use raises BadInput.
    """

    def _refuse(self, *_, **__):
        raise needs_classes("these have none")

    __array__ = __jax_array__ = __len__ = __iter__ = __getitem__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __truediv__ = __rtruediv__ = __pow__ = __gt__ = __ge__ = __lt__ = __le__ = __neg__ = _refuse

    def __eq__(self, other):
        return isinstance(other, NoCounts)

    def __hash__(self):
        return hash(NoCounts)


class Client(NamedTuple):
    """One client. With a leading axis on each leaf: a cohort [M] or the population [C].

    `traits` has an entry for each trait in which the clients of the run may differ, so that
    `client.traits.get("capacity")` is None in a run without it. `experiment.traits` makes them:

    `capacity`: [] float32, the share of the model's channels or layers that the client can train; 0
    for a client that has no limit.
    `kind`: `Kind`, if clients have unlike models.
    `skew`: `Skew`, if the run has a feature skew.
    `pace`: `clock.Pace`, if the run has a clock.
    `settings`: `LocalSettings`, if some clients train with other numbers than the plan's.
    """

    id: Array  # [] int32
    n: Array  # [] float32, number of training examples
    weight: Array  # [] weight in the server's mean; sums to 1 over a cohort
    label_count: Any  # [K] float32, number of training examples of each class; or `NoCounts`
    private: PyTree  # state that the client keeps between rounds
    num_clients: Array  # [] float32, C: the size of the whole population, not of the cohort
    mean_n: Array  # [] float32, n averaged over the whole population
    traits: dict[str, Any] = {}  # what distinguishes this run's clients: see above
    arrived: Any = None  # [] bool, whether the server received the upload: for `aggregate` only
    attacks: Any = None  # [] bool, whether the client attacks in this round; None: no client does
    key: Any = None  # [] key of the server's random numbers in this exchange, the same for the
    # whole cohort: for `aggregate` only
    staleness: Any = None  # [] float32, number of the server's updates since the message from which
    # the client has trained, 0 in synchronous rounds: for `aggregate` only
    public: Any = None  # as `Work.public`: for `aggregate` only


class Work(NamedTuple):
    """The operations of a client on its own data. The simulator passes it to `Exchange.local`."""

    train: Callable[..., Weights]
    # (weights, loss, *, only, epochs, steps, optimizer, references, stepping, public) ->
    # weights: `client_work.train`
    mean: Callable[..., PyTree]  # (fn: Batch -> tree, when=True) -> mean of fn over the examples;
    # with rows="validation" over the validation examples, if `Method.validation` is true
    draw: Callable[[int], Batch]  # (size) -> one random batch, drawn without replacement
    steps: Array  # [] int32, number of steps of `train` with its defaults
    optimizer: Any  # optax.GradientTransformation, the default of `train`
    frozen: PyTree = ()  # state that the stage has sent to every client once: `Stage.frozen`
    upload_key: Any = None  # () -> key of the random numbers for the upload: for its transforms
    outputs: Any = None  # (fn: Batch -> arrays [B, ...]) -> (outputs of fn for each example
    # [N, ...], mask [N]), where N is the size of the largest client; `rows` as in `mean`
    public: Any = None  # `local.Public`, the examples that the server and all clients have
    switch: Any = None  # (index, functions () -> tree) -> the tree of one of them, which may train


class Exchange(NamedTuple):
    """One exchange between the server and the sampled clients, as three pure functions.

    `send` makes the server's message to a client, `local` is the client's work, and `aggregate`
    updates the server with the uploads. Every device executes `send` and `aggregate`, which are
    cheap.

    Uploads may be lost (config.run.dropout). `aggregate` then sees an empty entry in their place:
    an upload of zeros from a client whose weight and n are 0 and whose id is out of range, so that
    JAX drops what is scattered to it. Sums and weighted means are therefore right without changes;
    code that counts clients must count those with `arrived`. If all uploads are lost, `aggregate`
    has no effect.

    Transforms of uploads need `updates`, unless the message and the upload are models.
    """

    send: Callable[[PyTree, Array], PyTree]  # (server, id) -> message, the whole download
    local: Callable[[PyTree, Client, Work], tuple[PyTree, PyTree]]
    # (message, client, work) -> (upload, private)
    aggregate: Callable[[PyTree, PyTree, Client], PyTree]
    # (server, uploads [M], cohort [M]) -> server
    updates: Callable[[PyTree, Array, PyTree], PyTree] | None = None
    # (message, id, upload) -> what each leaf of the upload is an update of: see `wire`
    alike: bool = True  # all clients update the same arrays, so that one update can replace others


class State(NamedTuple):
    """The state that is kept from one round to the next."""

    server: PyTree
    private: PyTree  # state of each client, leading axis [C]


class Extra(NamedTuple):
    """What few methods need, and what transforms add: `Method.extra`.

    `one_by_one`: clients take turns in the order of the sample. `aggregate` is called after each
    client, with a cohort of one, before `send` is called for the next.
    `acknowledged`: clients learn which uploads are used; they do so after `local` has returned.
    `pooled`: training sees one client that holds the examples of all clients (centralized
    training).
    `metrics` are evaluated in addition to those that a config names.
    `model` returns the weights with which a client predicts, if they are not simply in its message
    or its private state.
    """

    one_by_one: bool = False
    pooled: bool = False
    metrics: tuple[Any, ...] = ()  # `metrics.Metric`s
    guarantee: Any = None  # `guarantee.Guarantee`, the privacy guarantee of the method
    private_sum: bool = False  # `aggregate` releases a noisy sum, even if all uploads are lost
    empty_places: bool = False  # samples may have entries with share 0, whose clients do not train
    weighs_staleness: bool = False  # `aggregate` uses `Client.staleness`
    acknowledged: bool = False  # a client whose upload is not used keeps its private state
    model: Callable[[PyTree, PyTree], Weights] | None = None  # (message, private) -> weights
    absent: Callable[[Any], Any] | None = None
    # `Federation` -> bytes of an upload and of a message that each client does not need: [C] for
    # both, or [C, 2]


class Method(NamedTuple):
    """A federated method. `send`, `local` and `predict` are written for one client.

    `newcomer` returns the (message, private) of a new client; None if the paper defines none.
    `scored` returns the message with which clients are scored; None: that of the last exchange.
    `tune` is what a client does with its own data before it is scored; None: nothing.
    `join` replaces `tune` for new clients. With it, a method without a `newcomer` also has a model
    for new clients.
    `record` returns arrays of the state that each row of metrics keeps as `recorded`, for figures.
    `validation`: `Work` also has the client's validation rows (config.partition.validation), in
    `local` and in `tune`.
    """

    init: Callable[[Array, int], State] | None  # (key, C); None in a stage with a `start`
    round: tuple[Exchange, ...]  # the exchanges of a round; nearly every method has one
    predict: (
        Callable[[PyTree, Client, Array], Array] | None
    )  # (message, client, x) -> logits [B, K]
    newcomer: Callable[[State], tuple[PyTree, PyTree]] | None
    sample: Callable[[Array, PyTree, Client, int], tuple[Array, Array]]
    # (key, server, population [C], M) -> (ids [M], shares [M])
    tune: Callable[[PyTree, Client, Work], tuple[PyTree, PyTree]] | None = None
    # (message, client, work) -> (message, private)
    scored: Callable[[PyTree, Array], PyTree] | None = None  # (server, id) -> message
    record: Callable[[State], dict[str, Array]] | None = None  # state -> arrays by name
    join: Callable[[PyTree, Client, Work], tuple[PyTree, PyTree]] | None = None
    # (server, client, work) -> (message, private)
    validation: bool = False
    extra: Extra = Extra()

    @property
    def sends_scored(self) -> Callable[[PyTree, Array], PyTree]:
        """(server, id) -> the message with which a client is scored."""
        return self.scored or self.round[-1].send

    def having(self, **fields) -> "Method":
        """The method with other fields of `extra`."""
        return self._replace(extra=self.extra._replace(**fields))


def same_plan(plan: "Plan") -> "Plan":
    """Returns the plan of a run, for a stage that trains with the same numbers."""
    return plan


class Stage(NamedTuple):
    """A part of a run with its own method. A plain method has one stage.

    Before a stage, `prepare` reads the final state of the previous stage on the host, as NumPy
    arrays and once for each seed, and returns facts (arrays by name). Then `start` makes the first
    state of this stage from that state and the facts; it is a pure function and is jitted. Without
    `start` the stage begins with `Method.init`. Before the first stage the previous state is None.
    When a run is resumed, `start` also runs on untrained states to determine shapes.

    `frozen` selects a part of the server's state that is sent to every client once, when the stage
    starts, and stays constant during the stage: `Work.frozen`. `view` computes, from this part and
    the examples, the inputs that the method gets instead of the examples. It is evaluated once for
    all examples, or in every batch if training images are augmented. With `embeddings` the method
    gets these, and nothing is scored, so it need not predict. `plan` changes with which numbers the
    clients of this stage train, such as their batch size or augmentation. A `reliable` stage needs
    the upload of every client, so config.run.dropout, clock.over_selection and clock.deadline do
    not apply to it.
    """

    name: str
    method: Method
    rounds: int
    prepare: Callable[[Array, Client, State | None], dict[str, Array]] | None = None
    # (key, population [C], last state) -> facts
    start: Callable[[Array, int, State | None, dict[str, Array]], State] | None = None
    # (key, C, last state, facts) -> State
    frozen: Callable[[PyTree], PyTree] | None = None  # server -> part of it
    view: Callable[[PyTree, Array], Array] | None = None  # (frozen, x [B, ...]) -> [B, ...]
    embeddings: Callable[[], Any] | None = None  # () -> `Embeddings`, such as `Task.embeddings`
    plan: Callable[["Plan"], "Plan"] = same_plan  # the run's plan -> that of this stage
    reliable: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether the stage starts from `Method.init` and trains as the run's config says."""
        others = self.prepare or self.start or self.frozen or self.view or self.embeddings
        return not others and self.plan is same_plan


Stages = Callable[[int], tuple[Stage, ...]]  # config.run.rounds -> the stages of a method


# The types of the simulator. A method does not use them.


class Skew(NamedTuple):
    """The inputs of a client's feature skew (`Plan.feature_skew`); several have a leading axis.

    Both fields are fixed when the examples are divided among the clients, so that new clients,
    whose ids change, keep their skew.
    """

    client: Array  # [] int32, the client's number among all clients when the examples were divided
    seed: Array  # [] uint32, of the client's random numbers


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Kind:
    """Which model a client has; several have a leading axis."""

    number: Array  # [] int32, of its model in `Task.kinds`
    most: tuple[int, ...] = field(metadata={"static": True})  # clients with each model, at most


class LocalSettings(NamedTuple):
    """The numbers with which a client trains instead of the plan's; several have a leading axis.

    None: that of the plan.
    """

    work: Any = None  # [] int32, as `Plan.work`
    rate: Any = None  # [] float32, by which the plan's learning rate is multiplied
    batch_size: Any = None  # [] int32, the examples of a step: `Plan.batch_size` of them at most


class Stepping(NamedTuple):
    """How a training draws the examples of each step and computes their gradient."""

    draw: Callable[[Array], Callable[[Array], Array]]
    # key of a pass -> (number of the step -> positions among the rows [L], -1: padding)
    gradient: Callable[..., tuple[tuple[Array, Any], PyTree]]
    # (objective, free, batch, key) -> ((value, auxiliary output), gradient), as
    # `jax.value_and_grad` with has_aux; objective: (free, batch, key) -> (value, what `loss` gives)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rows:
    """The rows of the pool that each client holds, stored without padding in one list.

    `rows[ids]` returns the rows of clients `ids` [M], padded with -1 to the length of the longest
    client [M, longest]; `np.asarray(rows)` returns those of all clients, on the host. A leading
    axis on each array is the axis of seeds.
    """

    start: Array  # [C] int32, where the rows of each client begin in the list; ascending
    count: Array  # [C] int32, number of rows of each client
    list: Array  # [E] int32; -1 where it is padded
    longest: int = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the padded rows of all clients, (C, longest)."""
        return len(self), self.longest

    def __len__(self) -> int:
        return self.start.shape[-1]

    def __getitem__(self, ids) -> Array:
        place = jnp.arange(self.longest, dtype=jnp.int32)
        start, count = (jnp.asarray(a)[ids][..., None] for a in (self.start, self.count))
        return jnp.where(place < count, jnp.asarray(self.list)[start + place], -1)

    def __iter__(self):
        return iter(np.asarray(self))

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return self.on_host(np.arange(len(self))).astype(dtype or np.int32, copy=False)

    def on_host(self, ids: np.ndarray) -> np.ndarray:
        """`rows[ids]` for arrays in NumPy."""
        rows, place = np.asarray(self.list), np.arange(self.longest)
        start, count = (np.asarray(a)[ids][:, None] for a in (self.start, self.count))
        held = rows[np.minimum(start + place, len(rows) - 1)]
        return np.where(place < count, held, -1).astype(np.int32, copy=False)


class Federation(NamedTuple):
    """One flat pool of examples, and the rows of it that each client holds.

    A set of rows that this federation does not have is None. New clients are clients that a run
    never trains on: their rows `new_train` are used only by `Method.tune` and `join`, before they
    are scored.
    """

    x: Array  # [R, D]: flat examples in the dataset's type, uint8 for images
    y: Array  # [R, *label] of the `Objective`: for classes [R] int32
    domain: Array  # [R] int32
    center: Array  # the input of the model is (x - center) * scale
    scale: Array
    train: Rows
    validation: Rows | None
    test: Rows | None
    global_test: Array | None  # [G] the global test set
    unseen: Array | None  # [U] the domain that no client holds
    new_train: Rows | None = None  # training rows of each new client [N]
    new_test: Rows | None = None  # test rows of each new client [N]
    frozen: PyTree = ()  # the result of `Stage.frozen`, used by `Plan.view` and `Work`
    traits: dict[str, Any] = {}  # of the clients, then of the new clients [C + N]: `Client.traits`;
    # in the federation of one client (`client_work.client_federation`) its own
    public: tuple[Array, Array] | None = None  # (x [P, D], y [P, *label]), examples that no client
    # holds, and that the server and all clients have: a copy on each device, beside the pool


POOL = ("x", "y", "domain")  # the fields of a federation with an entry for each example
POPULATION_ROWS = ("train", "validation", "test")  # the fields with rows of each client [C]
NEW_ROWS = ("new_train", "new_test")  # the fields with rows of each new client [N]
CLIENT_ROWS = (*POPULATION_ROWS, *NEW_ROWS)
ROWS = (*CLIENT_ROWS, "global_test", "unseen")  # all fields with rows


class Turn(NamedTuple):
    """Who takes part in a round, and what becomes of each of them; arrays [M].

    Lost uploads, stragglers, attacks and the clock are functions from a turn to a turn.
    """

    clients: Client  # with their weights in the server's mean
    keys: Array  # the clients' random streams in this round
    drawn: Array  # bool, false for an empty place of the cohort
    staleness: Array  # float32, `Client.staleness`
    work: Array | None  # how much of `Plan.work` each client does; None: all of it
    arrived: Array | None  # bool, whether the server uses the upload; None: it uses all
    seconds: Array | float  # [] of the clock: at the beginning of the round, at last at its end


class Failures(NamedTuple):
    """What can happen to the clients of a round: see `simulation.failures`."""

    dropout: float = 0.0  # probability that a client's uploads of a round are lost
    straggler: float = 0.0  # probability that a client makes only some of its passes in a round
    attackers: Any = 0.0  # share of the clients that attack, or `failures.Attackers`
    clock: Any = None  # `clock.Clock` of synchronous rounds; None: time is not simulated


class Plan(NamedTuple):
    """The sizes and functions that define how a run trains: static Python values."""

    rounds: int
    cohort: int
    batch_size: int
    epochs: int
    optimizer: Any  # optax.GradientTransformation, used unless a method passes its own
    objective: Objective  # of the run's task: how models are scored
    steps: int = 0  # of a client in a round, over shuffled passes; 0: `epochs` passes
    accumulate: int = 1  # parts of a batch whose gradients are computed one after another
    clip: float | Array = 0.0  # largest norm of the gradient of a client's step; 0: no limit
    failures: Failures = Failures()
    num_domains: int = 1
    num_clients: int = 0  # without padding, if the population is padded; else 0
    num_new: int = 0  # without padding, if the new clients are padded; else 0
    example_shape: tuple[int, ...] = ()  # shape of an example; (): it is a vector
    equal_steps: bool = False  # all clients have the same number of batches: no masking
    eval_batch: int = 100
    metrics: tuple[Any, ...] = ()  # `metrics.Metric`s of an evaluation besides the loss
    augment: Callable[[Array, Array], Array] | None = None  # (key, raw x) -> raw x, in training
    view: Callable[[PyTree, Array], Array] | None = None  # a stage's `view`
    feature_skew: Callable[[Array, Array, Array], Array] | None = None
    # (key, raw x of one example, number of its client) -> raw x
    optimizer_of: Callable[[Array], Any] | None = (
        None  # `LocalSettings.rate` -> optimizer; None: `optimizer`
    )

    @property
    def work(self) -> int:
        """The work of a client in a round, in steps if their number is fixed, else in passes."""
        return self.steps or self.epochs
