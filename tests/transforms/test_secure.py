"""Secure aggregation: the plain mean within its rounding, bytes, lost clients, what cannot be."""

from functools import partial

import jax
import jax.numpy as jnp
import naive
import numpy as np
import pytest
import toys
from commands import call, comparable
from inputs import complaint

from fedjax_lab import failures, parallel, registry, sampling, streams, tree
from fedjax_lab.errors import BadInput
from fedjax_lab.transforms import attacks, compression, downlink, rehearsal, secure
from fedjax_lab.transforms.secure import Fixed
from fedjax_lab.transforms.server_state import Server
from fedjax_lab.types import Method

KEYS = naive.KEYS
PLAN = toys.PLAN._replace(cohort=6)
LOSSY = PLAN._replace(dropout=0.3)
FINE, COARSE = {"bits": 32, "limit": 16.0}, {"bits": 16, "limit": 2.0}


def secured(method, **settings):
    return secure.secure_sum(method, toys.TASK, **settings)


def made(name, **hyper):
    """A method whose clients have equal shares, on a model without running statistics."""
    return toys.make(name, toys.TASK, **hyper)._replace(sample=sampling.equal)


def server_after(method, plan=PLAN, rounds=1, strategy=toys.VECTORIZED):
    """What the method's server knows, and not what a transform counts there."""
    server = toys.player(method, plan=plan, strategy=strategy)(KEYS, 0, rounds)[0].server
    return server.base if isinstance(server, Server) else server


# Fixed-point numbers.


def through(fixed, u, share=1.0, key=KEYS.init):
    words = secure.encode(fixed, [jnp.asarray(u)], jnp.float32(share), key)
    return words[0], np.asarray(secure.decode(fixed, words, jnp.float32(share))[0])


@pytest.mark.parametrize("fixed", [Fixed(16, 2.0), Fixed(32, 16.0)])
def test_a_number_is_read_within_a_step(fixed):
    u = np.float32(np.random.default_rng(0).normal(size=1000) * 0.5)
    words, read = through(fixed, u, 0.25)
    assert words.dtype == secure.WORDS[fixed.bits]
    assert (np.abs(read - u) < fixed.step / 0.25 + 1e-6).all()


def test_rounding_is_right_in_the_mean():
    fixed, u = Fixed(16, 8.0), np.full(40_000, -0.3 * 8 / 2**14, np.float32)
    _, read = through(fixed, u)
    assert set(np.unique(read / fixed.step)) == {-1, 0}
    assert abs(read.mean() / fixed.step + 0.3) < 0.01


def test_what_is_too_large_is_clipped_and_what_is_no_number_is_nothing():
    u = np.float32([np.inf, -np.inf, np.nan, 3, -1.5])
    assert through(Fixed(32, 2.0), u)[1].tolist() == [2, -2, 0, 2, -1.5]


@pytest.mark.parametrize("bits", [16, 32])
def test_the_largest_sum_fits(bits):
    """Everybody sends the limit: the sum of all shares is 1."""
    fixed, m = Fixed(bits, 4.0), 7
    words = jax.vmap(lambda u: secure.encode(fixed, u, 1 / m, KEYS.init))(jnp.full((m, 9), -4.0))
    read = secure.decode(fixed, jnp.sum(words, 0, dtype=words.dtype), jnp.float32(1))
    np.testing.assert_allclose(read, -4, atol=m * fixed.step)


# Whole methods.


def check_mean(name, plan, settings, **hyper):
    """One round: each number is within M steps of the plain one, over the shares that arrived."""
    plain = made(name, **hyper)
    expected = server_after(plain, plan)
    fixed = Fixed(**settings)
    arrived = 0.5 if plan.dropout else 1.0  # at least
    bound = plan.cohort * fixed.step / arrived
    got = server_after(secured(plain, threshold=0.0, **settings), plan)
    toys.close(got, expected, rtol=1e-6, atol=bound + 1e-6)
    assert jax.tree.structure(got) == jax.tree.structure(expected)


@pytest.mark.slow
@pytest.mark.parametrize("plan", [PLAN, LOSSY])
@pytest.mark.parametrize("settings", [FINE, COARSE | {"limit": 8.0}])
@pytest.mark.parametrize("name", ["fedavg", "fedprox", "scaffold", "fedavgm"])
def test_methods_get_the_plain_mean(name, settings, plan):
    check_mean(name, plan, settings)


SUMMED = ("fedavg", "fedavgm", "feddyn", "fedopt", "fedper", "fedprox", "moon", "scaffold")
REFUSED = {
    "fednova": "values that are not updates",
    "fedproto": "values that are not updates",
    "ifca": "models of their own",
    "pfedhn": "several clients at once",
    "central": "several clients at once",
    "local": "upload nothing",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", registry.METHODS)
def test_a_method_whose_server_needs_more_than_a_mean_is_refused(name):
    method = toys.make(name, toys.TASK._replace(labels=toys.NORM.labels))
    if not isinstance(method, Method):
        return
    try:
        state, sums = toys.player(secured(method), plan=LOSSY)(KEYS, 0, 2)
    except BadInput as error:
        lines = [REFUSED[name]] if name in REFUSED else REFUSED.values()
        assert any(line in str(error) for line in lines) and name not in SUMMED
    else:
        assert name not in REFUSED and tree.finite(state)


# The server's end, with an update u [D] of each client.

M, D = 6, 50
ARRIVED = np.array([1, 1, 0, 1, 0, 1], bool)
SHARE = np.float32([0.1, 0.2, 0.25, 0.3, 0.05, 0.1])
U = np.float32(np.random.default_rng(1).normal(size=(M, D)))
MEAN = SHARE[ARRIVED] @ U[ARRIVED] / SHARE[ARRIVED].sum()
THEY = np.array([0, 1, 1, 1, 0, 0], bool)  # who attacks


def received(wrap):
    """What the server of a wrapped method learns of each client [M, D], and sums not unmasked."""
    (exchange,) = wrap(toys.bare(toys.make("fedavg"))).round
    cohort = tree.take(toys.POPULATION, jnp.arange(M))._replace(weight=jnp.asarray(SHARE))
    cohort = cohort._replace(attacks=jnp.asarray(THEY))

    def round(u):
        def local(u, client):
            work = rehearsal.stand_in(toys.TASK)
            work = work._replace(upload_key=lambda: streams.extra(KEYS.local, client.id))
            message = exchange.send(Server(u, 0), client.id)
            return exchange.local(message, client, work)[0]

        sent, clients = failures.received(jax.vmap(local)(u, cohort), cohort, jnp.asarray(ARRIVED))
        return exchange.aggregate(Server(jnp.zeros((M, D)), jnp.int32(0)), sent, clients)

    server = jax.jit(round)(jnp.asarray(U))
    return np.asarray(server.base), int(server.extra)


def test_everybody_counts_as_having_sent_the_mean():
    """Of those who arrived, by share; whoever shares masks with whom."""
    few, many = (received(partial(secured, neighbors=k, threshold=0.0))[0] for k in (2, 5))
    bound = M * Fixed(**FINE).step / SHARE[ARRIVED].sum()
    np.testing.assert_allclose(few[ARRIVED], np.tile(MEAN, (4, 1)), atol=bound + 1e-6)
    toys.same(few, many)
    assert (few[~ARRIVED] == 0).all()


def test_a_round_that_cannot_be_unmasked_changes_nothing():
    """Four of six have arrived: not more than 0.8 of the five others of any client."""
    after, aborted = received(partial(secured, neighbors=5, threshold=0.8))
    assert (after == 0).all() and aborted == 1
    after, aborted = received(partial(secured, neighbors=5, threshold=0.5))
    assert (after[ARRIVED] != 0).all() and aborted == 0


def test_attackers_who_work_together_change_what_they_mask():
    def attacked(method):
        return secured(attacks.inner_product(method, toys.TASK, epsilon=3.0), neighbors=5)

    honest = U[ARRIVED & ~THEY].mean(0)
    sent = np.where(THEY[:, None], -3 * honest, U)
    expected = SHARE[ARRIVED] @ sent[ARRIVED] / SHARE[ARRIVED].sum()
    np.testing.assert_allclose(received(attacked)[0][0], expected, atol=1e-5)


@pytest.mark.slow
def test_however_it_is_run_the_sum_is_the_same():
    """Masks of clients in other chunks, and on other devices, cancel too."""
    method, expected = secured(made("scaffold")), None
    mesh = parallel.make_mesh(4)
    for strategy in (
        toys.VECTORIZED,
        parallel.chunked(2),
        parallel.sequential(),
        parallel.on_mesh(mesh, parallel.chunked(2)),
    ):
        server = server_after(method, LOSSY, 3, strategy)
        expected = expected or server
        toys.close(server, expected)


@pytest.mark.slow
def test_messages_may_be_compressed():
    wrapped = secured(downlink.qsgd(made("fedavg"), toys.TASK))
    plain = downlink.qsgd(made("fedavg"), toys.TASK)
    toys.close(server_after(wrapped), server_after(plain), atol=1e-6)


# Bytes.


def sizes_of(**settings):
    """Bytes (up, down) besides those of the words and of the model."""
    plain = made("fedavg")
    up, down = toys.bytes_of(plain)
    secure_up, secure_down = toys.bytes_of(secured(plain, **settings))
    words = up * settings.get("bits", 32) // 32
    return secure_up - words, secure_down - down


@pytest.mark.parametrize(
    ("clients", "numbers", "published"), [(2**10, 2**20, 1.73), (2**14, 2**24, 1.98)]
)
def test_bytes_are_those_of_the_protocol(clients, numbers, published):
    """Bonawitz et al.: 2 n a_K + (5 n - 4) a_S + m log2(R) bits of a client, where a_K = a_S = 256.

    With 16-bit numbers that is 1.73 and 1.98 times what the numbers take alone (their abstract).
    """
    up, down = sizes_of(neighbors=clients - 1)
    share = 4  # of the mean, and the client's share of its own secret, which does not travel
    assert up + down == 32 * (2 * clients + 5 * clients - 4) + share - 32
    log_R = 16 + np.log2(clients)
    assert (8 * (up + down) + numbers * log_R) / (16 * numbers) == pytest.approx(
        published, abs=5e-3
    )


def test_bytes_follow_from_neighbors_and_bits():
    assert sizes_of(neighbors=4) == (32 * (2 + 3 * 4) + 4, 32 * (2 + 2) * 4)
    assert sizes_of(neighbors=4, bits=16) == sizes_of(neighbors=4)


# What cannot be.


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"bits": 8}, "config.aggregator.bits must be 16 or 32, got 8"),
        ({"limit": 0.0}, "config.aggregator.limit must be above 0 and finite, got 0.0"),
        ({"limit": float("inf")}, "config.aggregator.limit must be above 0 and finite, got inf"),
        ({"neighbors": 0}, "config.aggregator.neighbors must be above 0, got 0"),
        ({"threshold": 1.0}, "config.aggregator.threshold must be at least 0 and below 1, got 1.0"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, said):
    assert said in complaint(secured, made("fedavg"), **settings)


def test_what_has_no_common_sum_is_refused():
    assert "models of their own" in complaint(secured, toys.make("ifca"))
    assert "several clients at once" in complaint(secured, toys.make("pfedhn"))
    with_statistics = secure.secure_sum(toys.make("fedavg"), toys.NORM)
    said = complaint(lambda: toys.bytes_of(with_statistics))
    assert "statistics of BatchNorm), but secure aggregation only sums updates" in said


def test_masked_words_cannot_be_compressed():
    both = compression.top_k(secured(made("fedavg")), toys.TASK, error_feedback=False)
    assert "its uploads are already masked" in complaint(lambda: toys.bytes_of(both))


def test_more_clients_than_words_hold_are_refused():
    said = complaint(secure._check_sum, Fixed(16, 1.0), 2**14 + 1)
    assert (
        "bits=16 can hold the sum of at most 16384 clients in a round, but there are 16385" in said
    )


# In a config.


@pytest.mark.slow
def test_a_config_names_it(tmp_path):
    toys.write_examples(tmp_path / "data.npz")
    config = toys.write_config(tmp_path, run={"rounds": 2, "eval_every": 1})
    losses = []
    for name in ("none", "secure_sum"):
        folder = tmp_path / name
        assert (
            call(f"--config={config}", f"--config.aggregator.name={name}", f"--workdir={folder}")
            == 0
        )
        losses.append([row["train_loss"] for row in comparable(folder)])
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert [row["recorded"]["aborted_sums"] for row in comparable(tmp_path / "secure_sum")] == [
        0,
        0,
    ]
