"""Client-level differential privacy with correlated noise: DP-FTRL by banded matrix factorization.

  C       lower triangular and Toeplitz, b bands c_0, ..., c_{b-1}, columns of norm at most 1
  z_t     noise N(0, (sigma S)^2 I) of round t
  x_t     (C^-1 z)_t = (z_t - c_1 x_{t-1} - ... - c_{b-1} x_{t-b+1}) / c_0
  u_t     1/m (sum_{i drawn} u_i' + x_t)                                           (release)

Choquette-Choo et al., NeurIPS 2023, arXiv:2306.08153, with the view of the server that Kairouz et
al. take (ICML 2021, arXiv:2103.00039): a model is the sum of all updates so far. The noise is
correlated so that later rounds cancel part of the noise of earlier rounds, which leaves less noise
in those sums. The bands are computed by jax-privacy; they minimize the mean squared error of all
sums. As in `privacy`, the u_i' are clipped updates, and the method gets u_t.

Client i is in group i mod b, and round t draws each client of group t mod b with probability
m / ceil(C / b). A client thus takes part at most once in b rounds. Two rounds of a client lie in
columns of C that have no row in common. For any models in between, the rounds of a group are
therefore as private as the same number of rounds, ceil(rounds / b), of the Gaussian mechanism with
noise multiplier sigma on a Poisson sample of the group (arXiv:2306.08153). `accounting` composes
these rounds. It assumes that groups do not depend on the clients' data and that clients are drawn
independently. A group of fewer than ceil(C / b) clients counts as a group of that size, whose last
client has an update of zero.
"""

import functools
import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import sampling as cohorts
from fedjax_lab import streams, tree, wire
from fedjax_lab.errors import BadInput
from fedjax_lab.ranges import BelowOne, NotNegative, Positive, checked
from fedjax_lab.simulation import needs
from fedjax_lab.transforms import accounting, libraries, privacy, rehearsal, server_state
from fedjax_lab.transforms.accounting import Run
from fedjax_lab.transforms.guarantee import Guarantee, Setup, noise_multiplier
from fedjax_lab.transforms.server_state import Server
from fedjax_lab.types import Array, Client, Method, PyTree, Task

NEIGHBORS = "populations of as many clients, one of whom has updates of zero in one of them"


class Correlated(NamedTuple):
    """The state from which the server draws the noise of the next round."""

    key: Array
    releases: Array  # [] int32, the number of releases so far
    bands: Array  # [b] c_0, ..., c_{b-1}, as they were when the run began
    noises: tuple[PyTree, ...]  # x_{t-1}, ..., x_{t-b+1}, with the shapes and sharding of u_t


@checked("privacy")
def banded(
    method: Method,
    task: Task,
    setup: Setup,
    *,
    clip: Positive[float] | Literal["inf"] = 1.0,
    noise: NotNegative[float] = 0.0,
    epsilon: NotNegative[float] | Literal["inf"] = 0.0,
    delta: BelowOne = 0.0,
    bands: Positive[int] = 4,
) -> Method:
    """The server adds noise that is correlated between rounds to the mean of the clipped updates.

    clip: S, the largest norm of a client's update over all its leaves; larger updates are scaled
        down to it.
    noise: sigma, the standard deviation of z_t in the sum, relative to S; 0: the smallest one for
        the given epsilon.
    epsilon: the epsilon of the run after its last round, given instead of noise; inf: no noise.
    delta: the delta of the guarantee; 0: C^-1.1 for C clients.
    bands: b, the number of bands and of groups; a client takes part at most once in b rounds; 1 is
        `privacy.central`.
    """
    clip = float(clip)
    _check_bands(method, setup, bands)
    if bands == 1:
        return privacy.central(
            method, task, setup, clip=clip, noise=noise, epsilon=epsilon, delta=delta
        )
    guarantee = _promise(setup, bands, noise, float(epsilon), delta)
    if guarantee is not None:
        sigma = noise_multiplier(guarantee, clip)
        privacy.check_separate(method, guarantee)
        std = sigma * clip / setup.cohort
        method = with_correlated_noise(method, task, setup, std, strategy(setup.rounds, bands))
    method = privacy.central(method, task, setup, clip=clip, epsilon=math.inf)

    def sample(key, server, population, m):
        return in_turn(key, server.extra.releases, population, m, bands)

    return method._replace(sample=sample).having(guarantee=guarantee)


def _check_bands(method, setup, bands):
    largest = min(setup.num_clients // setup.cohort, setup.rounds)
    if not 1 <= bands <= max(1, largest):
        raise BadInput(
            f"config.privacy.bands must be from 1 to {max(1, largest)}, got {bands}: it is the"
            f" number of groups that take turns, and each of them needs at least {setup.cohort} of"
            f" the {setup.num_clients} clients and one of the {setup.rounds} rounds"
        )
    if bands > 1:
        needs.check(method, "one_exchange", remedy="; choose config.privacy.name=central")


def _promise(setup, bands, noise, epsilon, delta) -> Guarantee | None:
    """The guarantee for a group, which takes part in every b-th round; None without noise."""

    def turns(rounds):
        return -(-rounds // bands)

    group = turns(setup.num_clients)
    run = Run(group, setup.cohort, "poisson", cohorts.room(setup.cohort, group))
    of_group = setup._replace(rounds=turns(setup.rounds))
    promised = accounting.promise(run, of_group, noise, epsilon, delta, NEIGHBORS)
    if promised is None:
        return None

    def epsilons(rounds):
        return promised.epsilons([turns(number) for number in rounds])

    return promised._replace(epsilons=epsilons, rounds=setup.rounds)  # of its bands


def in_turn(key: Array, t: Array, population: Client, m: int, bands: int) -> tuple[Array, Array]:
    """Draws each client of group t mod b with probability m / ceil(C / b).

    Returns (ids, shares) in the format of `sampling.poisson`.
    """
    count = population.n.shape[0]
    places = jnp.zeros(-(-count // bands))  # of a group; the last one may have no client
    numbers, shares = cohorts.poisson(key, (), population._replace(n=places), m)
    ids = numbers * bands + t % bands
    drawn = (shares > 0) & (ids < count)
    return jnp.minimum(ids, count - 1), cohorts.equal_shares(drawn)


# The noise.


@functools.lru_cache(maxsize=64)
def strategy(rounds: int, bands: int) -> tuple[float, ...]:
    """Returns the bands c_0, ..., c_{b-1}, whose norm is 1.

    Any other bands, such as those computed for another run, would be as private but noisier.
    """
    library = libraries.import_library("jax_privacy.matrix_factorization.toeplitz", "jax-privacy")
    with jax.ensure_compile_time_eval():
        made = np.asarray(library.optimize_banded_toeplitz(rounds, bands), np.float64)
    return tuple((made / np.linalg.norm(made)).tolist())


def with_correlated_noise(
    method: Method, task: Task, setup: Setup, std: float, bands: tuple[float, ...]
) -> Method:
    """The method whose server adds x_t to the update of round t, the same in all uploads.

    std: the standard deviation of an entry of z_t.
    bands: c_0, ..., c_{b-1}.
    """

    def first(key):
        state = jax.eval_shape(lambda key: method.init(key, setup.num_clients), key)
        (shapes,) = rehearsal.updates(method, task, state, setup.num_clients)
        zero = [jnp.zeros(a.shape, jnp.float32) for a in shapes]
        return Correlated(
            streams.noise(key), jnp.int32(0), jnp.float32(bands), (zero,) * (len(bands) - 1)
        )

    def listen(exchange, server, uploads, clients):
        id, upload = tree.take((clients.id, uploads), 0)
        references = wire.references(exchange, exchange.send(server.base, id), id, upload)
        update = wire.updates(references, upload)
        noise, after = next_noise(server.extra, std, update)
        upload = wire.with_updates(references, upload, tree.add(update, noise))
        base = exchange.aggregate(server.base, tree.repeat(upload, len(clients.id)), clients)
        return Server(base, after)

    return server_state.with_state(method, first, listen)


def next_noise(state: Correlated, std: float, like: list[Array]) -> tuple[list[Array], Correlated]:
    """Returns (x_t, the next state).

    std: the standard deviation of an entry of z_t.
    like: arrays with the shapes of x_t.
    """
    library = libraries.import_library("jax_privacy.matrix_factorization.toeplitz", "jax-privacy")
    key = jax.random.fold_in(state.key, state.releases)
    z = privacy.with_noise([jnp.zeros(a.shape, jnp.float32) for a in like], key, std)
    past = jax.tree.map(lambda *noises: jnp.stack(noises), *state.noises)
    with jax.default_matmul_precision("highest"):
        x, past = library.inverse_as_streaming_matrix(state.bands).multiply_next(z, past)
    noises = tuple(tree.take(past, j) for j in range(len(state.noises)))
    return x, state._replace(releases=state.releases + 1, noises=noises)
