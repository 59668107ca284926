"""What every method of METHODS must do. A new one of one stage is tested without a new test."""

import functools
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from fedjax_lab import evaluate, methods, parallel, simulate, tree
from fedjax_lab.types import Method

KEYS = simulate.make_keys(jax.random.key(0))
PLAIN = [name for name in methods.METHODS if isinstance(toys.make(name), Method)]  # one stage


@functools.cache
def player(name):
    """One compilation for most tests of a method."""
    return toys.player(toys.make(name))


@functools.cache
def played(name):
    """The state and sums after six rounds."""
    return player(name)(KEYS, 0, 6)


@pytest.mark.parametrize("name", PLAIN)
def test_learns_and_stays_finite(name):
    """60 rounds: everything finite, the loss falls, clients are scored well above chance."""
    method = toys.make(name)
    state, sums = player(name)(KEYS, 6, 54, played(name)[0])
    assert int(sums.diverged) == -1
    assert tree.finite(state)
    assert float(sums.train_loss) / 54 < float(played(name)[1].train_loss) / 6
    score = functools.partial(evaluate.score, method, toys.PLAN, toys.VECTORISED)
    scores = jax.jit(score)(toys.FEDERATION, toys.PEOPLE, KEYS, state, 60)
    numbers = evaluate.summarise(scores, ("only",))
    assert numbers["accuracy"]["mean"] > 60
    assert 0 <= numbers["accuracy"]["worst10"] <= numbers["accuracy"]["mean"] <= 100
    assert len(numbers["accuracy"]["per_client"]) == toys.C
    assert numbers["global"] > 50


@pytest.mark.parametrize("name", PLAIN)
def test_rounds_may_be_cut_into_blocks(name):
    """Two rounds and then four are six, bit for bit; the sums too where they are handed on."""
    play = player(name)
    state, _ = play(KEYS, 0, 2)
    toys.same(play(KEYS, 2, 4, state)[0], played(name)[0])


@pytest.mark.parametrize("name", PLAIN)
def test_seeds_are_vectorised_outside(name):
    """vmap over two seeds equals each seed alone."""
    method = toys.make(name)
    federation, people, plan = toys.pooled(method)

    def run(seed):
        keys = simulate.make_keys(seed)
        state = simulate.init(method, keys, toys.C)
        none = simulate.no_progress()
        args = federation, people, keys, state, none, jnp.int32(0), jnp.int32(2)
        return simulate.play(method, plan, toys.VECTORISED, *args)

    seeds = jnp.stack([jax.random.key(5), jax.random.key(0)])
    both = jax.jit(jax.vmap(run))(seeds)
    toys.close(jax.tree.map(lambda a: a[1], both), player(name)(KEYS, 0, 2))


@pytest.mark.parametrize("name", PLAIN)
def test_mesh_and_chunks_give_the_same_numbers(name):
    """Four devices, each with chunks of two, some places empty: equal to one vmap on one device."""
    method = toys.make(name)
    strategy = parallel.on_mesh(parallel.make_mesh(4), parallel.chunked(2))
    if method.pooled:
        strategy = parallel.sequential()
    state, sums = toys.player(method, strategy)(KEYS, 0, 3)
    expected, expected_sums = player(name)(KEYS, 0, 3)
    toys.close(state, expected)
    np.testing.assert_allclose(sums.train_loss, expected_sums.train_loss, rtol=1e-4)


@pytest.mark.parametrize("name", PLAIN)
def test_the_same_seed_gives_the_same_numbers(name):
    toys.same(player(name)(KEYS, 0, 6), played(name))


@pytest.mark.parametrize("name", methods.METHODS)
def test_docstring_names_paper_and_equations(name):
    """Each `(eq. N)` and `(Alg. N)` of the head stands once more, beside its line of code."""
    source = sys.modules[methods.METHODS[name].__module__]
    text = open(source.__file__).read()
    for equation in set(re.findall(r"\(((?:eq|Alg)\. \d+)\)", source.__doc__)):
        assert text.count(f"# {equation}") == 1, equation
    assert len(text.splitlines()) <= 200
    if name not in ("local", "central"):
        assert any(w in source.__doc__ for w in ("arXiv:", "doi:", "proceedings."))


def test_messages_are_counted_from_their_types():
    def sizes(name):
        method = toys.make(name)
        federation, people, plan = toys.pooled(method)
        state = jax.eval_shape(lambda: simulate.init(method, KEYS, toys.C))
        return simulate.message_bytes(method, plan, federation, people, state)

    weights = jax.eval_shape(toys.NORM.init, KEYS.init)
    model = tree.num_bytes(weights)
    norm = 4 * 16 * 4  # scale, bias, mean, var of 16 units, 4 bytes each
    assert sizes("fedavg") == sizes("fedprox") == (model, model)
    assert sizes("fedbn") == (model - norm, model - norm)
    head = 4 * (16 + 1) * toys.K
    assert sizes("fedper") == sizes("fedrep") == (model - head, model - head)
    assert sizes("lg_fedavg") == (head, head)
    assert sizes("fedrod") == sizes("finetune") == (model, model)
    prototypes = 4 * toys.K * (16 + 1)
    assert sizes("fedproto") == (prototypes, prototypes)
    assert sizes("ifca") == (model + 4, 2 * model)
    for name in ("fedavgm", "fedopt", "feddyn", "fedlc", "fedrs", "moon"):
        assert sizes(name) == (model, model), name
    params = tree.num_bytes(weights.params)
    assert sizes("scaffold") == (model + params, model + params)
    assert sizes("fednova") == (model + 4, model)
    assert sizes("fediir") == (model + head + 4, 2 * model + head)
    assert sizes("local") == sizes("central") == (0, 0)
