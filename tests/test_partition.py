"""Checks partitioners: their invariants, and their rules against naive re-implementations."""

import inspect
import re

import numpy as np
import pytest
from inputs import complaint

from fedjax_lab.data.partitions import dealing, label_skews, partitioning
from fedjax_lab.experiment.registry import NAMED, look_up

PARTITIONS = {  # with the first signature: y, domain, num_clients, rng
    name: function
    for name in NAMED["partition"]
    if not dealing.takes_examples(function := look_up("partition", name))
}


def rng(seed=0):
    return np.random.default_rng(seed)


def examples(seed=0, size=1200):
    """Labels 0, 2, 4, ... 12 and domains 1, 3, 4 in random order: ids have gaps, sizes differ."""
    random = rng(seed)
    y = 2 * random.choice(7, size, p=np.array([4, 3, 3, 2, 2, 2, 1]) / 17)
    domain = random.choice([1, 3, 4], size, p=[0.5, 0.3, 0.2])
    return y.astype(np.int32), domain.astype(np.int32)


def domain_counts(parts, domain):
    """[clients, domains]; one row per client."""
    return partitioning.counts(parts, domain, int(domain.max()) + 1)


def assert_each_once(parts, total):
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(total))


CASES = {
    "iid": {},
    "dirichlet": {"alpha": 0.3},
    "classes_per_client": {"classes": 3},
    "client_dirichlet": {"alpha": 0.2},
    "quantity": {"alpha": 2.0},
    "by_domain": {},
    "domains_per_client": {"domains": 2},
    "shards": {"shards_per_client": 3},
    "extended_dirichlet": {"classes": 4, "alpha": 1.0},
}


def make(name, num_clients=9, seed=0, **settings):
    y, domain = examples()
    settings = CASES[name] | settings
    return PARTITIONS[name](y, domain, num_clients, rng(seed), **settings)


# Properties of all partitioners


@pytest.mark.parametrize("name", PARTITIONS)
def test_a_partitioner_has_settings_with_defaults_and_depends_on_its_generator(name):
    parameters = list(inspect.signature(PARTITIONS[name]).parameters.values())
    assert [p.name for p in parameters[:4]] == ["y", "domain", "num_clients", "rng"]
    assert all(p.kind == p.KEYWORD_ONLY and p.default is not p.empty for p in parameters[4:])
    a, again, other = (make(name, seed=seed) for seed in (0, 0, 1))
    for one, two in zip(a, again, strict=True):
        np.testing.assert_array_equal(one, two)
    assert any(len(x) != len(z) or (x != z).any() for x, z in zip(a, other, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_each_example_is_used_once_and_clients_hold_theirs_in_random_order(name):
    parts = make(name)
    assert len(parts) == 9 and all(part.dtype == np.int32 for part in parts)
    if name != "client_dirichlet":  # which drops the remainder
        assert_each_once(parts, 1200)
    assert name != "iid" or np.ptp([len(part) for part in parts]) <= 1
    part = max(parts, key=len)
    for values in (part, *(code[part] for code in examples())):
        if len(set(values)) > 1:
            assert (np.diff(values) > 0).any() and (np.diff(values) < 0).any()


# Single partitioners


def naive_dirichlet(y, num_clients, random, alpha, min_size):
    """The counts [clients, classes] of the first accepted try, and the number of tries."""
    tries = 0
    while True:
        tries += 1
        clients = [[] for _ in range(num_clients)]
        for label in sorted(set(y.tolist())):
            rows = [r for r in range(len(y)) if y[r] == label]
            share = random.dirichlet([alpha] * num_clients)
            full = [len(client) >= len(y) / num_clients for client in clients]
            share = np.array([0.0 if f else s for s, f in zip(share, full, strict=True)])
            share = share / share.sum()
            cuts = [int(np.floor(c * len(rows))) for c in np.cumsum(share)][:-1]
            for i, (first, last) in enumerate(zip([0, *cuts], [*cuts, len(rows)], strict=True)):
                clients[i] += rows[first:last]
        if min(len(client) for client in clients) >= min_size:
            return partitioning.counts(
                [np.array(c, int) for c in clients], y, int(y.max()) + 1
            ), tries


@pytest.mark.parametrize("seed", range(4))
def test_dirichlet_equals_the_loop_of_niid_bench(seed):
    y, domain = examples(seed, 400)
    expected, tries = naive_dirichlet(y, 12, rng(seed), 0.3, 18)
    parts = partitioning.dirichlet(y, domain, 12, rng(seed), alpha=0.3, min_size=18)
    np.testing.assert_array_equal(partitioning.counts(parts, y, int(y.max()) + 1), expected)
    assert tries > 1


def test_dirichlet_that_never_reaches_its_minimum_is_an_error():
    y, domain = examples(size=400)
    settings = {"alpha": 1.5, "min_size": 13, "tries": 300}
    message = complaint(partitioning.dirichlet, y, domain, 30, rng(), **settings)
    for word in ("config.partition.min_size 13", "300 tries", "alpha 1.5", "num_clients 30"):
        assert word in message
    random, best = rng(), 0
    for _ in range(300):
        counts, _ = naive_dirichlet(y, 30, random, 1.5, 0)
        best = max(best, counts.sum(1).min())
    assert best > 0 and f"had at most {best};" in message


@pytest.mark.parametrize("classes", range(1, 8))
def test_classes_per_client_gives_each_client_that_many_classes(classes):
    y, domain = examples()
    parts = partitioning.classes_per_client(y, domain, 17, rng(classes), classes=classes)
    assert_each_once(parts, len(y))
    held = partitioning.counts(parts, y, 13)[:, ::2]  # labels are even
    np.testing.assert_array_equal((held > 0).sum(1), classes)
    for i in range(17):
        assert held[i, i % 7] > 0
    for column in held.T:  # as even as possible among the owners, the larger parts first
        sizes = column[column > 0]
        split = np.array_split(np.arange(column.sum()), len(sizes))
        np.testing.assert_array_equal(sizes, [len(part) for part in split])


def test_fewer_clients_than_classes_hold_all_of_them():
    y, domain = np.repeat(np.arange(10), 7), np.zeros(70, int)
    parts = partitioning.classes_per_client(y, domain, 5, rng(), classes=2)
    assert_each_once(parts, len(y))
    held = partitioning.counts(parts, y, 10) > 0
    assert (held.sum(1) == 2).all() and (held.sum(0) == 1).all()
    held = (
        partitioning.counts(partitioning.classes_per_client(y, domain, 4, rng(), classes=3), y, 10)
        > 0
    )
    assert (held.sum(1) == 3).all() and held.any(0).all()


def test_alpha_sets_the_skew_and_a_tiny_one_leaves_no_example_out():
    y, domain = examples(size=6000)
    skewed, even = (
        label_skews.extended_dirichlet(y, domain, 20, rng(), classes=2, alpha=alpha)
        for alpha in (0.3, 100.0)
    )
    assert partitioning.counts(skewed, y, 13).std() > 1.2 * partitioning.counts(even, y, 13).std()
    parts = partitioning.dirichlet(y, domain, 3, rng(), alpha=1e-12, min_size=1)
    assert_each_once(parts, 6000)
    y = np.repeat([0, 1], 50)
    assert_each_once(partitioning.client_dirichlet(y, y, 4, rng(), alpha=1e-300), 100)


def naive_fill(slots, mix, left, random):
    """Draws one class for each slot, from the mix renormalized over the classes that are left."""
    left, taken = list(left), np.zeros(len(left), int)
    for _ in range(slots):
        share = np.where(np.array(left) > 0, mix, 0)
        c = random.choice(len(mix), p=share / share.sum())
        taken[c] += 1
        left[c] -= 1
    return taken


def test_client_dirichlet_has_the_distribution_of_slot_by_slot_drawing():
    """Clients have equal sizes, and the remainder is dropped."""
    parts = make("client_dirichlet", 11)
    assert [len(part) for part in parts] == [1200 // 11] * 11
    assert len(set(np.concatenate(parts).tolist())) == 11 * (1200 // 11)
    mix, left = np.array([0.6, 0.25, 0.15]), np.array([2, 3, 5])
    random = rng()
    ours = np.array([partitioning._fill(6, mix, left, random) for _ in range(4000)])
    naive = np.array([naive_fill(6, mix, left, random) for _ in range(4000)])
    assert (ours.sum(1) == 6).all() and (ours <= left).all()
    for c in range(3):
        histogram = [np.bincount(x[:, c], minlength=6) / 4000 for x in (ours, naive)]
        np.testing.assert_allclose(*histogram, atol=0.04)


def test_quantity_equals_a_naive_loop():
    y, domain = examples(size=500)
    random, tries = rng(), 0
    while True:
        tries += 1
        share = random.dirichlet([0.5] * 8)
        if min(share) * 500 >= 10:
            break
    cuts = [0, *(int(c * 500) for c in np.cumsum(share)[:-1]), 500]
    parts = partitioning.quantity(y, domain, 8, rng(), alpha=0.5)
    assert [len(part) for part in parts] == np.diff(cuts).tolist()
    assert min(len(part) for part in parts) >= 10 and tries > 1


def test_tries_are_limited_by_the_random_numbers_that_they_take(monkeypatch):
    monkeypatch.setattr(partitioning, "CHUNK", 200)
    monkeypatch.setattr(partitioning, "MOST_DRAWN", 10_000)
    message = complaint(make, "dirichlet", alpha=0.5, min_size=110, tries=10**9)
    assert f"was not reached in {10_000 // 63} tries" in message
    assert "raise alpha (for example to " in message


def test_by_domain_gives_each_domain_equally_many_clients():
    _, domain = examples()
    held = domain_counts(make("by_domain", 12), domain)[:, [1, 3, 4]]
    for i, row in enumerate(held):
        assert np.flatnonzero(row).tolist() == [i // 4]
    for z in range(3):
        assert np.ptp(held[4 * z : 4 * z + 4, z]) <= 1


def allocate(sizes, num_clients, domains, seed=0):
    """Counts [clients, domains] of Algorithm 5."""
    domain = rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    parts = partitioning.domains_per_client(
        np.zeros_like(domain), domain, num_clients, rng(seed), domains=domains
    )
    assert_each_once(parts, len(domain))
    return domain_counts(parts, domain)


def naive_allocation(sizes, num_clients, domains):
    """Algorithm 5 as a queue of (domain, size) parts."""
    parts, more = divmod(num_clients * domains, len(sizes))
    largest = sorted(range(len(sizes)), key=lambda z: -sizes[z])[:more]
    queue = []
    for z, size in enumerate(sizes):
        pieces = np.array_split(np.arange(size), parts + (z in largest))
        queue += [(z, len(piece)) for piece in pieces]
    clients = [[] for _ in range(num_clients)]
    for _ in range(domains):
        for client in clients:
            client.append(queue.pop(0))
    return clients


def test_domains_per_client_never_gives_two_parts_of_one_domain():
    tested, random = 0, rng()
    for num_domains in range(1, 7):
        sizes = random.integers(40, 60, num_domains)
        sizes[-1] = sizes[0]  # a tie
        for num_clients in range(1, 13):
            for domains in range(1, num_domains + 1):
                if num_clients * domains < num_domains:
                    continue
                counts = allocate(sizes, num_clients, domains)
                np.testing.assert_array_equal((counts > 0).sum(1), domains)
                for i, client in enumerate(naive_allocation(sizes, num_clients, domains)):
                    assert [(z, counts[i, z]) for z in np.flatnonzero(counts[i])] == sorted(client)
                for column in counts.T:
                    assert np.ptp(column[column > 0]) <= 1
                tested += 1
    assert tested > 200


# Test examples, validation


def test_deal_like_follows_the_labels_and_domains_of_each_client():
    y, domain = examples(0, 3000)
    test_y, test_domain = examples(1, 700)
    random = rng(3)
    parts = partitioning.dirichlet(y, domain, 8, random, alpha=0.3)
    parts = [part[domain[part] != 4] for part in parts]  # no client trains on domain 4
    dealt = partitioning.deal_like(parts, y, domain, test_y, test_domain, random)
    seen_rows = np.flatnonzero(test_domain != 4)
    np.testing.assert_array_equal(np.sort(np.concatenate(dealt)), seen_rows)
    assert all(part.dtype == np.int32 for part in dealt)
    for z in (1, 3):
        for c in range(0, 13, 2):
            train = np.array([((domain[p] == z) & (y[p] == c)).sum() for p in parts])
            test = np.array([((test_domain[p] == z) & (test_y[p] == c)).sum() for p in dealt])
            exact = train / train.sum() * ((test_domain == z) & (test_y == c)).sum()
            assert (np.abs(test - exact) < 1).all()
            assert (test[train == 0] == 0).all()


def test_deal_like_meets_whole_shares_exactly_and_favors_no_client():
    y, test_y = np.repeat(np.arange(50), 20), np.repeat(np.arange(50), 10)
    parts = [np.arange(i, 1000, 20, dtype=np.int32) for i in range(20)]  # one of each class
    args = (y, np.zeros_like(y), test_y, np.zeros_like(test_y))
    dealt = partitioning.deal_like(parts, *args, rng())
    sizes = [len(part) for part in dealt]  # 25 expected; a fixed order gives 0 and 50
    assert sum(sizes) == 500 and min(sizes) > 10 and max(sizes) < 40
    fifths = [np.concatenate(parts[4 * i : 4 * i + 4]) for i in range(5)]
    dealt = partitioning.deal_like(fifths, *args, rng())
    assert (partitioning.counts(dealt, test_y, 50) == 2).all()
    other = partitioning.deal_like(fifths, *args, rng(1))
    assert set(dealt[0].tolist()) != set(other[0].tolist())
    none = np.zeros(0, np.int32)
    dealt = partitioning.deal_like(fifths, *args[:2], none, none, rng())
    assert [len(part) for part in dealt] == [0] * 5


def test_hold_out_does_not_split_texts():
    origin = np.repeat(np.arange(40), np.arange(40) % 7 + 1)
    order = np.random.default_rng(3).permutation(len(origin))
    parts = [order[:100], order[100:], np.flatnonzero(origin == 5)]
    train, validation = partitioning.hold_out(parts, 0.25, rng(), origin)
    for part, a, b in zip(parts[:2], train, validation, strict=False):
        assert sorted([*a, *b]) == sorted(part)
        assert not {*origin[a]} & {*origin[b]} and abs(len(b) - len(part) / 4) <= 4
    assert len(train[2]) == 6 and len(validation[2]) == 0  # this client has a single text


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.29, 0.5, 0.99])
def test_hold_out_takes_the_fraction_and_leaves_at_least_one_example(fraction):
    sizes = [1, 2, 3, 10, 100]
    rows = np.split(rng().permutation(sum(sizes)).astype(np.int32), np.cumsum(sizes)[:-1])
    train, validation = partitioning.hold_out(rows, fraction, rng())
    for part, left, held in zip(rows, train, validation, strict=True):
        assert sorted([*left, *held]) == sorted(part)
        assert left.dtype == held.dtype == np.int32
        assert len(left) >= 1
    least = int(fraction > 0)
    expected = [0, least, *(max(least, round(100 * fraction) * n // 100) for n in sizes[2:])]
    assert [len(held) for held in validation] == expected
    held = [set(partitioning.hold_out(rows, 0.2, rng(s))[1][4].tolist()) for s in (0, 0, 1)]
    assert held[0] == held[1] != held[2]


# New clients, padding, counts and tables


def test_new_clients_are_a_share_of_all_and_leave_at_least_one_client():
    """They are chosen at random; without any, no random number is drawn."""
    random = rng()
    for num_clients, share, count in (
        *((10, share, count) for share, count in ((0.2, 2), (0.29, 2), (0.3, 3), (0.01, 1))),
        (2, 0.99, 1),
    ):
        assert partitioning.count_new(num_clients, share) == count
        new = partitioning.choose_new(num_clients, share, random)
        assert new.shape == (num_clients,) and new.sum() == count
    times = sum(partitioning.choose_new(5, 0.4, random) for _ in range(1000))
    assert (abs(times - 400) < 5 * np.sqrt(1000 * 0.24)).all()
    before = random.bit_generator.state
    assert not partitioning.choose_new(5, 0.0, random).any()
    assert random.bit_generator.state == before


def test_table_of_counts_and_sizes():
    """Rows are padded with -1; the first class of Shakespeare's characters is the line feed."""
    parts = [np.array(p, np.int32) for p in ([1, 2, 4], [], [3])]
    np.testing.assert_array_equal(partitioning.pad(parts), [[1, 2, 4], [-1] * 3, [3, -1, -1]])
    np.testing.assert_array_equal(partitioning.pad([np.zeros(0, np.int32)] * 2), [[-1], [-1]])
    held = partitioning.counts(parts, np.array([0, 2, 2, 1, 0], np.int32), 4)
    np.testing.assert_array_equal(held, [[1, 0, 2, 0], [0, 0, 0, 0], [0, 1, 0, 0]])
    text = partitioning.table(np.array([[5, 0], [1, 30], [2, 2]]), ["cat", "\n"])
    cells = [line.split() for line in text.splitlines()]
    assert cells[:3] == [
        ["client", "cat", r"\n", "all"],
        ["0", "5", "0", "5"],
        ["1", "1", "30", "31"],
    ]
    assert cells[4] == ["all", "8", "32", "40"]
    assert text.splitlines()[5] == "examples per client: min 4, median 5, max 31"
    assert len({len(line) for line in text.splitlines()[:5]}) == 1  # the columns are aligned


# Invalid input


def test_check_names_the_partition_and_the_client_without_examples():
    full, empty = np.arange(3), np.zeros(0, int)
    partitioning.check([full, full], "iid")
    assert "partition leaves client 3 without" in complaint(
        partitioning.check, [*[full] * 3, empty]
    )
    message = complaint(partitioning.check, [empty, full, empty], "by_domain")
    assert "partition 'by_domain' leaves client 0 (and 1 more)" in message


BAD = [  # the setting that a message names comes first in it
    ("iid", 1201, {}, "num_clients must be from 1 to 1,200, the number"),
    ("dirichlet", 9, {"alpha": float("nan")}, "alpha must be above 0, got nan"),
    ("dirichlet", 9, {"min_size": 0}, "min_size must be above 0, got 0"),
    ("dirichlet", 9, {"min_size": 134}, "min_size 134 for num_clients 9 needs 1206 examples"),
    ("quantity", 9, {"min_size": 130, "alpha": 0.1, "tries": 50}, "min_size 130"),
    ("quantity", 100, {}, "min_size 10 is out of reach: with alpha 2.0 and num_clients 100 the"),
    ("client_dirichlet", 9, {"alpha": 0.0}, "alpha must be above 0, got 0.0"),
    ("classes_per_client", 9, {"classes": 0}, "classes must be above 0"),
    ("classes_per_client", 9, {"classes": 8}, "classes must be from 1 to 7, the number of"),
    ("classes_per_client", 2, {}, "num_clients must be at least 3, so that each of the 7 classes"),
    ("classes_per_client", 900, {"classes": 7}, "classes=7 divides the"),
    ("by_domain", 10, {}, "num_clients must be a multiple of 3, the number of domains, got 10"),
    ("domains_per_client", 9, {"domains": 4}, "domains must be from 1 to 3, the number of"),
    ("domains_per_client", 2, {"domains": 1}, "domains=1 with 2 clients leaves some of the 3"),
    ("shards", 9, {"shards_per_client": 134}, "shards_per_client must be from 1 to 133 for 1200"),
    ("extended_dirichlet", 9, {"classes": 8}, "classes must be from 1 to 7, the number of"),
    ("extended_dirichlet", 3, {"classes": 2}, "num_clients=3 clients with 2 classes each cannot"),
]


@pytest.mark.parametrize("name, num_clients, settings, message", BAD)
def test_a_bad_setting_is_a_one_line_error_that_names_its_key(name, num_clients, settings, message):
    assert f"config.partition.{message}" in complaint(make, name, num_clients, **settings)
    for wrong in (0, 1201):
        assert "config.partition.num_clients must be from 1 to" in complaint(make, name, wrong)


# Shards, the extended Dirichlet distribution, and measures of skew


def test_shards_are_contiguous_pieces_of_the_sorted_labels():
    """The federation of McMahan et al.: each client has two shards, each of one label.

    A shard may also span several labels, and sizes may differ by one.
    """
    y = rng().permutation(np.repeat(np.arange(10), 60))
    parts = label_skews.shards(y, y, 10, rng(1))
    assert [len(part) for part in parts] == [60] * 10  # 20 shards of 30
    held = partitioning.counts(parts, y, 10)
    assert set(np.unique(held)) <= {0, 30, 60}
    assert ((held > 0).sum(1) <= 2).all() and (held > 0).sum(1).mean() > 1.5
    for sizes, expected in (
        ([9, 3, 8], [(0, 0, 6), (2, 3, 2), (7, 0, 0)]),
        ([7, 7, 6], [(0, 0, 6), (0, 7, 0), (7, 0, 0)]),
    ):
        y = rng().permutation(np.repeat(np.arange(3), sizes))
        parts = label_skews.shards(y, y, 3, rng(1), shards_per_client=1)
        assert sorted(map(tuple, partitioning.counts(parts, y, 3))) == expected


@pytest.mark.parametrize("classes", [1, 2, 3, 10])
def test_extended_dirichlet_gives_each_class_equally_many_owners(classes):
    y = np.repeat(np.arange(10), 1000)
    parts = label_skews.extended_dirichlet(y, y, 25, rng(), classes=classes, alpha=50.0)
    assert_each_once(parts, 10_000)
    held = partitioning.counts(parts, y, 10)
    assert ((held > 0).sum(1) == classes).all()  # a large alpha gives every owner examples
    owners = (held > 0).sum(0)
    assert owners.max() - owners.min() <= 1 and owners.sum() == 25 * classes


def test_skew_against_its_definitions():
    held = np.array([[8, 0, 0], [0, 4, 2], [1, 1, 0]])
    n, p = held.sum(1), held.sum(0) / held.sum()
    emd = sum(
        n[i] / n.sum() * sum(abs(held[i, k] / n[i] - p[k]) for k in range(3)) for i in range(3)
    )
    gini = sum(abs(a - b) for a in n for b in n) / (2 * 3 * n.sum())
    np.testing.assert_allclose(partitioning.skew(held), (emd, (1 + 2 + 2) / 3, gini))
    assert partitioning.skew(np.full((4, 3), 5)) == (0.0, 3.0, 0.0)  # equal clients
    line = partitioning.table(np.array([[10, 0], [0, 30]]), ["a", "b"]).splitlines()[-1]
    assert re.findall(r"\d\.\d+", line) == ["0.750", "1.0", "0.250"]
