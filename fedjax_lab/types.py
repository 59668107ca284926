"""The nouns of the simulator. Shapes: B batch, K classes, C clients, M sampled clients, R rows."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array
PyTree = Any


class Weights(NamedTuple):
    """All that a model needs for a forward pass."""

    params: PyTree  # trained by gradient
    stats: PyTree  # running statistics of normalization layers; {} if there are none


class Output(NamedTuple):
    """What a forward pass gives."""

    logits: Array  # [B, K]
    features: Array  # [B, D], the input of the head
    stats: PyTree  # running statistics after it
    extra: PyTree = ()  # what a wrapper of the task adds, for a loss of its own


class Batch(NamedTuple):
    """A batch with its padding marked."""

    x: Array  # [B, ...] float32
    y: Array  # [B] int32
    mask: Array  # [B] float32, 0 where padded
    references: PyTree = ()  # [B, ...] what `Work.train` was asked to keep beside each example


class Task(NamedTuple):
    """The model that a method trains, as two pure functions."""

    init: Callable[[Array], Weights]
    apply: Callable[..., Output]  # (weights, x, key=None, mask=None); a key means training mode
    num_classes: int
    layers: tuple[str, ...]  # paths of all layers with weights, in the order of the forward pass
    batch_norms: tuple[str, ...]  # those of them that are of type BatchNorm
    dense: tuple[str, ...]  # and of type Dense; the last one is the head
    input_shape: tuple[int, ...]  # of one example
    noise: Callable[[Array, int], Array]  # (key, count) -> inputs of uniform noise [count, ...]
    apply_at: Callable[..., Output]  # (layer, weights, x, features=None, key=None, mask=None)
    # as `apply`, but the features are the input of the named layer. Given ones replace that input:
    # what precedes the layer is then not computed (once jitted), and the features are again those
    # of the head
    labels: Callable[[], Array] | None = None  # () -> embeddings of the labels' names [K, E]
    lowest: Array | float = 0.0  # inputs are from here, [] or [channels],
    highest: Array | float = 1.0  # to here


class Skew(NamedTuple):
    """What a client's own examples differ by (`Plan.feature_skew`); with a leading axis of several.

    Both follow from how the examples were dealt, so that new clients, which are numbered anew,
    keep theirs.
    """

    client: Array  # [] int32, its number among all clients when the examples were dealt
    seed: Array  # [] uint32, of its random numbers


class Client(NamedTuple):
    """One client; with a leading axis on each leaf a cohort [M] or the population [C]."""

    id: Array  # [] int32
    n: Array  # [] float32, number of training examples
    weight: Array  # [] share in the server's mean; sums to 1 over a cohort
    label_count: Array  # [K] float32
    private: PyTree  # what the client keeps between rounds
    num_clients: Array  # [] float32, C: the whole population, not the cohort
    mean_n: Array  # [] float32, n averaged over the whole population
    arrived: Any = None  # [] bool, whether the server got the upload: for `aggregate` only
    skew: Skew | None = None  # None: nobody's examples are changed
    attacks: Any = None  # [] bool, whether it attacks in this round; None: nobody does
    key: Any = None  # [] of the server's random numbers in this exchange, the same for a whole
    # cohort: for an `aggregate` that draws them (`Exchange.draws`) only


class Work(NamedTuple):
    """What a client can do with its own data. The runner hands it to `Exchange.local`."""

    train: Callable[..., Weights]
    # (weights, loss, *, only, epochs, steps, optimizer, references, stepping) -> weights:
    # `local.train`
    mean: Callable[..., PyTree]  # (fn: Batch -> tree, when=True) -> mean of fn over the examples;
    # with rows="validation" over the validation examples, which `Method.validation` asks for
    draw: Callable[[int], Batch]  # (size) -> one random batch, drawn without replacement
    steps: Array  # [] int32, how many `train` makes with its defaults
    optimizer: Any  # optax.GradientTransformation, the one that `train` takes by default
    frozen: PyTree = ()  # what the stage has sent to every client once: `View.frozen`
    upload_key: Any = None  # () -> the stream of what is drawn for the upload: for its transforms
    outputs: Any = None  # (fn: Batch -> arrays [B, ...]) -> (what fn gives for each example
    # [N, ...], mask [N]), where N is the size of the largest client; rows as in `mean`


class Stepping(NamedTuple):
    """Which examples a step of a training sees, and the gradient that it makes of them."""

    draw: Callable[[Array], Callable[[Array], Array]]
    # key of a pass -> (number of the step -> positions among the rows [L], -1: padding)
    gradient: Callable[..., tuple[tuple[Array, Any], PyTree]]
    # (objective, free, batch, key) -> ((objective's value, its other result), the gradient), as
    # `jax.value_and_grad` with has_aux; objective: (free, batch, key) -> (value, what `loss` gives)


class Exchange(NamedTuple):
    """The server speaks, the sampled clients work, the server listens. All three are pure.

    One by one, the server listens after each client, in the order of the sample, before it speaks
    to the next: `aggregate` then sees cohorts of one.

    An upload may be lost (config.run.dropout). `aggregate` then sees an empty entry in its place:
    an upload of zeros, from a client with a weight and an n of 0, and with an id that no client
    has, so that JAX drops what is scattered there. Sums and weighted means are thus right as they
    stand; what counts clients counts those that have `arrived`. Where all uploads are lost,
    `aggregate` has no effect.

    Every device carries out `send` and `aggregate`, which are cheap. Training that the server does
    on data of its own belongs in `alone`, which follows `aggregate`: what it computes from
    `split(rows)`, for a tree of arrays [B, ...] whose values `split` leaves unchanged, is divided
    among the devices by row.

    Transforms of uploads need `updates`, unless the message and the upload are models.
    """

    send: Callable[[PyTree, Array], PyTree]  # (server, id) -> message: all that goes down the wire
    local: Callable[[PyTree, Client, Work], tuple[PyTree, PyTree]]  # -> (upload, private)
    aggregate: Callable[[PyTree, PyTree, Client], PyTree]  # (server, uploads [M], cohort [M])
    one_by_one: bool = False
    alone: Callable[[PyTree, Callable[[PyTree], PyTree]], PyTree] | None = None
    # (server, split) -> server
    updates: Callable[[PyTree, Array, PyTree], PyTree] | None = None
    # (message, id, upload) -> what each leaf of the upload is an update of: see `wire`
    alike: bool = True  # all clients update the same thing, so that one update can stand for all
    private_sum: bool = False  # `aggregate` releases a noisy sum, also where all uploads are lost
    draws: bool = False  # `aggregate` draws random numbers: its cohort has a `key`


class State(NamedTuple):
    """All that lives from one round to the next."""

    server: PyTree
    private: PyTree  # leading axis [C]


class Method(NamedTuple):
    """A federated method. `send`, `local` and `predict` are written for one client.

    `newcomer` gives the (message, private) of an unseen client; None where the paper defines none.
    `scored` gives the message that clients are scored with, where it is not the one of the last
    exchange. `tune`, where a method has it, is what a client then does with its own data first.
    `join`, where a method has it, is what a new client does with its own data in the place of
    `tune`; with it, a method without a `newcomer` has a model for new clients too.
    `record` gives what each row of metrics keeps of the state, as `recorded`, for a figure.
    `metrics` are what an evaluation of this method measures besides those that a config names.
    `pooled`: training sees one client that holds everybody's examples (a centralized bound).
    `validation`: `Work` also has the client's validation rows (config.partition.validation), in
    `local` and in `tune`.
    """

    init: Callable[[Array, int], State] | None  # (key, C); None in a stage that has a `start`
    round: tuple[Exchange, ...]  # one for nearly every method
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
    pooled: bool = False
    join: Callable[[PyTree, Client, Work], tuple[PyTree, PyTree]] | None = None
    # (server, client, work) -> (message, private)
    metrics: tuple[Any, ...] = ()  # `metrics.Metric`s
    guarantee: Any = None  # `guarantee.Guarantee`, what the method promises of privacy
    validation: bool = False
    empty_places: bool = False  # those of a sample with a share of 0, whose clients take no part


class View(NamedTuple):
    """What the clients of a stage have to work with, where it is not the run's examples alone.

    `frozen` chooses the part of the server's state that is sent to every client once, when the
    stage starts, and does not change in it: `Work.frozen`. `transform` makes of it and of the
    examples what the method gets in their place. That is computed once for all examples, but in
    every batch where training images are augmented and `before_augmentation` does not hold.

    `embedded`: the examples are embeddings [B, E] (config.embedding) of the training rows; nothing
    is scored, so the method need not predict.
    """

    frozen: Callable[[PyTree], PyTree] | None = None  # server -> part of it
    transform: Callable[[PyTree, Array], Array] | None = None  # (frozen, x [B, ...]) -> [B, ...]
    before_augmentation: bool = False  # of the image as it was before augmentation
    embedded: bool = False
    batch_size: int | None = None  # in place of the run's


class Stage(NamedTuple):
    """A part of a run, with a method of its own. A plain method is one stage.

    Before a stage `prepare` looks at the last one's final state on the host, in NumPy and once for
    each seed, and finds facts (arrays by name). `start` then makes the first state of this stage
    from that state and the facts, as a pure function that is jitted; without it the method begins
    anew. Before the first stage there is no state: None. To resume, `start` also runs on untrained
    states, for their shapes alone.

    With a `view` the method gets something else in place of the examples. A `reliable` stage needs
    the upload of every client: no upload is lost in it (config.run.dropout).
    """

    name: str
    method: Method
    rounds: int
    prepare: Callable[[Array, Client, State | None], dict[str, Array]] | None = None
    # (key, population [C], last state) -> facts
    start: Callable[[Array, int, State | None, dict[str, Array]], State] | None = None
    # (key, C, last state, facts) -> State
    view: View | None = None
    reliable: bool = False


Stages = Callable[[int], tuple[Stage, ...]]  # config.run.rounds -> the stages of a method


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rows:
    """Which rows of the pool each client holds, in one list: its memory is their number.

    `rows[ids]` gives those of clients `ids` [M] padded with -1 to the longest client of all
    [M, longest], and `np.asarray(rows)` those of everybody, on the host. With a leading axis on
    each array one for each seed.
    """

    start: Array  # [C] int32, where those of a client begin in the list; ascending
    count: Array  # [C] int32, how many a client holds
    list: Array  # [E] int32; -1 where it is padded
    longest: int = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, int]:
        """Of the padded rows of everybody."""
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
        """`rows[ids]` of arrays in NumPy."""
        rows, place = np.asarray(self.list), np.arange(self.longest)
        start, count = (np.asarray(a)[ids][:, None] for a in (self.start, self.count))
        held = rows[np.minimum(start + place, len(rows) - 1)]
        return np.where(place < count, held, -1).astype(np.int32, copy=False)


class Federation(NamedTuple):
    """One flat pool of examples, and the rows of it that each client holds.

    A set of rows that this federation does not have is None. New clients are those that a run never
    trains on: `new_train` is for `Method.tune` and `join` alone, before they are scored.
    """

    x: Array  # [R, D]: flat examples in the type that the dataset has, uint8 for images
    y: Array  # [R] int32
    domain: Array  # [R] int32
    center: Array  # the model sees (x - center) * scale
    scale: Array
    train: Rows
    validation: Rows | None
    test: Rows | None
    global_test: Array | None  # [G] the global test set
    unseen: Array | None  # [U] the domain that no client holds
    new_train: Rows | None = None  # of each new client [N]
    new_test: Rows | None = None  # the rows that it is scored on
    frozen: PyTree = ()  # what `View.frozen` has chosen; `Plan.view` and `Work` take it
    skews: Skew | None = None  # of the clients, then of the new ones [C + N]: `Client.skew`
    skew: Skew | None = None  # of the client whose own examples are fetched; None: as they are


POOL = ("x", "y", "domain")  # the fields of a federation with an entry for each example
POPULATION_ROWS = ("train", "validation", "test")  # those with rows of each client [C]
NEW_ROWS = ("new_train", "new_test")  # those with rows of each new client [N]
CLIENT_ROWS = (*POPULATION_ROWS, *NEW_ROWS)
ROWS = (*CLIENT_ROWS, "global_test", "unseen")  # and all that have rows


class Plan(NamedTuple):
    """The sizes of a run: static Python numbers."""

    rounds: int
    cohort: int
    batch_size: int
    epochs: int
    optimizer: Any  # optax.GradientTransformation, used where a method names none
    clip: float | Array = 0.0  # largest norm of the gradient of a client's step; 0: none
    dropout: float = 0.0  # probability that a client's uploads of a round are lost
    straggler: float = 0.0  # probability that a client makes only part of its passes in a round
    attackers: float = 0.0  # share of the clients that attack: `Client.attacks`
    num_domains: int = 1
    num_clients: int | None = None  # of a population that is padded; None: it is not
    num_new: int | None = None  # of new clients that are padded; None: they are not
    example_shape: tuple[int, ...] | None = None  # of one, flat in the pool; None: it is a vector
    equal_steps: bool = False  # every client has as many batches as the longest: no masking
    eval_batch: int = 100
    metrics: tuple[Any, ...] = ()  # `metrics.Metric`s that an evaluation has besides the loss
    augment: Callable[[Array, Array], Array] | None = None  # (key, raw x) -> raw x, in training
    view: Callable[[PyTree, Array], Array] | None = None  # a stage's `View.transform`
    feature_skew: Callable[[Array, Array, Array], Array] | None = None
    # (key, raw x of one example, number of its client) -> raw x
