"""Partitions: which client holds which training example.

The partitions here have the signature `name(y, domain, num_clients, rng, *, settings)`, where y [R]
and domain [R] are the integer labels and domains of the training examples, and the keyword-only
settings are keys of `config.partition`. They return one int32 array of positions in y per client. A
partition decides how many examples of each group (class, domain, or all) each client gets, counts
[G, n]; `deal_counts` then draws which ones. All randomness comes from the NumPy generator. Invalid
settings raise `BadInput`. A client may be empty if there are few examples per client: see `check`.
Partitions that use more than labels and domains have another signature: see `dealing`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedjax_lab.errors import BadInput, check_range, printable
from fedjax_lab.ranges import BELOW_ONE, Positive, checked

Parts = list[np.ndarray]  # per client: positions [N_i] int32

CHUNK = 2**18  # random numbers that are drawn at once in repeated tries: 2 MB
MOST_DRAWN = 2**26  # random numbers that are drawn in all tries together: a few seconds
FEW = 5  # tries of each alpha that an error message may recommend
HOPELESS = 1e-6  # if fewer tries than this are expected to succeed, none is made
SHOWN_CLIENTS, SHOWN_CLASSES, SHOWN_DOMAINS = 20, 12, 6  # shown by `table`, to fit on a screen
CLASS_WIDTH, DOMAIN_WIDTH = 10, 12  # longest names in the table, in characters


def iid(y, domain, num_clients: int, rng: np.random.Generator) -> Parts:
    """IID: divides a random permutation evenly (NIID-Bench `homo`); sizes differ by one at most."""
    check_clients(num_clients, len(y))
    counts = _even(len(y), num_clients)[None]  # [1, n]
    return deal_counts(np.zeros(len(y), int), counts, rng)


@checked("partition")
def dirichlet(
    y,
    domain,
    num_clients: int,
    rng: np.random.Generator,
    *,
    alpha: Positive[float] = 0.5,
    min_size: Positive[int] = 10,
    tries: Positive[int] = 10_000,
) -> Parts:
    """Dir(alpha): the shares of each class are drawn from it (NIID-Bench `noniid-labeldir`).

    As in NIID-Bench, a client that holds R / n examples gets no share of later classes (rounding
    can still give it one example). The draw is repeated until the smallest client has min_size
    examples, at most `tries` times and for a few seconds (MOST_DRAWN).

    alpha: the concentration of the Dirichlet distribution; a smaller one makes clients differ more.
    min_size: the number of examples that each client must have.
    tries: the largest number of draws.
    """
    check_clients(num_clients, len(y))
    _check_sizes(min_size, num_clients, len(y))
    _, group, sizes = _groups(y)

    def draw(count, alpha=alpha):
        shares = rng.dirichlet(np.full(num_clients, alpha), (count, len(sizes)))  # [B, G, n]
        counts = _balanced_counts(shares, sizes)
        return counts, counts.sum(1).min(1)

    numbers = num_clients * len(sizes)
    counts = _first_accepted(draw, numbers, tries, min_size, alpha, num_clients)
    return deal_counts(group, counts, rng)


@checked("partition")
def classes_per_client(
    y, domain, num_clients: int, rng: np.random.Generator, *, classes: Positive[int] = 2
) -> Parts:
    """#C=classes: every client holds exactly `classes` classes (NIID-Bench `noniid-#labelk`).

    Client i owns class i mod C and k - 1 random others; with fewer clients than classes, first the
    classes i, i + n, i + 2n, .... Each class is divided evenly among its owners. With k = C, every
    class is divided among all clients.

    classes: the number of classes k of each client.
    """
    check_clients(num_clients, len(y))
    ids, group, sizes = _groups(y)
    check_range("partition.classes", classes, 1, len(ids), "the number of classes")
    if num_clients * classes < len(ids):
        raise BadInput(
            f"config.partition.num_clients must be at least {-(-len(ids) // classes)}, so that each"
            f" of the {len(ids)} classes has a client with classes={classes}, got {num_clients}"
        )
    owned = _draw_classes(num_clients, len(ids), classes, rng)
    counts = np.zeros((len(ids), num_clients), int)
    for c, size in enumerate(sizes):
        owners = np.flatnonzero((owned == c).any(1))
        if size < len(owners):
            raise BadInput(
                f"config.partition.classes={classes} divides the {size} examples of class "
                f"{ids[c]} among {len(owners)} clients; lower classes or num_clients"
            )
        counts[c, owners] = _even(size, len(owners))
    return deal_counts(group, counts, rng)


@checked("partition")
def client_dirichlet(
    y, domain, num_clients: int, rng: np.random.Generator, *, alpha: Positive[float] = 0.5
) -> Parts:
    """Client Dir(alpha): each client's class mixture is drawn from Dir(alpha), as in FedBR.

    Clients have the equal size floor(R / n).

    Clients choose one after another, so that some classes are exhausted for later clients. If a
    client's mixture has no mass on the remaining classes, the rest of its examples is drawn
    uniformly from them (the original code divides by zero). The remaining R mod n examples are left
    out.

    alpha: the concentration of the Dirichlet distribution; a smaller one makes clients differ more.
    """
    check_clients(num_clients, len(y))
    _, group, left = _groups(y)
    mixes = rng.dirichlet(np.full(len(left), alpha), num_clients)  # [n, C]
    counts = np.zeros((len(left), num_clients), int)
    for i, mix in enumerate(mixes):
        counts[:, i] = _fill(len(y) // num_clients, mix, left, rng)
        left = left - counts[:, i]
    return deal_counts(group, counts, rng)


@checked("partition")
def quantity(
    y,
    domain,
    num_clients: int,
    rng: np.random.Generator,
    *,
    alpha: Positive[float] = 0.5,
    min_size: Positive[int] = 10,
    tries: Positive[int] = 200_000,
) -> Parts:
    """Quantity Dir(alpha): the sizes of the clients are drawn from Dir(alpha); classes are IID.

    It is `iid-diff-quantity` of NIID-Bench.

    The shares are redrawn until the smallest one gives min_size examples, at most `tries` times and
    for a few seconds (MOST_DRAWN), and not at all if success is practically impossible.

    alpha: the concentration of the Dirichlet distribution; a smaller one makes sizes differ more.
    min_size: the number of examples that each client must have.
    tries: the largest number of draws.
    """
    check_clients(num_clients, len(y))
    _check_sizes(min_size, num_clients, len(y))

    def draw(count, alpha=alpha):
        shares = rng.dirichlet(np.full(num_clients, alpha), (count, 1))  # [B, 1, n]
        return cut(shares, len(y)), np.floor(shares.min((1, 2)) * len(y)).astype(int)

    if tries * _most_likely(alpha, min_size / len(y), num_clients) < HOPELESS:
        raise BadInput(
            f"config.partition.min_size {min_size} is out of reach: with alpha {alpha} and "
            f"num_clients {num_clients} the smallest of the random shares of {len(y)} examples "
            "practically never has that many; raise alpha"
            f"{_alpha_that_works(draw, alpha, min_size)}, or lower num_clients or min_size"
        )

    counts = _first_accepted(draw, num_clients, tries, min_size, alpha, num_clients)
    return deal_counts(np.zeros(len(y), int), counts, rng)


def by_domain(y, domain, num_clients: int, rng: np.random.Generator) -> Parts:
    """By domain: each client holds one domain, client i domain i // (n / number of domains).

    The examples of a domain are divided evenly among its clients. One client per domain is FedC2I's
    split, ten clients per domain are Client2Vec's.
    """
    check_clients(num_clients, len(y))
    ids, group, sizes = _groups(domain)
    if num_clients % len(ids):
        raise BadInput(
            f"config.partition.num_clients must be a multiple of {len(ids)}, the number of "
            f"domains, got {num_clients}"
        )
    each = num_clients // len(ids)
    counts = np.zeros((len(ids), num_clients), int)
    for z, size in enumerate(sizes):
        counts[z, z * each : (z + 1) * each] = _even(size, each)
    return deal_counts(group, counts, rng)


@checked("partition")
def domains_per_client(
    y, domain, num_clients: int, rng: np.random.Generator, *, domains: Positive[int] = 1
) -> Parts:
    """#D=domains: every client holds parts of `domains` different domains (hFedF, Algorithm 5).

    Z domains are cut into a = floor(n d / Z) equal random parts each, the (n d mod Z) largest ones
    (ties: lower id first) into a + 1. The parts, ordered by domain, are dealt to clients 0 .. n-1
    in turn, d times. A domain has at most n consecutive parts, so that no client gets two of them.

    domains: the number of domains d of each client.
    """
    check_clients(num_clients, len(y))
    ids, group, sizes = _groups(domain)
    check_range("partition.domains", domains, 1, len(ids), "the number of domains")
    if num_clients * domains < len(ids):
        raise BadInput(
            f"config.partition.domains={domains} with {num_clients} clients leaves some of the "
            f"{len(ids)} domains unused; raise domains or num_clients"
        )
    parts, more = divmod(num_clients * domains, len(ids))
    cuts = np.full(len(ids), parts)
    cuts[np.argsort(-sizes, kind="stable")[:more]] += 1
    counts = np.zeros((len(ids), num_clients), int)
    for z, first in enumerate(np.cumsum(cuts) - cuts):
        clients = (first + np.arange(cuts[z])) % num_clients
        counts[z, clients] = _even(sizes[z], cuts[z])
    return deal_counts(group, counts, rng)


def check(parts: Parts, name: str = "") -> None:
    """Raises BadInput if a client has no example. name: the name of the partition, for messages."""
    empty = [i for i, part in enumerate(parts) if len(part) == 0]
    if empty:
        what = f"partition {name!r}" if name else "partition"
        more = f" (and {len(empty) - 1} more)" if len(empty) > 1 else ""
        raise BadInput(
            f"{what} leaves client {empty[0]}{more} without examples; "
            "lower config.partition.num_clients"
        )


def deal_like(parts: Parts, y, domain, test_y, test_domain, rng: np.random.Generator) -> Parts:
    """Divides test examples [T] among the clients like the training examples [R].

    For each (domain, class) cell, the test examples are cut at floor(cumulative training shares).
    So each is used once, and each client's number differs from its exact share by less than one.
    The clients are in random order in each cell; in a fixed order the first client would be rounded
    down in every cell. If no client trains on a cell, it is divided like the training examples of
    its domain. If no client holds a domain, its test examples are left out.

    Returns the positions of each client's test examples.
    """
    classes = max(np.max(y, initial=0), np.max(test_y, initial=0)) + 1
    cells = np.concatenate([domain, test_domain]) * classes + np.concatenate([y, test_y])
    ids, cell, _ = _groups(cells)
    cell, test_cell = cell[: len(y)], cell[len(y) :]
    held = counts(parts, cell, len(ids)).T  # [G, n]
    domains, place, _ = _groups(ids // classes)
    of_domain = np.zeros((len(domains), len(parts)), held.dtype)
    np.add.at(of_domain, place, held)
    held = np.where(held.any(1, keepdims=True), held, of_domain[place])
    order = rng.permuted(np.tile(np.arange(len(parts)), (len(ids), 1)), axis=1)
    cumulated = np.cumsum(np.take_along_axis(held, order, 1), 1)
    size = np.bincount(test_cell, minlength=len(ids))[:, None]
    # Integer arithmetic, so that a share that is a whole number of examples is exact.
    cuts = cumulated * size // np.maximum(cumulated[:, -1:], 1)
    dealt = np.zeros_like(held)
    np.put_along_axis(dealt, order, np.diff(cuts, axis=1, prepend=0), 1)
    return deal_counts(test_cell, dealt, rng)


def hold_out(
    parts: Parts, fraction: float, rng: np.random.Generator, origin: np.ndarray | None = None
) -> tuple[Parts, Parts]:
    """Holds out floor(fraction * N_i) random examples of each client for validation.

    The draw is not stratified. If fraction is above 0, a client with at least two examples keeps at
    least one on either side, and a client with one example trains on it.

    origin [R]: the text that each example is cut from. Whole texts are then held out, so that the
        number of their examples is closest to the above; a client with one text trains on it.

    Returns the (train, validation) parts.
    """
    train, validation = [], []
    for part in parts:
        mixed = rng.permutation(part)
        held = int(fraction * len(part) + 1e-9)  # 1e-9: 0.29 * 100 is 28.999999999999996
        held = max(1, min(held, len(part) - 1)) if fraction and len(part) > 1 else 0
        if origin is not None and held:
            mixed, held = _whole_texts(mixed, held, origin[mixed])
        validation.append(mixed[:held])
        train.append(mixed[held:])
    return train, validation


def _whole_texts(mixed, held, origin):
    """The examples ordered by text, and the number of leading ones, about `held`, to hold out.

    That number covers whole texts. Texts are ordered by their first example in `mixed`; the last
    text is never held out.
    """
    _, first, text, sizes = np.unique(
        origin, return_index=True, return_inverse=True, return_counts=True
    )
    ends = np.cumsum(sizes[np.argsort(first)])[:-1]
    count = int(ends[np.argmin(abs(ends - held))]) if len(ends) else 0
    return mixed[np.argsort(first[text], kind="stable")], count


def count_new(num_clients: int, share: float) -> int:
    """The number of new clients: floor(share * num_clients), but at least one if share is above 0.

    Raises BadInput if no client would be left to train on, or if share is not in [0, 1).
    """
    BELOW_ONE.check("partition.new_clients", share)
    if share and num_clients < 2:
        raise BadInput(
            f"config.partition.new_clients={share} leaves no client to train on, because"
            f" config.partition.num_clients is {num_clients}"
        )
    return max(1, min(int(share * num_clients + 1e-9), num_clients - 1)) if share else 0


def choose_new(num_clients: int, share: float, rng: np.random.Generator) -> np.ndarray:
    """Draws the new clients at random: flags [num_clients] bool; `count_new` of them are True.

    With a share of 0, no random number is drawn.
    """
    new = np.zeros(num_clients, bool)
    if share:
        new[rng.choice(num_clients, count_new(num_clients, share), replace=False)] = True
    return new


def pad(parts: Parts) -> np.ndarray:
    """The parts as an array [C, N] int32; N is the longest part (at least 1), and -1 is padding."""
    sizes = np.array([len(part) for part in parts])
    rows = np.full((len(parts), max(1, sizes.max())), -1, np.int32)
    rows[np.arange(rows.shape[1]) < sizes[:, None]] = np.concatenate(parts)
    return rows


def counts(parts: Parts, y, num_classes: int) -> np.ndarray:
    """The number of examples of each class that each client holds, [C, K]."""
    client = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    cell = client * num_classes + np.asarray(y)[np.concatenate(parts)]
    return np.bincount(cell, minlength=len(parts) * num_classes).reshape(-1, num_classes)


def table(
    counts: np.ndarray,
    class_names: Sequence[str],
    of_domains: np.ndarray | None = None,
    domain_names: Sequence[str] = (),
    named: Sequence[str] = (),
) -> str:
    """The counts [C, K] as text: the first clients and classes, totals, and statistics of sizes.

    A single class is left out, because it has all examples.

    of_domains: the counts by domain [C, D], shown after the classes; None: left out.
    named: the names of the clients, shown beside their numbers; empty: they have none.
    """
    clients, classes = counts.shape
    sizes = counts.sum(1)
    columns = SHOWN_CLASSES if classes > 1 else 0
    shown = counts[:, :columns]
    names = [printable(name)[:CLASS_WIDTH] for name in class_names[:columns]]
    names += [printable(name)[:DOMAIN_WIDTH] for name in domain_names[:SHOWN_DOMAINS]]
    if domain_names:
        assert of_domains is not None
        shown = np.concatenate([shown, of_domains[:, :SHOWN_DOMAINS]], axis=1)
    rows: list[list] = [["client", *names, "all"]]
    rows += [[_called(i, named), *shown[i], sizes[i]] for i in range(min(clients, SHOWN_CLIENTS))]
    rows.append(["all", *shown.sum(0), sizes.sum()])
    widths = [max(len(str(cell)) for cell in column) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(str(cell).rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    if clients > SHOWN_CLIENTS:
        lines.insert(-1, f"... and {clients - SHOWN_CLIENTS} more clients")
    if classes > SHOWN_CLASSES:
        lines.append(f"... and {classes - SHOWN_CLASSES} more classes")
    if len(domain_names) > SHOWN_DOMAINS:
        lines.append(f"... and {len(domain_names) - SHOWN_DOMAINS} more domains")
    spread = f"min {sizes.min()}, median {np.median(sizes):g}, max {sizes.max()}"
    labels = f"{_skew_line('labels', 'classes', counts)}, " * (classes > 1)
    lines.append(f"examples per client: {spread}")
    lines.append(f"skew: {labels}Gini of sizes {skew(counts).gini:.3f}")
    if domain_names:
        lines.append(f"domains: {_skew_line('domains', 'domains', of_domains)}")
    return "\n".join(lines)


def _called(i, named):
    """The number of a client, followed by its name if it has one."""
    name = printable(named[i])[:DOMAIN_WIDTH] if named else str(i)
    return str(i) if name == str(i) else f"{i} {name}"


def _skew_line(what, kinds, counts):
    emd, kinds_of_one, _ = skew(counts)
    return f"EMD to the global {what} {emd:.3f} (max 2), {kinds_of_one:.1f} {kinds} per client"


class Skew(NamedTuple):
    """Measures of how much the clients differ."""

    emd: float  # mean over examples of sum_k |p_i(k) - p(k)|, from 0 to 2 (Zhao et al. 2018)
    classes: float  # mean number of classes of a client
    gini: float  # Gini coefficient of client sizes: 0 if equal, near 1 if one client has all


def skew(counts: np.ndarray) -> Skew:
    """The skew of counts [C, K], the number of examples of each class that each client holds."""
    sizes = counts.sum(1)
    shares = counts / np.maximum(sizes, 1)[:, None]
    distance = np.abs(shares - counts.sum(0) / sizes.sum()).sum(1)
    rank = np.arange(1, len(sizes) + 1)
    gini = ((2 * rank - len(sizes) - 1) * np.sort(sizes)).sum() / (len(sizes) * sizes.sum())
    return Skew(
        emd=float((distance * sizes).sum() / sizes.sum()),
        classes=float((counts > 0).sum(1).mean()),
        gini=float(gini),
    )


def _groups(code) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """code [R] -> the ids that occur [G], the group 0 .. G-1 of each example [R], sizes [G]."""
    return np.unique(np.asarray(code), return_inverse=True, return_counts=True)


def deal_counts(group: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> Parts:
    """Gives client i counts[g, i] random examples of each group g, in random order.

    group: the group 0 .. G-1 of each example [R].
    counts: [G, n]; examples beyond the counts are left out.
    """
    sizes = np.bincount(group, minlength=len(counts))
    counts = np.column_stack([counts, sizes - counts.sum(1)])  # last column: examples left out
    rows = rng.permutation(len(group))
    rows = rows[np.argsort(group[rows], kind="stable")]  # by group, in random order within it
    client = np.repeat(np.tile(np.arange(counts.shape[1]), len(counts)), counts.ravel())
    mixed = rng.permutation(len(rows))
    mixed = mixed[np.argsort(client[mixed], kind="stable")]  # by client, in random order within it
    return np.split(rows[mixed].astype(np.int32), np.cumsum(counts.sum(0))[:-1])[:-1]


def _even(total: int, parts: int) -> np.ndarray:
    """Sizes [parts] that sum to `total` and differ by one at most, the larger ones first."""
    return total // parts + (np.arange(parts) < total % parts)


def cut(shares: np.ndarray, total: int) -> np.ndarray:
    """Sizes [..., n] between cuts at floor(cumsum(shares) * total); the last one gets the rest."""
    cuts = np.floor(np.cumsum(shares, -1) * total).astype(int)
    cuts[..., -1] = total
    return np.diff(cuts, axis=-1, prepend=0)


def _balanced_counts(shares: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Counts [B, G, n] of B tries with shares [B, G, n] of groups of sizes [G], balanced by size.

    Clients that hold the average size get no further share. If all of a group's share falls on such
    clients, the other clients get equal shares instead.
    """
    result = np.zeros(shares.shape, int)
    held = np.zeros(shares[:, 0].shape, int)  # [B, n]
    fair = sizes.sum() / shares.shape[-1]
    for g, size in enumerate(sizes):
        room = held < fair
        share = shares[:, g] * room
        share = np.where(share.sum(-1, keepdims=True) > 0, share, room)
        result[:, g] = cut(share / share.sum(-1, keepdims=True), size)
        held += result[:, g]
    return result


def _draw_classes(num_clients: int, num_classes: int, k: int, rng) -> np.ndarray:
    """k different classes for each client [n, k]; together all classes, if there are n k."""
    each = np.arange(max(num_clients, num_classes))
    rank = rng.random((num_clients, num_classes))
    rank[each % num_clients, each % num_classes] = -1
    return np.argsort(rank, axis=1)[:, :k]


def _most_likely(alpha: float, least: float, num_clients: int) -> float:
    """An upper bound on the probability that all shares ~ Dir(alpha) reach `least`.

    Each share is Beta(alpha, (n - 1) alpha), and the shares of a Dirichlet distribution are
    negatively associated: the probability that all of them are large is at most that of independent
    shares (Joag-Dev and Proschan 1983).
    """
    from scipy.special import betaincc  # imported here because it takes a while

    if num_clients == 1:
        return 1.0
    return float(betaincc(alpha, (num_clients - 1) * alpha, least) ** num_clients)


def _first_accepted(draw, numbers, tries, min_size, alpha, num_clients) -> np.ndarray:
    """The counts [G, n] of the first try in which the smallest client reaches min_size.

    draw: B -> counts [B, G, n] of B further tries, and the smallest client's size [B] in each.
    numbers: how many random numbers a try draws; there are fewer than `tries` tries if these are
        too many in total.
    """
    best, batch, most = 0, max(1, CHUNK // numbers), min(tries, max(1, MOST_DRAWN // numbers))
    for start in range(0, most, batch):
        counts, smallest = draw(min(batch, most - start))
        best = max(best, smallest.max())
        if best >= min_size:
            return counts[np.argmax(smallest >= min_size)]
    more = " or tries" if most == tries else ""
    raise BadInput(
        f"config.partition.min_size {min_size} was not reached in {most} tries: with alpha "
        f"{alpha} and num_clients {num_clients} the smallest client had at most {best}; raise alpha"
        f"{_alpha_that_works(draw, alpha, min_size)}{more}, or lower num_clients or min_size"
    )


def _alpha_that_works(draw, alpha, min_size) -> str:
    """Doubles alpha until one of FEW draws succeeds. Returns a phrase for messages, or ""."""
    for larger in alpha * 2.0 ** np.arange(1, 12):
        if draw(FEW, larger)[1].max() >= min_size:
            return f" (for example to {larger:.2g})"
    return ""


def _fill(slots: int, mix: np.ndarray, left: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Counts [C] of `slots` draws of classes from mix [C], at most left [C] of each class.

    A draw of an exhausted class is repeated with the other classes, which is equivalent to
    renormalizing the mixture when the class is exhausted.
    """
    taken = np.zeros_like(left)
    while slots > taken.sum():
        remain = left > taken
        mix = mix * remain
        mix = mix if mix.sum() > 0 else remain
        drawn = rng.multinomial(slots - taken.sum(), mix / mix.sum())
        taken = np.minimum(taken + drawn, left)
    return taken


def check_clients(num_clients: int, examples: int) -> None:
    what = "the number of training examples"
    check_range("partition.num_clients", num_clients, 1, examples, what)


def _check_sizes(min_size: int, num_clients: int, examples: int) -> None:
    if min_size * num_clients > examples:
        raise BadInput(
            f"config.partition.min_size {min_size} for num_clients {num_clients} needs "
            f"{min_size * num_clients} examples, but there are {examples}"
        )
