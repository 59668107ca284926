"""The check of a method: what every method of the registry is held to."""

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

from fedjax_lab import parallel, simulate, tree
from fedjax_lab.checks.failure import CheckFailed, check, check_same
from fedjax_lab.checks.stages import check_stages
from fedjax_lab.checks.toy import C, K, toy_task
from fedjax_lab.checks.trial import ROUNDS, SEEDS, Trial, keys_of
from fedjax_lab.errors import BadInput
from fedjax_lab.registry import make_method, name_of
from fedjax_lab.simulate import Lane, Program
from fedjax_lab.types import Method, Stages

LEARNED = 54  # more rounds, after which a method has learned the toy
CHIPS = "v5e:2x2"  # for which it is compiled where libtpu is installed


def check_method(method: str | Callable, **settings) -> Method | Stages:
    """Raises CheckFailed, with the reason, unless the simulator can rely on the method.

    On a toy federation of eight unequal clients, five a round, the method must learn and stay
    finite; its numbers must not depend on how rounds are cut into blocks, on an interruption, on
    other seeds that are computed together, on chunks of clients, or on the devices that share the
    clients (as many as there are, at most four); the types of its state must not change; and its
    messages must be arrays, whose bytes are counted. Where libtpu is installed, a round must
    compile for four chips of a TPU. Of a method with stages each stage is played.

    Args:
      method: (task, *, settings) -> Method or Stages; its name or a reference does as well.
      **settings: of the method, beside its defaults.

    Returns the method that was made for the toy.
    """
    name = method if isinstance(method, str) else name_of("method", method)
    try:
        made = make_method(name, toy_task(), **settings)
        if isinstance(made, Method):
            trial = Trial(made)
            for one in CHECKS:
                one(trial)
        else:
            check_stages(made)
    except BadInput as error:  # what a run would say
        raise CheckFailed(str(error)) from error
    return made


def check_types(trial: Trial) -> None:
    """A round keeps the types of the state, in 64-bit mode too, and messages are arrays."""
    lane = Lane(trial.federation, trial.population, keys_of(0))
    program = Program(trial.method, trial.plan, parallel.vectorized())

    def play(keys, start, count):
        state = simulate.init(trial.method, keys, C)
        of_seed = lane._replace(keys=keys), state, simulate.no_progress()
        return simulate.play(program, *of_seed, start, count)

    with jax.enable_x64(True):
        state, _ = jax.eval_shape(play, lane.keys, jnp.int32(0), jnp.int32(2))
    check(bool(jax.tree.leaves(state)), "its state has no arrays; `init` must give a State")
    simulate.message_bytes(program, lane, state)  # fails where a message is not made of arrays


def check_repeats(trial: Trial) -> None:
    """The same seed gives the same numbers."""
    what = "the same seed gives other numbers in a second run; random numbers must come from keys"
    check_same(trial.play(0, ROUNDS), trial.played, what)


def check_blocks(trial: Trial) -> None:
    """Two rounds and then the others are all of them, bit for bit."""
    state, _ = trial.play(0, 2)
    what = "two rounds and then four give other numbers than six at once"
    check_same(trial.play(2, ROUNDS - 2, state)[0], trial.played[0], what)


def check_resumes(trial: Trial) -> None:
    """A state that was saved and read again is the same in every bit."""
    from fedjax_lab.running.checkpoint import Checkpoints, placed

    state = trial.played[0]
    leaves, treedef = jax.tree.flatten(state)
    with tempfile.TemporaryDirectory() as scratch:
        checkpoints = Checkpoints(Path(scratch) / "checkpoints")
        checkpoints.save(ROUNDS, leaves)
        checkpoints.wait()
        _, saved = checkpoints.newest()
        read = jax.tree.unflatten(treedef, placed(saved, leaves))
    check_same(read, state, "the state changes when it is saved and read again")


def check_strategies(trial: Trial) -> None:
    """Chunks, the devices that share the clients, and other seeds leave the numbers alone.

    Up to the order of sums.
    """
    devices = min(4, jax.device_count())
    state, sums = trial.alone(devices, 3)
    expected, expected_sums = tree.take(trial.play(0, 3), -1)
    what = (
        f"one seed with two clients at a time on {devices} devices gives other numbers than"
        f" {len(SEEDS)} seeds at once"
    )
    check_same(state, expected, what, rtol=5e-4, atol=5e-5)
    sums, expected_sums = (a._replace(lane_steps=a.steps) for a in (sums, expected_sums))
    check_same(sums, expected_sums, what, rtol=2e-4, atol=2e-5)


def check_learns(trial: Trial) -> None:
    """Everything stays finite, the loss falls, clients are scored well above chance."""
    state, sums = trial.play(ROUNDS, LEARNED, trial.played[0])
    first = np.asarray(trial.played[1].train_loss) / ROUNDS
    last = np.asarray(sums.train_loss) / LEARNED
    for diverged in (int(np.max(a.diverged)) for a in (trial.played[1], sums)):
        check(diverged < 0, f"its numbers are not finite in round {diverged + 1}")
    check(bool(tree.finite(state)), "its state is not finite after the last round")
    check(
        bool((last < first).all()),
        f"the training loss does not fall: {first.max():.3g} in the first {ROUNDS} rounds,"
        f" {last.max():.3g} in the {LEARNED} after them",
    )
    scores = trial.scores(state, ROUNDS + LEARNED)
    mean, chance = scores["accuracy"]["mean"], 100 / K
    check(
        mean > 60,
        f"clients' own models classify {mean:.1f} % of their test examples, where chance is"
        f" {chance:.0f} % and FedAvg has more than 60 %",
    )
    check(
        scores["global"] > 50,
        f"what `newcomer` gives classifies {scores['global']:.1f} % of the global test set",
    )


def check_compiles_for_tpu(trial: Trial) -> None:
    """A round compiles for four chips, where their compiler is installed and can be started."""
    if importlib.util.find_spec("libtpu") is None:
        return
    from jax.experimental import topologies

    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # no question to the server of a cloud
    try:
        devices = topologies.get_topology_desc(CHIPS, "tpu").devices
    except Exception as error:  # another process may have the library
        warnings.warn(f"the round was not compiled for a TPU: {error}", stacklevel=2)
        return
    strategy = parallel.on_mesh(parallel.make_mesh(devices), parallel.vectorized())
    keys = keys_of(0)
    state = jax.eval_shape(lambda: simulate.init(trial.method, keys, C))
    lane = Lane(trial.federation, trial.population, keys)
    args = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=strategy.sharding),
        (lane, state, simulate.no_progress(), jnp.int32(0), jnp.int32(1)),
    )
    play = partial(simulate.play, Program(trial.method, trial.plan, strategy))
    lowered = jax.jit(play, out_shardings=strategy.sharding).lower(*args)
    try:
        lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        raise CheckFailed(f"a round does not compile for four chips of a TPU: {error}") from error


CHECKS = (
    check_types,
    check_repeats,
    check_blocks,
    check_resumes,
    check_strategies,
    check_learns,
    check_compiles_for_tpu,
)
