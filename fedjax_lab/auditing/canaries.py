"""A lower bound of epsilon from canaries, to test the upper bound that an accountant states.

The privacy transform of a run is applied to FedAvg with a linear model and the loss -y <x, w> of an
example (x, y), whose gradient is -y x. The data of an example are thus its gradient, and a canary
is a client, or an example, with a large gradient along one axis of the model. The transform clips
it to S, so that a canary changes what is released by as much as the guarantee allows. The attacker
sees all models, and its score of a canary is the sum of the changes along the canary's axis over
all rounds in which it may take part, weighted by the correlation of the noise (a matched filter).

  many runs  One canary, which takes part in a random half of many runs, the seeds of one vmapped
             program. epsilon >= log((TPR - delta) / FPR), or the same with the roles exchanged, for
             bounds of both rates by Clopper and Pearson (Jagielski et al., NeurIPS 2020,
             arXiv:2006.07709; Nasr et al., S&P 2021, arXiv:2101.04535). Half of the runs choose the
             threshold.
  one run    m canaries with axes of their own, each of which takes part with probability 1/2. The
             r canaries with extreme scores are guessed. If the run were (epsilon, delta)-private,
             v or more correct guesses had at most the probability (Steinke et al., NeurIPS 2023,
             arXiv:2305.08846)
               P(B >= v) + 2 m delta max_i P(v > B >= v - i) / i,
             with B binomial of r trials and p = e^epsilon / (1 + e^epsilon).

Both bounds hold with a confidence of 95 %; jax-privacy computes the first one. A bound above the
stated epsilon shows, at this confidence, an error in the mechanism or in its accounting; a bound
below it shows none.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from scipy import linalg, optimize, special, stats

from fedjax_lab import optim
from fedjax_lab.auditing.rates import CONFIDENCE
from fedjax_lab.errors import BadInput, nearest, quoted
from fedjax_lab.experiment.federation import make_rows
from fedjax_lab.experiment.registry import bind
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.models.task import make_task
from fedjax_lab.simulation.simulator import simulator
from fedjax_lab.transforms import correlated_noise, libraries
from fedjax_lab.transforms.guarantee import Guarantee, Setup
from fedjax_lab.types import Federation, Objective, Task

AUDITED = ("central", "adaptive", "banded", "local", "example_level")
LARGE = 1e3  # norm of a canary's gradient, relative to S
SHARES = (0.01, 0.05, 0.2, 0.5)  # of the canaries that are guessed to be in, and to be out
RARE = 0.01  # largest 2 m delta of an audit with one run, whose bound is weak if it is larger
MOST = 1000  # canaries in a run
CHUNK = 256  # runs at once
ERROR = 1 - CONFIDENCE
HIGHEST = 50.0  # epsilon up to which a bound is searched for


class Bound(NamedTuple):
    """The result of an audit; the stated epsilon is too low if `lower` is above it."""

    audit: str  # "many runs" or "one run"
    stated: float  # epsilon after the last round, of the accountant
    lower: float  # bound of epsilon at a confidence of 95 %
    delta: float  # of both


class Game(NamedTuple):
    """Canaries in the runs of an audit, and how the attacker scores them."""

    setup: Setup
    examples: list[int]  # of each client; the first ones are the canaries
    labels: tuple[int, int]  # y of a canary that is out, and of one that is in
    turns: np.ndarray  # [T, canaries] whether a canary may take part in a round
    precision: np.ndarray  # [T, T] the inverse of the correlation of the noise over rounds


def many_runs(privacy: Mapping[str, Any], setup: Setup, runs: int = 4000, seed: int = 0) -> Bound:
    """The bound of epsilon from many runs with one canary, for the delta of the guarantee.

    With `local` and `example_level` the bound is of a client that takes part in all rounds.

    Args:
      privacy: the section `privacy` of a config: the name of a transform and its settings.
      setup: the clients, rounds and batches of the audited run.
      runs: the number of runs.
      seed: of the runs, and of which canaries take part.

    Raises:
      BadInput: the section has no noise, or names a transform that is not audited.
    """
    promise = _checked(privacy, setup)
    return _audit("many runs", privacy, setup, (runs, 1), promise.delta, seed)


def one_run(privacy: Mapping[str, Any], setup: Setup, seed: int = 0) -> Bound:
    """The bound of epsilon from one run, in which all clients or examples are canaries.

    There are at most 1000. The run of `local` has a model for each client, whose upload it is. The
    bound is of epsilon for a small delta, because m delta weakens it. See `many_runs` for the
    arguments and errors.
    """
    promise, name = _checked(privacy, setup), privacy["name"]
    m = min(MOST, _fewest(setup) if name == "example_level" else setup.num_clients)
    shape = (m, 1) if name == "local" else (1, m)
    return _audit("one run", privacy, setup, shape, min(promise.delta, RARE / (2 * m)), seed)


def _checked(privacy, setup):
    """The guarantee that is audited."""
    if privacy["name"] not in AUDITED:
        valid = nearest(privacy["name"], AUDITED)
        raise BadInput(f"no audit of config.privacy.name={quoted(privacy['name'])}; {valid}")
    promise = claimed(privacy, setup)
    if promise is None:
        raise BadInput("config.privacy adds no noise, so that there is no epsilon to audit")
    return promise


def _fewest(setup):
    """The number of examples of the smallest client, whose examples have the highest epsilon."""
    return min(n for n in setup.sizes if n)


def _audit(name, privacy, setup, shape, delta, seed):
    """The bound by so many runs and canaries in each of them: `shape`."""
    noise = claimed(privacy, setup).noise
    privacy = {**privacy, "noise": noise, "epsilon": 0.0, "delta": delta}
    game = design(privacy, setup, shape[1])
    included = np.random.default_rng(seed).random(shape) < 0.5
    seen = scores(privacy, game, included, seed)
    bound = many_runs_bound if name == "many runs" else one_run_bound
    lower = bound(seen.ravel(), included.ravel(), delta)
    (stated,) = claimed(privacy, game.setup).epsilons([setup.rounds])
    return Bound(name, stated, lower, delta)


def claimed(privacy: Mapping[str, Any], setup: Setup) -> Guarantee | None:
    """The guarantee that the transform states for FedAvg; None without noise."""
    return _method(privacy, canary_task(1), setup).extra.guarantee


def _method(privacy, task, setup):
    return bind("privacy", privacy)(fedavg(task), task, setup)


# The canaries.


def canary_task(canaries: int) -> Task:
    """A linear model with one weight for each canary, and the loss -y <x, w>."""
    objective = Objective(
        name="canaries",
        outputs=(1,),
        label=jax.ShapeDtypeStruct((), jnp.float32),
        losses=lambda logits, y: -logits[:, 0] * y,
    )
    layer = nn.Dense(1, use_bias=False, kernel_init=nn.initializers.zeros, name="head")
    return make_task(nn.Sequential([layer]), (canaries,), objective)


def design(privacy: Mapping[str, Any], setup: Setup, canaries: int) -> Game:
    """The canaries for a privacy transform: the first examples, or those of the first clients.

    A canary that is out has a gradient of zero or, if the guarantee is for clients with any two
    sets of data, the opposite gradient.
    """
    name, T = privacy["name"], setup.rounds
    is_client = name in ("central", "adaptive", "banded")
    of_client = _fewest(setup) if name == "example_level" else 1
    if not is_client:
        setup = setup._replace(num_clients=1, cohort=1, sizes=(of_client,))
    bands = privacy.get("bands", 1) if name == "banded" else 1
    any_data = name == "local" or privacy.get("sampling") == "fixed"
    groups, t = np.arange(canaries) % bands, np.arange(T)
    matrix = np.eye(T)
    if bands > 1:
        first = np.r_[correlated_noise.strategy(T, bands), np.zeros(T)][:T]
        matrix = np.tril(linalg.toeplitz(first))
    return Game(
        setup=setup,
        examples=[of_client] * setup.num_clients,
        labels=(-1 if any_data else 0, 1),
        turns=t[:, None] % bands == groups,
        precision=matrix.T @ matrix,
    )


def scores(
    privacy: Mapping[str, Any], game: Game, included: np.ndarray, seed: int = 0
) -> np.ndarray:
    """The attacker's scores of the canaries of each run, [runs, canaries]; higher means "in".

    included: [runs, canaries] bool, whether a canary takes part. seed: of the runs.
    """
    setup, task = game.setup, canary_task(included.shape[1])
    method = _method(privacy, task, setup)
    sim = simulator(
        method,
        task,
        _federation(game, included.shape[1], LARGE * privacy["clip"]),
        cohort=setup.cohort,
        batch_size=setup.batch_size,
        epochs=setup.epochs,
        optimizer=optim.sgd(1.0),
    )

    def model(state):
        return jax.tree.leaves(method.sends_scored(state.server, jnp.int32(0)))[0][:, 0]

    def run(key, labels):
        y = jnp.zeros_like(sim.data.federation.y).at[: len(labels)].set(labels)
        data = sim.data._replace(federation=sim.data.federation._replace(y=y))

        def one(state, t):
            after, _ = sim.round(key, state, t, data)
            return after, model(after) - model(state)

        _, changes = jax.lax.scan(one, sim.init(key), jnp.arange(setup.rounds))
        with jax.default_matmul_precision("highest"):
            return jnp.sum(game.turns * (jnp.float32(game.precision) @ changes), 0)

    keys = jax.random.split(jax.random.key(seed), len(included))
    labels = jnp.where(included, game.labels[1], game.labels[0]).astype(jnp.float32)
    each = jax.jit(lambda *of: jax.lax.map(lambda one: run(*one), of, batch_size=CHUNK))
    return np.asarray(each(keys, labels))


def _federation(game, canaries, norm):
    """The canaries' examples, each along an axis of its own; the others are zeros."""
    number = sum(game.examples)
    (rows,) = make_rows([np.split(np.arange(number), np.cumsum(game.examples)[:-1])])
    return Federation(
        x=jnp.float32(norm * np.eye(number, canaries)),
        y=jnp.zeros(number),
        domain=jnp.zeros(number, jnp.int32),
        center=jnp.float32(0),
        scale=jnp.float32(1),
        train=rows,
        validation=None,
        test=rows,
        global_test=None,
        unseen=None,
    )


# The bounds.


def many_runs_bound(scores: np.ndarray, included: np.ndarray, delta: float) -> float:
    """The lower bound of epsilon from one canary in each of many runs.

    scores: [N], one of each run; higher means "in". included: [N] bool.
    """
    library = libraries.import_library("jax_privacy.auditing", "jax-privacy", "an audit")
    auditor = library.CanaryScoreAuditor(scores[included], scores[~included])
    split = library.Split(seed=0)
    return float(auditor.epsilon_clopper_pearson(ERROR, delta, False, threshold_strategy=split))


def one_run_bound(scores: np.ndarray, included: np.ndarray, delta: float) -> float:
    """The lower bound of epsilon from the canaries of one run: the highest one of `SHARES`.

    scores: [m], one of each canary; higher means "in". included: [m] bool.
    """
    ordered, m = included[np.argsort(scores)], len(scores)
    sides = {max(1, int(share * m)) for share in SHARES}

    def bound(side):
        correct = np.sum(~ordered[:side]) + np.sum(ordered[m - side :])
        return guesses_bound(m, 2 * side, int(correct), delta, ERROR / len(sides))

    return max(map(bound, sides))


def guesses_bound(m: int, guesses: int, correct: int, delta: float, error: float = ERROR) -> float:
    """The lower bound of epsilon from the number of correct guesses about m canaries.

    error: the probability that the bound is above epsilon.
    """

    def excess(epsilon):
        """The probability of so many correct guesses, minus `error`."""
        binomial = stats.binom(guesses, special.expit(epsilon))
        tails = binomial.sf(correct - 1 - np.arange(correct + 1))  # P(B >= v - i)
        rare = np.max((tails[1:] - tails[0]) / np.arange(1, correct + 1), initial=0)
        return tails[0] + 2 * m * delta * rare - error

    return 0.0 if excess(0) >= 0 else float(optimize.brentq(excess, 0, HIGHEST))
