"""Secure aggregation: the mean up to rounding, bytes, lost clients, and rejected settings."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from inputs import complaint
from naive import KEYS
from slow_cases import exhaustive_but

from fedjax_lab import sampling, streams, tree
from fedjax_lab.engine import parallel
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import registry
from fedjax_lab.simulation import failures
from fedjax_lab.transforms import attacks, compression, rehearsal, secure
from fedjax_lab.transforms.secure import Fixed
from fedjax_lab.transforms.server_state import Server
from fedjax_lab.types import Failures, Method

PLAN = toys.PLAN._replace(cohort=6)
LOSSY = PLAN._replace(failures=Failures(dropout=0.3))
FINE, COARSE = {"bits": 32, "limit": 16.0}, {"bits": 16, "limit": 8.0}


def secured(method, **settings):
    return secure.secure_sum(method, toys.TASK, **settings)


def made(name, **hyper):
    """A method whose clients have equal shares, on a model without running statistics."""
    return toys.make(name, toys.TASK, **hyper)._replace(sample=sampling.equal)


def server_after(method, plan=PLAN, rounds=1, strategy=toys.VECTORIZED):
    """The server state of the method, without the counters of a transform."""
    server = toys.player(method, plan=plan, strategy=strategy)(KEYS, 0, rounds)[0].server
    return server.base if isinstance(server, Server) else server


def through(fixed, u, share=1.0, key=KEYS.init):
    words = secure.encode(fixed, [jnp.asarray(u)], jnp.float32(share), key)
    return words[0], np.asarray(secure.decode(fixed, words, jnp.float32(share))[0])


@pytest.mark.parametrize("fixed", [Fixed(16, 2.0), Fixed(32, 16.0)])
def test_numbers_are_decoded_within_a_step(fixed):
    u = np.float32(np.random.default_rng(0).normal(size=1000) * 0.5)
    words, read = through(fixed, u, 0.25)
    assert words.dtype == secure.WORDS[fixed.bits]
    assert (np.abs(read - u) < fixed.step / 0.25 + 1e-6).all()


def test_rounding_is_unbiased_and_numbers_beyond_the_limit_are_clipped():
    fixed, u = Fixed(16, 8.0), np.full(40_000, -0.3 * 8 / 2**14, np.float32)
    _, read = through(fixed, u)
    assert set(np.unique(read / fixed.step)) == {-1, 0}
    assert abs(read.mean() / fixed.step + 0.3) < 0.01
    u = np.float32([np.inf, -np.inf, np.nan, 3, -1.5])
    assert through(Fixed(32, 2.0), u)[1].tolist() == [2, -2, 0, 2, -1.5]


@pytest.mark.parametrize("bits", [16, 32])
def test_the_largest_sum_fits(bits):
    """All clients send minus the limit, and their shares sum to 1."""
    fixed, m = Fixed(bits, 4.0), 7
    words = jax.vmap(lambda u: secure.encode(fixed, u, 1 / m, KEYS.init))(jnp.full((m, 9), -4.0))
    read = secure.decode(fixed, jnp.sum(words, 0, dtype=words.dtype), jnp.float32(1))
    np.testing.assert_allclose(read, -4, atol=m * fixed.step)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "settings", "plan"), [("scaffold", FINE, LOSSY), ("fedavgm", COARSE, PLAN)]
)
def test_methods_get_the_same_mean_as_without_secure_aggregation(name, settings, plan):
    """Numbers differ by at most a step for each client / the arrived share."""
    plain = made(name)
    expected = server_after(plain, plan)
    arrived = 0.5 if plan.failures.dropout else 1.0  # at least
    bound = plan.cohort * Fixed(**settings).step / arrived
    got = server_after(secured(plain, threshold=0.0, **settings), plan)
    toys.close(got, expected, rtol=1e-6, atol=bound + 1e-6)
    assert jax.tree.structure(got) == jax.tree.structure(expected)


SUMMED = ("fedavg", "fedavgm", "feddyn", "fedopt", "fedper", "fedprox", "moon", "scaffold")
REJECTED = {
    "fednova": "values that are not updates",
    "fedproto": "values that are not updates",
    "ifca": "models of their own",
    "pfedhn": "several clients at once",
    "central": "several clients at once",
    "local": "upload nothing",
}


@pytest.mark.parametrize("name", exhaustive_but({*SUMMED[:2], *REJECTED}, registry.METHODS))
def test_methods_whose_server_needs_more_than_a_mean_are_rejected(name):
    """The rounds are only traced."""
    method = toys.make(name, toys.TASK._replace(embeddings=toys.NORM.embeddings))
    if not isinstance(method, Method):
        return
    try:
        toys.bytes_of(secured(method), plan=LOSSY)
    except BadInput as error:
        lines = [REJECTED[name]] if name in REJECTED else REJECTED.values()
        assert any(line in str(error) for line in lines) and name not in SUMMED
        return
    assert name not in REJECTED


# The server's side, with an update u [D] of each client.

M, D = 6, 50
ARRIVED = np.array([1, 1, 0, 1, 0, 1], bool)
SHARE = np.float32([0.1, 0.2, 0.25, 0.3, 0.05, 0.1])
U = np.float32(np.random.default_rng(1).normal(size=(M, D)))
MEAN = SHARE[ARRIVED] @ U[ARRIVED] / SHARE[ARRIVED].sum()
ATTACKERS = np.array([0, 1, 1, 1, 0, 0], bool)  # which clients attack


FIRST = secure.Counters(jnp.int32(0), jnp.float32(0))


def received(wrap):
    """What the server learns of each client [M, D], the sums not unmasked, the share clipped."""
    (exchange,) = wrap(toys.bare(toys.make("fedavg"))).round
    cohort = tree.take(toys.POPULATION, jnp.arange(M))._replace(weight=jnp.asarray(SHARE))
    cohort = cohort._replace(attacks=jnp.asarray(ATTACKERS))

    def round(u):
        def local(u, client):
            work = rehearsal.stand_in(toys.TASK)
            work = work._replace(upload_key=lambda: streams.extra(KEYS.local, client.id))
            message = exchange.send(Server(u, 0), client.id)
            return exchange.local(message, client, work)[0]

        sent, clients = failures.received(jax.vmap(local)(u, cohort), cohort, jnp.asarray(ARRIVED))
        return exchange.aggregate(Server(jnp.zeros((M, D)), FIRST), sent, clients)

    server = jax.jit(round)(jnp.asarray(U))
    return np.asarray(server.base), int(server.extra.aborted), float(server.extra.clipped)


@pytest.mark.slow
def test_the_server_gets_the_mean_as_the_upload_of_every_client():
    """The mean of the arrived uploads by share, for any number of neighbors."""
    few, many = (received(partial(secured, neighbors=k, threshold=0.0))[0] for k in (2, 5))
    bound = M * Fixed(**FINE).step / SHARE[ARRIVED].sum()
    np.testing.assert_allclose(few[ARRIVED], np.tile(MEAN, (4, 1)), atol=bound + 1e-6)
    toys.same(few, many)
    assert (few[~ARRIVED] == 0).all()


@pytest.mark.slow
def test_a_round_that_cannot_be_unmasked_changes_nothing():
    """Four of six uploads have arrived: at most 0.8 of the five neighbors of any client."""
    after, aborted, _ = received(partial(secured, neighbors=5, threshold=0.8))
    assert (after == 0).all() and aborted == 1
    after, aborted, _ = received(partial(secured, neighbors=5, threshold=0.5))
    assert (after[ARRIVED] != 0).all() and aborted == 0


def test_colluding_attackers_change_their_updates_before_masking():
    def attacked(method):
        return secured(attacks.inner_product(method, toys.TASK, epsilon=3.0), neighbors=5)

    honest = U[ARRIVED & ~ATTACKERS].mean(0)
    sent = np.where(ATTACKERS[:, None], -3 * honest, U)
    expected = SHARE[ARRIVED] @ sent[ARRIVED] / SHARE[ARRIVED].sum()
    np.testing.assert_allclose(received(attacked)[0][0], expected, atol=1e-5)


@pytest.mark.exhaustive
def test_the_sum_does_not_depend_on_the_execution_strategy():
    """The sum of integers is exact, in chunks and on several devices."""
    method = secured(made("scaffold"))
    mesh = parallel.on_mesh(parallel.make_mesh(4), parallel.chunked(2))
    toys.close(server_after(method, LOSSY, 3), server_after(method, LOSSY, 3, mesh))


def sizes_of(**settings):
    """Bytes (up, down) besides those of the words and of the model."""
    plain = made("fedavg")
    up, down = toys.bytes_of(plain)
    method = secured(plain, **settings)
    (exchange,) = method.round  # the cohort of the toy federation is smaller than the protocol's
    exchange = exchange._replace(aggregate=lambda server, uploads, cohort: server)
    secure_up, secure_down = toys.bytes_of(method._replace(round=(exchange,)))
    words = up * settings.get("bits", 32) // 32
    return secure_up - words, secure_down - down


@pytest.mark.parametrize(
    ("clients", "numbers", "published"), [(2**10, 2**20, 1.73), (2**14, 2**24, 1.98)]
)
def test_bytes_match_the_published_protocol(clients, numbers, published):
    """Bonawitz et al.: 2 n a_K + (5 n - 4) a_S + m log2(R) bits of a client, where a_K = a_S = 256.

    With 16-bit numbers that is 1.73 and 1.98 times the bytes of the numbers (their abstract).
    """
    up, down = sizes_of(neighbors=clients - 1)
    share = 4  # bytes of the client's share in the mean; its part of its own secret is not sent
    assert up + down == 32 * (2 * clients + 5 * clients - 4) + share - 32
    bits = 8 * (up + down) + numbers * (16 + np.log2(clients))
    assert bits / (16 * numbers) == pytest.approx(published, abs=5e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bits": 8}, "config.aggregator.bits cannot be 8; valid: 16, 32"),
        ({"limit": 0.0}, "config.aggregator.limit must be above 0"),
        ({"threshold": 1.0}, "config.aggregator.threshold must be at least 0 and below 1"),
    ],
)
def test_bad_settings_are_rejected(settings, message):
    assert message in complaint(secure.secure_sum, made("fedavg"), toys.TASK, **settings)


def test_sums_that_are_not_possible_are_rejected():
    with_statistics = secure.secure_sum(toys.make("fedavg"), toys.NORM)
    assert "statistics of BatchNorm" in complaint(toys.bytes_of, with_statistics)
    both = compression.top_k(secured(made("fedavg")), toys.TASK, error_feedback=False)
    assert "its uploads are already masked" in complaint(toys.bytes_of, both)
    message = complaint(secure._check_sum, Fixed(16, 1.0), 2**14 + 1)
    assert "at most 16384 clients in a round, but there are 16385" in message


@pytest.mark.parametrize("bits", [16, 32])
def test_the_share_of_clipped_numbers_is_counted(bits):
    u = np.float32(np.random.default_rng(1).normal(size=(3, 1000)))
    u[np.abs(np.abs(u) - 1) < 0.01] = 0  # words of 16 bits cannot tell these from clipped ones
    fixed, share = Fixed(bits, 1.0), jnp.asarray([0.5, 0.25, 0.25])
    keys = jax.random.split(KEYS.init, 3)
    words = jax.vmap(partial(secure.encode, fixed))([jnp.asarray(u)], share, keys)
    sent = secure.Sealed(words, share, None, None)
    assert secure._clipped(fixed, sent) == pytest.approx(np.mean(np.abs(u) > 1))


def test_rounding_the_numbers_of_a_tiny_client_is_no_clipping():
    fixed, share = Fixed(16, 1.0), jnp.asarray([1.0 - 1e-4, 1e-4])
    keys = jax.random.split(KEYS.init, 2)
    words = jax.vmap(partial(secure.encode, fixed))([jnp.full((2, 1000), 0.3)], share, keys)
    assert secure._clipped(fixed, secure.Sealed(words, share, None, None)) == 0
