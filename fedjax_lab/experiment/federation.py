"""Divides a dataset among clients: federations, which record the examples of each client."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedjax_lab import defaults, ranges
from fedjax_lab.data import leaks
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.lazy import LazyArray
from fedjax_lab.data.normalize import Scale, in_float32, scale_of
from fedjax_lab.data.partitions import dealing, partitioning
from fedjax_lab.data.precision import check_labels
from fedjax_lab.errors import BadInput, nearest
from fedjax_lab.experiment.traits import Dealt, Maker
from fedjax_lab.types import CLIENT_ROWS, Federation, Rows


@defaults.restored()
def make_federations(
    dataset: Dataset,
    deal: Callable[..., partitioning.Parts],
    seeds: Sequence[int],
    *,
    num_clients: int,
    name: str = "",
    embed: Callable[[], np.ndarray] | None = None,
    validation: float = 0.0,
    scale: Scale | None = None,
    unseen: str = "",
    shots: int = 0,
    shots_per: str = "client",
    new_clients: float = 0.0,
    public: float = 0.0,
    traits: Mapping[str, Maker] = MappingProxyType({}),
) -> list[Federation]:
    """Makes one federation per seed over one pool of examples, as NumPy arrays of equal shapes.

    deal: a partition of either form; see data/dealing.py.
    num_clients: the number of clients; 0 if the partition chooses it, equal for all seeds.
    name: the name of the partition in messages; "": the name of the function.
    embed: () -> the embeddings of all examples [R, E]; None: there are none.
    validation: the fraction of each client's training examples that is held out.
    scale: how examples become inputs of the model; None: as with data.normalize="unit".
    unseen: a domain whose examples no client holds, except for the shots; "": none.
    shots: the number of examples of the unseen domain that each client gets: in all, or with
        shots_per="class" of each class. They are the same for all seeds.
    new_clients: the share of the clients that are never trained on. They are chosen at random after
        all examples are divided, so that the other clients have the same examples as without new
        clients. The remaining clients are renumbered.
    public: the share of the training examples that no client gets, and that become public; they
        are the same for all seeds.
    traits: the makers of what distinguishes the clients, by name; see experiment/traits.py.
    """
    for key, share in {"validation": validation, "public": public}.items():
        ranges.BELOW_ONE.check(f"partition.{key}", share)
    in_unseen = is_of_domain(dataset, unseen)
    unseen_rows = np.flatnonzero(in_unseen)
    if shots and not len(unseen_rows):
        raise BadInput(
            f"config.data.shots={shots} needs an unseen domain with examples; set"
            " config.data.unseen"
        )
    train, public_rows = _without_public(np.flatnonzero(~in_unseen & ~dataset.test), public)
    test = np.flatnonzero(~in_unseen & dataset.test)
    rngs = [np.random.default_rng([seed, 0]) for seed in seeds]  # used only by the partition
    examples = _examples(dataset, train, embed)
    dealt = _deal(deal, examples, num_clients, rngs, name or getattr(deal, "__name__", ""))
    by_seed = zip(dealt, rngs, strict=True)
    tests = [_deal_tests(dataset, train, test, *of_seed, deal) for of_seed in by_seed]
    shot_rows = _deal_shots(dataset, unseen_rows, len(dealt[0]), shots, shots_per)
    hold_out = _holder(dataset, train, validation)
    rows_of_seeds = [
        _deal_rows(train, test, shot_rows, *of_seed, hold_out, new_clients)
        for of_seed in zip(dealt, tests, rngs, seeds, strict=True)
    ]
    parts, orders = zip(*rows_of_seeds, strict=True)
    scale = scale_of(dataset.x, "unit") if scale is None else scale
    pool = _make_pool(dataset, scale, test, np.setdiff1d(unseen_rows, shot_rows), public_rows)
    rows = zip(*(make_rows(of_seeds) for of_seeds in zip(*parts, strict=True)), strict=True)
    federations = [pool._replace(**dict(zip(CLIENT_ROWS, of, strict=True))) for of in rows]
    return [
        _with_traits(*of_seed, traits) for of_seed in zip(federations, orders, seeds, strict=True)
    ]


def _with_traits(federation, order, seed, makers):
    """The federation with the traits of its clients."""
    held = (federation.train, federation.new_train)
    sizes = np.concatenate([rows.count for rows in held if rows is not None])
    clients = Dealt(order, sizes, seed)
    return federation._replace(traits={name: make(clients) for name, make in makers.items()})


def _without_public(train, share):
    """The training rows that clients may get, and the public ones, in ascending order."""
    if not share:
        return train, train[:0]
    count = max(1, round(share * len(train)))
    is_public = np.isin(
        np.arange(len(train)), np.random.default_rng(0).permutation(len(train))[:count]
    )
    return train[~is_public], train[is_public]


def is_of_domain(dataset: Dataset, name: str) -> np.ndarray:
    """Which examples are of the named domain, [R] bool; none for "".

    Raises BadInput for unknown names.
    """
    if not name:
        return np.zeros(len(dataset.y), bool)
    if name not in dataset.domains:
        raise BadInput(f"config.data.unseen: no domain {name!r}; {nearest(name, dataset.domains)}")
    return dataset.domain == dataset.domains.index(name)


def check_scored(federation: Federation) -> None:
    """Raises BadInput unless the federation has examples to score clients on."""
    if all(
        rows is None for rows in (federation.global_test, federation.unseen, federation.validation)
    ):
        raise BadInput(
            "nothing to score: the data have no test examples; draw some with"
            " --config.data.test=0.2, name a domain with --config.data.unseen or hold some out of"
            " each client's with --config.partition.validation=0.1"
        )


def pool(federations: Sequence[Federation]) -> list[Federation]:
    """The federations with a single client that holds all training examples."""
    rows = make_rows([[np.asarray(f.train.list)] for f in federations])
    return [f._replace(train=r, traits={}) for f, r in zip(federations, rows, strict=True)]


def class_counts(rows: Rows | None, y: Any, num_classes: int) -> np.ndarray:
    """The number of these rows of each client by class, [C, K]; y: the labels of the pool [R]."""
    if rows is None:
        return np.zeros((0, num_classes), int)
    return partitioning.counts(parts_of(rows), y, num_classes)


def parts_of(rows: Rows) -> partitioning.Parts:
    """The rows of each client; the inverse of `make_rows`."""
    start, count, held = (np.asarray(a) for a in (rows.start, rows.count, rows.list))
    return [held[begin : begin + n] for begin, n in zip(start, count, strict=True)]


def _make_pool(dataset, scale, test, unseen, public):
    """A federation with the pool of examples, but without the rows of clients."""
    x, center, factor = dataset.x, scale.center, scale.scale
    if x.dtype == np.float64:  # scaled now, because float32 could not hold the numbers before
        x, center, factor = in_float32(x, scale), jnp.float32(0), jnp.float32(1)
    x = x.reshape(len(x), -1)
    y = np.asarray(dataset.y)
    if y.dtype.kind == "f":
        check_labels("the labels", y)
    y = y.astype(np.float32 if y.dtype.kind == "f" else np.int32, copy=False)
    return Federation(
        x=x,
        y=y,
        domain=np.asarray(dataset.domain, np.int32),
        center=center,
        scale=factor,
        **dict.fromkeys(CLIENT_ROWS),
        global_test=test.astype(np.int32) if len(test) else None,
        unseen=unseen.astype(np.int32) if len(unseen) else None,
        public=(np.asarray(x[public]), y[public]) if len(public) else None,
    )


def _deal_shots(dataset, rows, num_clients, shots, shots_per):
    """Chooses the rows of the unseen domain that each client gets, [C, shots].

    The classes are as balanced as possible, in total and for each client; with shots_per="class"
    each client gets `shots` rows of each class.
    """
    if shots == 0:
        return np.zeros((num_clients, 0), int)
    count = shots
    if shots_per == "class":
        _check_shots_of_classes(dataset, rows, num_clients, shots)
        count *= len(dataset.classes)
    if num_clients * count >= len(rows):
        raise BadInput(
            f"config.data.shots={shots} for {num_clients} clients is more than the"
            f" {len(rows)} unseen examples allow, since at least one must remain for tests"
        )
    rows = np.random.default_rng(0).permutation(rows)
    y = dataset.strata[rows]
    rows, y = rows[order := np.argsort(y, kind="stable")], y[order]  # class after class
    place = np.arange(len(y)) - np.searchsorted(y, y)  # position in its class
    chosen = np.sort(np.argsort(place, kind="stable")[: num_clients * count])
    return np.stack([rows[chosen[i::num_clients]] for i in range(num_clients)])


def _check_shots_of_classes(dataset, rows, num_clients, shots):
    """Raises BadInput unless these rows have enough examples of each class for all clients."""
    counts = np.bincount(dataset.strata[rows], minlength=len(dataset.classes))
    fewest = int(np.argmin(counts))
    if num_clients * shots > counts[fewest]:
        raise BadInput(
            f"config.data.shots={shots} of each class for {num_clients} clients is more than the"
            f" {counts[fewest]} unseen examples of class {dataset.classes[fewest]!r}; decrease it,"
            " or use config.data.shots_per=client"
        )


def _examples(dataset, train, embed):
    """The properties of the training examples, which are rows `train`, that a partition may use."""

    def vectors():
        if embed is None:
            raise BadInput("this partition needs embeddings (config.embedding), and there are none")
        return embed()[train]

    x = dataset.x
    return dealing.Examples(
        x=LazyArray(lambda rows: x[train[rows]], (len(train), *x.shape[1:]), x.dtype, digest=None),
        y=dataset.y[train],
        domain=dataset.domain[train],
        client=None if dataset.client is None else dataset.client[train],
        users=dataset.users,
        embed=vectors,
    )


def _deal(deal, examples, num_clients, rngs, name):
    """The parts [client] of each seed; all seeds have equally many, and no part is empty."""
    dealt = [dealing.deal(deal, examples, num_clients, rng, name) for rng in rngs]
    for parts in dealt:
        partitioning.check(parts, name)
    numbers = sorted({len(parts) for parts in dealt})
    if len(numbers) > 1:
        raise BadInput(
            f"partition {name} makes {numbers[0]} clients with one seed and {numbers[-1]} with"
            " another; the seeds of a run must have equally many: set config.partition.num_clients,"
            " or run each seed on its own"
        )
    return dealt


def _deal_tests(dataset, train, test, parts, rng, deal):
    """The positions of the test examples of each client.

    If the partition uses the users and keeps each user's training examples on one client, the
    user's test examples go to the same client. Otherwise the test examples are divided by label and
    domain like the training examples.
    """
    if dataset.client is not None and dealing.takes_examples(deal):
        owner = dealing.owners(parts, dataset.client[train], len(dataset.users))
        if owner is not None:
            return dealing.by_number(owner[dataset.client[test]], len(parts))
    of_train, of_test = ((dataset.strata[rows], dataset.domain[rows]) for rows in (train, test))
    return partitioning.deal_like(parts, *of_train, *of_test, rng)


def _holder(dataset, train, validation):
    """Returns a function (parts, rng) -> (train, validation) parts, for training rows `train`."""
    if dataset.overlap and validation:
        user = np.zeros(len(train), int) if dataset.client is None else dataset.client[train]
        return lambda parts, rng: leaks.hold_out_ends(parts, validation, dataset.overlap, user)
    origin = None if dataset.origin is None else dataset.origin[train]
    return lambda parts, rng: partitioning.hold_out(parts, validation, rng, origin)


def _deal_rows(train, test, shot_rows, parts, tests, rng, seed, hold_out, new_clients):
    """The rows of one seed, each set of CLIENT_ROWS as a list over clients, and the clients' order.

    The order has the numbers that the clients, followed by the new ones, had before new clients
    were chosen.
    """
    kept, held_out = hold_out(parts, rng)
    kept = [np.concatenate([train[p], shots]) for p, shots in zip(kept, shot_rows, strict=True)]
    each = kept, [train[p] for p in held_out], [test[p] for p in tests]
    new = partitioning.choose_new(len(parts), new_clients, rng)
    new_train, new_validation, new_test = (_select(rows, new) for rows in each)
    to_score = new_test if any(map(len, tests)) else new_validation
    if new.any() and not any(map(len, to_score)):
        raise BadInput(
            f"the new clients of seed {seed} (config.partition.new_clients={new_clients}) have no"
            " examples to be scored on; increase new_clients or, if the data have no test"
            " examples, hold some out with --config.partition.validation=0.1"
        )
    rows = *(_select(rows, ~new) for rows in each), new_train, to_score
    return rows, np.argsort(new, kind="stable")


def _select(rows, chosen):
    """The rows of the chosen clients."""
    return [of_one for of_one, is_chosen in zip(rows, chosen, strict=True) if is_chosen]


def make_rows(parts_by_seed: Sequence[partitioning.Parts]) -> list[Any]:
    """The `Rows` of each seed, equal in shape, from parts [seed][client]; None if all are empty."""
    counts = np.array([[len(part) for part in parts] for parts in parts_by_seed], np.int32)
    if not counts.any():
        return [None] * len(counts)
    longest, length = int(counts.max()), counts.sum(1).max()

    def seed_rows(parts, count):
        held = np.full(length, -1, np.int32)
        np.concatenate(parts, out=held[: count.sum()], casting="unsafe")
        start = np.cumsum(count, dtype=np.int32) - count
        return Rows(start, count, held, longest)

    return [seed_rows(*each) for each in zip(parts_by_seed, counts, strict=True)]
