"""The check of a method, which every method of the registry must pass."""

import importlib.util
import os
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import defaults, tree
from fedjax_lab.engine import parallel
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment.registry import name_of
from fedjax_lab.simulation import contract, simulate
from fedjax_lab.testing.failure import CheckFailed, check, check_same
from fedjax_lab.testing.padding import check_equal, check_padding, player
from fedjax_lab.testing.stage_checks import check_stages
from fedjax_lab.testing.toy import C, K, toy_method
from fedjax_lab.testing.trial import ROUNDS, SEEDS, Trial, exchanged, keys_of
from fedjax_lab.types import Method, Stages

LEARNED = 54  # further rounds, after which a method must have learned the toy problem
REPEATS = (
    "a second run of the same seed, in which two seeds computed together change places, differs;"
    " all random numbers must come from the given keys"
)
CHIPS = "v5e:2x2"  # TPU chips for which a round is compiled if libtpu is installed


@defaults.restored()
def check_method(method: str | Callable, *, level: str = "full", **settings) -> Method | Stages:
    """Trains a method on a toy problem and checks that the simulator can rely on it.

    On a federation of eight clients of different sizes, five per round, the method must learn and
    its numbers must stay finite. They must not depend on the division of rounds into blocks, on an
    interruption, on other seeds that are computed together, on the number of clients computed at a
    time, or on the devices that divide the clients (all that exist, at most eight). The types of
    the state must not change, and messages must be arrays, so that their bytes can be counted. If
    libtpu is installed, a round must compile for four chips of a TPU. If the method has stages, all
    of them are played, with fewer of these checks. A method that refuses a model without low-rank
    adapters (`needs.check(task, "adapters")`) gets one with them.

    Args:
      method: (task, *, settings) -> Method or Stages; or the name of a method, or a reference.
      level: "full", or "quick" while a method is being written: after two rounds, only types,
        sampling, padding, finite numbers and random numbers are checked; not the learning. Methods
        with stages always get all of their checks.
      **settings: values that replace the defaults of the method's settings.

    Returns the method that was made for the toy problem. Raises CheckFailed, with the reason, if a
    check fails.
    """
    name = method if isinstance(method, str) else name_of("method", method)
    try:
        check(level in LEVELS, f"level cannot be {level!r}; choose from {', '.join(LEVELS)}")
        made = toy_method(name, **settings)
        if isinstance(made, Method):
            trial = Trial(made)
            for one in LEVELS[level]:
                one(trial)
        else:
            check_stages(made)
    except BadInput as error:  # as a run would raise
        raise CheckFailed(str(error)) from error
    return made


def check_types(trial: Trial) -> None:
    """Checks that a round keeps the types of the state, also in 64-bit mode.

    Messages must be arrays.
    """
    keys = keys_of(0)

    def play(keys, start, count):
        return trial.play_seed(keys, simulate.init(trial.method, keys, C), start, count)

    with jax.enable_x64(True):
        state, _ = jax.eval_shape(play, keys, jnp.int32(0), jnp.int32(2))
    check(bool(jax.tree.leaves(state)), "the state has no arrays; `init` must return a State")
    trial.message_bytes  # noqa: B018 - fails if a message does not consist of arrays


def check_cohorts(trial: Trial) -> None:
    """Checks that the method draws clients that exist, with shares that sum to 1."""
    _check_draws(trial, trial.played[0])


def _check_draws(trial, states):
    server = tree.take(states, -1).server
    lane = trial.lane(keys_of(SEEDS[-1]))
    for t in range(3):
        drawn = simulate.draw(trial.program, lane, server, jnp.int32(t))
        contract.check_cohort("the sampling of the method", *drawn, len(trial.population.id))


def check_quickly(trial: Trial) -> None:
    """Checks sampling, padding, that numbers are finite, and that they depend only on the seed."""
    play, play_padded = (player(trial, times) for times in (1, 2))
    few = play(trial.keys)
    check(bool(tree.finite(few)), "the state or a loss is not finite after two rounds")
    _check_draws(trial, few[0])
    check_same(exchanged(play(exchanged(trial.keys))), few, REPEATS)
    check_equal(few, play_padded(trial.keys))


def check_repeats(trial: Trial) -> None:
    """Checks that the same seed gives the same bits, whatever seed is computed next to it."""
    check_same(trial.swapped(0, ROUNDS, trial.start()), trial.played, REPEATS)


def check_resumes(trial: Trial) -> None:
    """Checks that two rounds followed by four give the same bits as six at once.

    The state after two rounds is saved and read in between.
    """
    from fedjax_lab.running.storage.checkpoint import Checkpoints

    state, _ = trial.play(0, 2, trial.start())
    with tempfile.TemporaryDirectory() as scratch:
        checkpoints = Checkpoints(Path(scratch) / "checkpoints")
        checkpoints.save(2, state)
        checkpoints.wait()
        _, read = checkpoints.newest(lambda rounds: state)
    check_same(read, state, "the state changes when it is saved and read again")
    what = "two rounds followed by four give other numbers than six rounds at once"
    check_same(trial.play(2, ROUNDS - 2, read)[0], trial.played[0], what)


def check_strategies(trial: Trial, devices: int | None = None) -> None:
    """Checks that chunks, devices and vectorized seeds do not change the numbers.

    Differences due to the order of sums are allowed.

    devices: the number of devices that divide the clients; None: all that exist, at most eight.
    """
    devices = devices or min(8, jax.device_count())
    state, sums = trial.alone(devices, 3)
    expected, expected_sums = tree.take(trial.play(0, 3, trial.start()), -1)
    what = (
        f"one seed with two clients at a time on {devices} devices gives other numbers than"
        f" {len(SEEDS)} seeds at once"
    )
    check_same(state, expected, what, rtol=5e-4, atol=5e-5)
    sums, expected_sums = (a._replace(lane_steps=a.steps) for a in (sums, expected_sums))
    check_same(sums, expected_sums, what, rtol=2e-4, atol=2e-5)


def check_learns(trial: Trial) -> None:
    """Checks that numbers stay finite, the loss falls, and the accuracy is well above chance."""
    state, sums = trial.play(ROUNDS, LEARNED, trial.played[0])
    first = np.asarray(trial.played[1].train_loss) / ROUNDS
    last = np.asarray(sums.train_loss) / LEARNED
    for diverged in (int(np.max(a.diverged)) for a in (trial.played[1], sums)):
        check(diverged < 0, f"a loss or the state is not finite in round {diverged + 1}")
    check(bool(tree.finite(state)), "the state is not finite after the last round")
    check(
        bool((last < first).all()),
        f"the training loss does not fall: its mean is {first.max():.3g} in the first {ROUNDS}"
        f" rounds and {last.max():.3g} in the next {LEARNED}",
    )
    scores = trial.scores(state, ROUNDS + LEARNED)
    mean, chance = scores["accuracy"]["mean"], 100 / K
    check(
        mean > 60,
        f"the clients' own models classify {mean:.1f} % of their test examples correctly, but must"
        f" exceed 60 %, as FedAvg does; chance is {chance:.0f} %",
    )
    check(
        scores["global"] > 50,
        f"the model that `newcomer` returns classifies {scores['global']:.1f} % of the global test"
        " set correctly, but must exceed 50 %",
    )


def check_compiles_for_tpu(trial: Trial) -> None:
    """Checks that a round compiles for four TPU chips, if their compiler can be started here."""
    if importlib.util.find_spec("libtpu") is None:
        return
    from jax.experimental import topologies

    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # do not query a cloud's metadata server
    try:
        devices = topologies.get_topology_desc(CHIPS, "tpu").devices
    except Exception as error:  # another process may be using the library
        warnings.warn(f"the round was not compiled for a TPU: {error}", stacklevel=2)
        return
    strategy = parallel.on_mesh(parallel.make_mesh(devices), parallel.vectorized())
    lane = trial.lane(keys_of(0))
    state = jax.eval_shape(lambda: simulate.init(trial.method, lane.keys, C))
    args = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=strategy.sharding),
        (lane, state, simulate.no_progress(), jnp.int32(0), jnp.int32(1)),
    )
    play = partial(simulate.play, trial.program._replace(strategy=strategy))
    lowered = jax.jit(play, out_shardings=strategy.sharding).lower(*args)
    try:
        lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        raise CheckFailed(f"a round does not compile for four chips of a TPU: {error}") from error


CHECKS = (
    check_types,
    check_padding,
    check_cohorts,
    check_repeats,
    check_resumes,
    check_strategies,
    check_learns,
    check_compiles_for_tpu,
)
LEVELS = {"full": CHECKS, "quick": (check_types, check_quickly)}
