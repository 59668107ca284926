"""What every method of METHODS must do. A new one of one stage is tested without a new test."""

import functools
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from fedjax_lab import evaluate, parallel, registry, simulate, streams, tree
from fedjax_lab.simulate import Program
from fedjax_lab.types import Method

PLAIN = [name for name in registry.METHODS if isinstance(toys.make(name), Method)]  # one stage
KEYS = streams.make_keys(jax.random.key(0))
BOTH = jax.vmap(streams.make_keys)(jnp.stack([jax.random.key(5), jax.random.key(0)]))


@functools.cache
def player(name):
    """play(start, count, state=None) of two vectorized seeds: one compilation for most tests."""
    method = toys.make(name)
    federation, population, plan = toys.pooled(method)

    @jax.jit
    def run(start, count, state):
        def one(keys, state):
            args = (
                simulate.Lane(federation, population, keys),
                state,
                simulate.no_progress(),
                start,
                count,
            )
            return simulate.play(simulate.Program(method, plan, toys.VECTORIZED), *args)

        return jax.vmap(one)(BOTH, state)

    def play(start, count, state=None):
        if state is None:
            state = jax.vmap(lambda keys: simulate.init(method, keys, toys.C))(BOTH)
        return run(jnp.int32(start), jnp.int32(count), state)

    return play


@functools.cache
def played(name):
    """The states and sums after six rounds."""
    return player(name)(0, 6)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAIN)
def test_learns_and_stays_finite(name):
    """60 rounds: everything finite, the loss falls, clients are scored well above chance."""
    method = toys.make(name)
    state, sums = player(name)(6, 54, played(name)[0])
    assert (np.asarray(sums.diverged) == -1).all()
    assert tree.finite(state)
    assert (sums.train_loss / 54 < played(name)[1].train_loss / 6).all()
    score = functools.partial(evaluate.score, simulate.Program(method, toys.PLAN, toys.VECTORIZED))
    state = tree.take(state, 1)
    scores = jax.jit(score)(simulate.Lane(toys.FEDERATION, toys.POPULATION, KEYS), state, 60)
    numbers = evaluate.summarize(scores, ("only",))
    assert numbers["accuracy"]["mean"] > 60
    assert 0 <= numbers["accuracy"]["worst10"] <= numbers["accuracy"]["mean"] <= 100
    assert len(numbers["accuracy"]["per_client"]) == toys.C
    assert numbers["global"] > 50


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAIN)
def test_rounds_may_be_cut_into_blocks(name):
    """Two rounds and then four are six, bit for bit; the sums too where they are handed on."""
    play = player(name)
    state, _ = play(0, 2)
    toys.same(play(2, 4, state)[0], played(name)[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAIN)
def test_a_seed_alone_on_a_mesh_with_chunks_gives_the_same_numbers(name):
    """Four devices, each with chunks of two, some places empty: equal to one vmap on one device.

    The devices divide the clients' state and the examples. And vmap over two seeds equals each seed
    alone.
    """
    method, federation = toys.make(name), toys.divided(4)
    mesh = parallel.make_mesh(4)
    strategy = parallel.on_mesh(mesh, parallel.chunked(2), by_client=True, by_row=True)
    if method.pooled:
        strategy, federation = parallel.sequential(), toys.FEDERATION
    state, sums = toys.player(method, strategy, federation=federation)(KEYS, 0, 3)
    expected, expected_sums = tree.take(player(name)(0, 3), 1)
    toys.close(state, expected, rtol=5e-4, atol=5e-5)
    toys.close(sums._replace(lane_steps=0), expected_sums._replace(lane_steps=0))


def test_a_seed_alone_gives_the_same_numbers():
    """The same without a mesh, to tell which of the two is wrong; all sums."""
    alone = toys.player(toys.make("fedavg"))(KEYS, 0, 3)
    toys.close(alone, tree.take(player("fedavg")(0, 3), 1))


@pytest.mark.parametrize("name", PLAIN)
def test_64_bit_mode_keeps_the_types_of_the_state(name):
    """Traced, not compiled: a loop over rounds refuses a state whose types change."""
    method = toys.make(name)
    federation, population, plan = toys.pooled(method)

    def play(keys, start, count):
        state = simulate.init(method, keys, toys.C)
        args = (
            simulate.Lane(federation, population, keys),
            state,
            simulate.no_progress(),
            start,
            count,
        )
        return simulate.play(simulate.Program(method, plan, toys.VECTORIZED), *args)

    with jax.enable_x64(True):
        state, sums = jax.eval_shape(play, KEYS, jnp.int32(0), jnp.int32(2))
    assert sums.train_loss.shape == ()
    assert jax.tree.leaves(state)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAIN)
def test_the_pool_of_examples_is_never_copied(name):
    """Neither for every client of an odd cohort on a mesh nor for every vectorized seed.

    A `cond` under `vmap` would do that: it becomes a `select` whose operands all have the new axis.
    Nor is it converted or reshaped as a whole: of that size a program has the pool itself alone.
    """
    method = toys.make(name)
    federation, population, plan = toys.pooled(method)
    federation = federation._replace(x=jnp.zeros((100_003, toys.D), jnp.uint8))
    scored = federation._replace(train=toys.FEDERATION.train)
    plan = plan._replace(example_shape=(2, toys.D // 2, 1))
    strategy = parallel.on_mesh(parallel.make_mesh(4), parallel.chunked(2))
    if method.pooled:
        strategy = parallel.sequential()

    def one(keys, state, x):
        program = Program(method, plan, strategy)
        to_train = simulate.Lane(federation._replace(x=x), population, keys)
        to_score = simulate.Lane(scored._replace(x=x), toys.POPULATION, keys)
        state, _ = simulate.play(program, to_train, state, simulate.no_progress(), 0, 2)
        return evaluate.score(program, to_score, state, 2)

    state = jax.eval_shape(jax.vmap(lambda keys: simulate.init(method, keys, toys.C)), BOTH)
    program = jax.jit(jax.vmap(one, (0, 0, None))).lower(BOTH, state, federation.x).as_text()
    types = set(re.findall(r"tensor<([\dx]+)x(\w+)>", program))
    sizes = {(shape, kind): np.prod([int(n) for n in shape.split("x")]) for shape, kind in types}
    large = [of for of, size in sizes.items() if size >= federation.x.size]
    assert large == [("x".join(map(str, federation.x.shape)), "ui8")]


@pytest.mark.parametrize("name", PLAIN)
def test_the_same_seed_gives_the_same_numbers(name):
    toys.same(player(name)(0, 6), played(name))


@pytest.mark.parametrize("name", registry.METHODS)
def test_docstring_names_paper_and_equations(name):
    """Each `(eq. N)` and `(Alg. N)` of the head stands once more, beside its line of code."""
    source = sys.modules[registry.METHODS[name].__module__]
    text = open(source.__file__).read()
    for equation in set(re.findall(r"\(((?:eq|Alg)\. \d+)\)", source.__doc__)):
        assert text.count(f"# {equation}") == 1, equation
    if name not in ("local", "central"):
        assert any(w in source.__doc__ for w in ("arXiv:", "doi:", "proceedings."))


def test_messages_are_counted_from_their_types():
    def sizes(name):
        method = toys.make(name)
        federation, population, plan = toys.pooled(method)
        state = jax.eval_shape(lambda: simulate.init(method, KEYS, toys.C))
        return simulate.message_bytes(
            simulate.Program(method, plan, toys.VECTORIZED),
            simulate.Lane(federation, population, KEYS),
            state,
        )

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
