"""CFL: FedAvg as a special case, plain NumPy, and how clusters split."""

import itertools

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from naive import KEYS
from slow_cases import in_ci

from fedjax_lab import tree
from fedjax_lab.methods import cfl
from fedjax_lab.simulation import simulate


def best_parts(alpha, members):
    """The bipartition whose largest alpha across its parts is smallest, found by trying all."""
    first, *others = members
    parts = []
    for size in range(len(others)):
        for mates in itertools.combinations(others, size):
            one = {first, *mates}
            two = set(members) - one
            parts.append((max(alpha[i][j] for i in one for j in two), one, two))
    return min(parts, key=lambda part: part[0])


def test_the_bipartition_minimizes_the_largest_similarity_across_parts():
    rng = np.random.default_rng(0)
    for members in ([0, 1, 3, 4, 6, 7], [2, 5], [1, 2, 3, 4, 5, 6, 7]):
        u = rng.normal(size=(8, 3))
        alpha = np.float32((u @ u.T) / np.outer(*[np.linalg.norm(u, axis=1)] * 2))
        across, *parts = best_parts(alpha, members)
        inside = jnp.zeros(8, bool).at[jnp.array(members)].set(True)
        second, largest = jax.jit(cfl.bipartition)(jnp.asarray(alpha), inside)
        assert set(np.flatnonzero(second)) in parts
        assert float(largest) == across


def test_a_cluster_of_one_client_is_not_split():
    inside = jnp.zeros(5, bool).at[3].set(True)
    second, across = jax.jit(cfl.bipartition)(jnp.ones((5, 5)), inside)
    assert not second.any() and across == jnp.inf


class ByHand:
    """CFL in NumPy: the clusters' models, their members, and each client's last update."""

    def __init__(self, w, most):
        self.centers, self.member, self.last, self.most = [w], [0] * toys.C, {}, most

    def round(self, ids, eps1, eps2):
        models = {}
        for i in ids:
            start = self.centers[self.member[i]]
            models[i] = naive.sgd(start, *naive.data_of(i))
            self.last[i] = naive.vector(models[i]) - naive.vector(start)
        for k in range(len(self.centers)):
            here = [i for i in ids if self.member[i] == k]
            if here and len(self.centers) < self.most:
                mean = sum(p * self.last[i] for p, i in zip(naive.shares(here), here, strict=True))
                longest = max(np.linalg.norm(self.last[i]) for i in here)
                if np.linalg.norm(mean) < eps1 and longest > eps2:
                    self.split(k)
        for k in range(len(self.centers)):
            here = [i for i in ids if self.member[i] == k]
            if here:
                self.centers[k] = naive.mean_by_size(here, [models[i] for i in here])

    def split(self, k):
        members = [i for i in range(toys.C) if self.member[i] == k and i in self.last]
        if len(members) < 2:
            return
        units = {i: self.last[i] / np.linalg.norm(self.last[i]) for i in members}
        alpha = {i: {j: units[i] @ units[j] for j in members} for i in members}
        _, one, two = best_parts(alpha, members)
        for i in two:
            self.member[i] = len(self.centers)
        self.centers.append(self.centers[k])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("most", "eps1", "count"), in_ci([(5, 20.0, 4)], [(2, 3.5, 2), (5, 20.0, 4)])
)
def test_cfl_against_numpy(most, eps1, count):
    """Clusters are compared by their members, because their order does not matter."""
    method = toys.make("cfl", toys.TASK, max_clusters=most, eps1=eps1, eps2=0.2)
    by_hand, plan = ByHand(naive.first_weights(), most), naive.FULL._replace(cohort=5)
    for t in range(3):
        by_hand.round(naive.cohort(method, t, 5), eps1, 0.2)
    server = toys.player(method, plan=plan)(KEYS, 0, 3)[0].server
    assert int(server.used) == len(by_hand.centers) == count
    for i in range(toys.C):
        mates = {j for j in range(toys.C) if by_hand.member[j] == by_hand.member[i]}
        assert set(np.flatnonzero(server.member == server.member[i])) == mates
        model = tree.take(server.centers, server.member[i])
        naive.close(model, by_hand.centers[by_hand.member[i]])


def opposed(C):
    """A server whose first three clients have updates opposite to those of the others."""
    way = np.where(np.arange(C) < 3, 1.0, -1.0)[:, None]
    noise = 0.1 * np.random.default_rng(0).normal(size=(C, 4))
    method = toys.make("cfl", max_clusters=3)
    server = simulate.init(method, KEYS, C).server
    updates = {"a": jnp.asarray(way + noise, jnp.float32)}
    return server._replace(updates=updates, trained=jnp.arange(C) < C - 1)


def test_a_split_needs_clients_that_disagree_by_more_than_gamma():
    server = opposed(8)
    due = jnp.array([True, False, False])
    after = jax.jit(cfl.split)(0.5, server, due)
    assert after.member.tolist() == [0, 0, 0, 1, 1, 1, 1, 0]  # the last one was never trained
    assert int(after.used) == 2
    toys.same(tree.take(after.centers, 1), tree.take(server.centers, 0))
    assert int(jax.jit(cfl.split)(1.0, server, due).used) == 1
    full = server._replace(used=jnp.int32(3))
    assert jax.jit(cfl.split)(0.0, full, due).member.tolist() == [0] * 8
