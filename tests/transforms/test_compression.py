"""Compression of uploads and messages: codecs, error feedback, bytes, rejected settings."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
import wrapped
from inputs import complaint
from naive import KEYS
from naive import vector as flat
from slow_cases import exhaustive_but

from fedjax_lab import tree
from fedjax_lab.running import runner
from fedjax_lab.simulation import simulate
from fedjax_lab.transforms import (
    aggregators,
    codecs,
    compression,
    downlink,
    private_state,
    rehearsal,
    uplink,
)
from fedjax_lab.types import Failures, Weights

UP = {
    "top_k": compression.top_k,
    "random_k": compression.random_k,
    "qsgd": compression.qsgd,
    "sign": compression.sign,
    "low_rank": compression.low_rank,
}

rng = np.random.default_rng(0)
U = [np.float32(rng.normal(size=shape)) for shape in ((6, 5), (7,), ())]
REFERENCE = [np.float32(rng.normal(size=u.shape)) for u in U]
V = [r + u for r, u in zip(REFERENCE, U, strict=True)]
D = sum(u.size for u in U)


def through(codec, key=KEYS.init, u=U, reference=REFERENCE):
    """Encodes and decodes an update; returns the decoded values and what was sent."""
    v = [r + a for r, a in zip(reference, u, strict=True)]

    def both_ends(u, v, reference):
        sent = codec.encode(u, v, key)
        return codec.decode(sent, reference), sent

    return jax.jit(both_ends)(u, v, reference)


def test_top_k_sends_the_new_values_of_the_largest_updates():
    read, (values, at) = through(codecs.top_k(0.25))
    places = np.argsort(-np.abs(flat(U)), kind="stable")[: round(0.25 * D)]
    expected = flat(REFERENCE)
    expected[places] = flat(V)[places]
    np.testing.assert_array_equal(flat(read), expected)
    assert [a.shape for a in read] == [u.shape for u in U]
    assert at.tolist() == places.tolist()
    assert at.dtype == codecs.index_type(1 << 16) == jnp.uint16
    assert codecs.index_type((1 << 16) + 1) == jnp.uint32


def test_random_k_sends_values_and_a_seed():
    read, (values, seed) = through(codecs.random_k(0.25))
    changed = flat(read) != flat(REFERENCE)
    assert changed.sum() == len(values) == round(0.25 * D)
    np.testing.assert_array_equal(flat(read)[changed], flat(V)[changed])
    assert tree.num_bytes(seed) == 4


@pytest.mark.parametrize(("bits", "norm"), [(2, "max"), (4, "l2")])
def test_qsgd_rounds_to_one_of_the_two_nearest_levels(bits, norm):
    zeros = [np.zeros_like(u) for u in U]
    read, sent = through(codecs.quantized(bits, compression.NORMS[norm]), reference=zeros)
    s = 2 ** (bits - 1) - 1
    for a, u, (codes, scale) in zip(read, U, sent, strict=True):
        expected = np.abs(u).max() if norm == "max" else np.sqrt((u**2).sum())
        np.testing.assert_allclose(scale, expected, rtol=1e-6)
        level = np.asarray(a) / expected * s
        np.testing.assert_allclose(level, np.round(level), atol=1e-4)
        assert (np.abs(level - u / expected * s) < 1 + 1e-4).all()
        assert codes.dtype == jnp.uint8 and codes.size == -(-u.size * bits // 8)


def test_sign_sends_signs_and_a_mean_absolute_value():
    read, sent = through(codecs.sign())
    for a, u, r, (codes, _) in zip(read, U, REFERENCE, sent, strict=True):
        expected = r + np.abs(u).mean() * np.where(u >= 0, 1, -1)
        np.testing.assert_allclose(a, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(codes, np.packbits(np.ravel(u >= 0), bitorder="little"))


def test_low_rank_is_subspace_iteration_from_a_random_start():
    u = [U[0], U[1]]
    read, sent = through(codecs.low_rank(1, 2), u=u, reference=REFERENCE[:2])
    q = np.asarray(jax.random.normal(jax.random.split(KEYS.init, 2)[0], (5, 1)))
    for _ in range(2):
        p = U[0] @ q
        p /= np.sqrt((p**2).sum())
        q = U[0].T @ p
    np.testing.assert_allclose(read[0], REFERENCE[0] + p @ q.T, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(read[1], V[1])
    assert [a.shape for a in jax.tree.leaves(sent)] == [(6, 1), (5, 1), (7,)]
    u = [U[0][:, :1] * U[0][:1]]  # a matrix of rank 1 is recovered
    read, _ = through(codecs.low_rank(1, 1), u=u, reference=[np.zeros_like(u[0])])
    np.testing.assert_allclose(read[0], u[0], rtol=1e-4, atol=1e-5)


def test_codecs_that_divide_by_a_norm_decode_an_update_of_zeros_as_zeros():
    zeros = [np.zeros_like(u) for u in U]
    for codec in (codecs.quantized(2, compression.NORMS["l2"]), codecs.low_rank(1, 2)):
        np.testing.assert_array_equal(flat(through(codec, u=zeros)[0]), flat(REFERENCE))


DRAWS = 4000


def read_often(method, u):
    """What the server decodes of update u [D], for many keys [DRAWS, D]."""
    (exchange,) = method.round
    client = tree.take(toys.POPULATION, 0)

    def sent(key):
        return exchange.local(jnp.asarray(u), client, stand_in(key))[0]

    uploads = jax.vmap(sent)(jax.random.split(KEYS.local, DRAWS))
    cohort = tree.repeat(client, DRAWS)
    return np.asarray(exchange.aggregate(jnp.asarray(u), uploads, cohort), np.float64)


def stand_in(key):
    return rehearsal.stand_in(toys.TASK)._replace(upload_key=lambda: key)


def bare():
    return toys.bare(toys.make("fedavg"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [("random_k", {"share": 0.25}), ("qsgd", {"bits": 2}), ("qsgd", {"bits": 4, "norm": "l2"})],
)
def test_random_codecs_are_unbiased_and_have_the_expected_variance(name, settings):
    u = flat(U)
    read = read_often(UP[name](bare(), toys.TASK, **settings), u)
    error = (read.mean(0) - u) / (read.std(0) / np.sqrt(DRAWS) + 1e-6)
    assert np.abs(error).max() < 4.5
    if name == "random_k":  # E ||read - u||^2 = (d / k - 1) ||u||^2
        expected = (D / round(0.25 * D) - 1) * (u**2).sum()
    else:  # p (1 - p) of each number, times the square of a level
        s = 2 ** (settings["bits"] - 1) - 1
        unit = (np.abs(u).max() if "norm" not in settings else np.linalg.norm(u)) / s
        p = np.abs(u) / unit % 1
        expected = (p * (1 - p)).sum() * unit**2
    np.testing.assert_allclose(((read - u) ** 2).sum(1).mean(), expected, rtol=0.08)


EXACT = {
    "top_k": lambda m: compression.top_k(m, toys.NORM, share=1.0, error_feedback=False),
    "top_k with feedback": lambda m: compression.top_k(m, toys.NORM, share=1.0),
    "random_k": lambda m: compression.random_k(m, toys.NORM, share=1.0),
    "low_rank": lambda m: compression.low_rank(m, toys.NORM, rank=64),
    "messages": lambda m: downlink.messages(m, codecs.top_k(1.0)),
}


EXACT_OF = list(itertools.product((*wrapped.DIFFERENT, "ditto", "fedproto"), EXACT))
SLOW = [("scaffold", "low_rank")]


@pytest.mark.parametrize(("name", "exact"), exhaustive_but(SLOW, EXACT_OF))
def test_lossless_compression_equals_the_plain_method_bit_for_bit(name, exact):
    check_identity(toys.make(name), EXACT[exact])


def check_identity(plain, wrap):
    expected, _ = toys.player(plain)(KEYS, 0, 2)
    made, _ = toys.player(wrap(plain))(KEYS, 0, 2)
    toys.same(made.server, expected.server)
    toys.same(private_state.plain(made.private), expected.private)


def expected_bytes(name, leaves):
    """The bytes of a codec for an update of these shapes, as its docstring says."""
    sizes = [leaf.size for leaf in leaves]
    k = max(1, round(0.01 * sum(sizes)))
    if not sizes:
        return 0
    if name in ("top_k", "random_k"):
        return 4 * k + (2 * k if name == "top_k" else 4)
    if name == "low_rank":
        return 4 * sum(map(factors, leaves))
    return sum(-(-n // {"sign": 8, "qsgd": 1}[name]) + 4 for n in sizes)


def factors(leaf):
    if leaf.ndim < 2:
        return leaf.size
    m = leaf.shape[-1]
    return min(leaf.size, 2 * (leaf.size // m + m))


def check_upload(name, codec):
    """Checks uploads: the plain method's bytes, less those of its updates, plus their codes'."""
    plain = toys.make(name)
    up, down = toys.bytes_of(plain)
    state = jax.eval_shape(lambda: simulate.init(plain, KEYS, toys.C))
    updates = rehearsal.updates(plain, toys.NORM, state, toys.C)
    expected = up - tree.num_bytes(updates) + sum(expected_bytes(codec, u) for u in updates)
    assert toys.bytes_of(UP[codec](plain, toys.NORM)) == (expected, down)


def check_messages(name):
    """Leaves of floats take a byte per number and 4 more; statistics and others are not encoded."""
    plain = toys.make(name)
    state = jax.eval_shape(lambda: simulate.init(plain, KEYS, toys.C))
    expected = 0
    for exchange in plain.round:
        message = jax.eval_shape(exchange.send, state.server, jnp.int32(0))
        stats = [a.stats for a in jax.tree.leaves(message, is_leaf=is_model) if is_model(a)]
        numbers = [a for a in jax.tree.leaves(message) if a.dtype == jnp.float32]
        count = sum(a.size for a in numbers) - sum(a.size for a in jax.tree.leaves(stats))
        leaves = len(numbers) - len(jax.tree.leaves(stats))
        expected += tree.num_bytes(message) - 4 * count + count + 4 * leaves
    assert toys.bytes_of(downlink.qsgd(plain, toys.NORM)) == (toys.bytes_of(plain)[0], expected)


SENT = ("fedc2i", "fediir", "pfedhn")  # of several models, parts and a hypernetwork
CODEC_OF = zip(wrapped.METHODS, itertools.cycle(UP), strict=False)


@pytest.mark.parametrize(("name", "codec"), exhaustive_but(SENT, list(CODEC_OF)))
def test_bytes_are_those_of_the_encoded_updates_and_messages(name, codec):
    check_upload(name, codec)
    check_messages(name)


def test_upload_bytes_of_fedavg_are_those_of_the_encoded_updates():
    for codec in UP:
        check_upload("fedavg", codec)


def is_model(part):
    return isinstance(part, Weights)


def test_error_feedback_keeps_what_was_not_sent():
    """If all updates are equal, the decoded updates and the residual add up to their sum."""
    u, rounds = flat(U), 5
    method = compression.top_k(bare(), toys.TASK, share=0.1)
    (exchange,) = method.round
    client = tree.take(toys.POPULATION, 0)
    private = private_state.Beside((), [[jnp.zeros(D)]])
    total = np.zeros(D)
    for t in range(rounds):
        client = client._replace(private=private)
        sent, private = exchange.local(jnp.asarray(u), client, stand_in(KEYS.init))
        read = exchange.aggregate(jnp.asarray(u), tree.repeat(sent, 1), tree.repeat(client, 1))
        total += np.asarray(read[0])
        np.testing.assert_allclose(private.extra[0][0] + total, (t + 1) * u, rtol=1e-5)
    assert (total != 0).sum() > round(0.1 * D)  # not the same indices in every round


@pytest.mark.slow
def test_lost_uploads_count_as_sent_in_the_residual():
    """A client's residual does not depend on whether its uploads arrive in the first round."""
    method = compression.sign(toys.make("fedavg"), toys.NORM)
    lossy = toys.PLAN._replace(failures=Failures(dropout=0.5))
    kept, _ = toys.player(method)(KEYS, 0, 1)
    lost, sums = toys.player(method, plan=lossy)(KEYS, 0, 1)
    toys.same(lost.private, kept.private)
    assert tree.finite(lost)


STAGED = {
    "fedconcat": {"num_clusters": 2, "classifier_rounds": 2},
    "client2vec": {"index_epochs": 2},
}


@pytest.mark.parametrize("name", exhaustive_but([], STAGED))
def test_a_stage_starts_with_the_state_of_the_previous_stage(name, tmp_path, small_network):
    """With top-k of all numbers, stages equal the plain ones, although clients keep residuals."""
    sections = {
        "method": {"name": name, **STAGED[name]},
        "local": {"lr": 0.001},
        "run": {"rounds": 6, "eval_every": 3, "cohort": 3},
    }
    exact = {"compression": {"name": "top_k", "share": 1.0}}
    jobs = [toys.build(tmp_path, **sections, **more) for more in ({}, exact)]
    rows = (runner.run(job, quiet=True).metrics for job in jobs)
    for expected, row in zip(*rows, strict=True):
        for key in ("stage", "train_loss", "accuracy"):
            assert row.get(key) == expected.get(key)


@pytest.mark.slow
def test_an_aggregator_gets_decoded_updates():
    """Compression is wrapped around the aggregator; top-k of all numbers changes nothing."""
    robust = aggregators.trimmed_mean(toys.make("fedavg"), toys.NORM, trim=0.3)
    check_identity(robust, EXACT["top_k with feedback"])


def test_uploads_that_cannot_be_compressed_or_changed_are_rejected():
    def rejected(wrap, method):
        return complaint(lambda: toys.bytes_of(wrap(method)))

    method = compression.qsgd(toys.make("fedavg"), toys.NORM)
    for wrap in (
        lambda method: compression.sign(method, toys.NORM, error_feedback=True),
        lambda method: uplink.changed(method, lambda update, client, key: update),
    ):
        message = rejected(wrap, method)
        assert message == "its uploads are already compressed and cannot be changed"
    plain = toys.make("scaffold")
    (exchange,) = plain.round
    unknown = plain._replace(round=(exchange._replace(updates=None),))
    message = rejected(lambda method: compression.top_k(method, toys.NORM), unknown)
    assert "does not say what its uploads are updates of" in message


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (compression.top_k, {"share": 0.0}, "share"),
        (compression.qsgd, {"bits": 3}, "config.compression.bits cannot be 3; valid: 2, 4, 8"),
        (compression.low_rank, {"rank": 0}, "rank"),
        (downlink.qsgd, {"bits": 3}, "config.downlink.bits cannot be 3"),
    ],
)
def test_bad_settings_are_rejected(make, settings, message):
    assert message in complaint(make, toys.make("fedavg"), toys.NORM, **settings)
