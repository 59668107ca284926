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
from fedjax_lab.checks.methods import (
    CHECKS,
    check_blocks,
    check_compiles_for_tpu,
    check_learns,
    check_repeats,
    check_resumes,
    check_strategies,
    check_types,
)
from fedjax_lab.checks.trial import Trial
from fedjax_lab.simulate import Program
from fedjax_lab.types import Method

PLAIN = [name for name in registry.METHODS if isinstance(toys.make(name), Method)]  # one stage
KEYS = streams.make_keys(jax.random.key(0))
BOTH = jax.vmap(streams.make_keys)(jnp.stack([jax.random.key(5), jax.random.key(0)]))


SLOW = [check_blocks, check_strategies, check_learns]
QUICK = [check_types, check_repeats, check_resumes]
MARKED = [pytest.param(check, marks=pytest.mark.slow) for check in SLOW]


@functools.cache
def trial(name):
    """Two vectorized seeds: one compilation for most checks."""
    return Trial(toys.make(name))


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize(
    "check", [*QUICK, *(pytest.param(c, marks=pytest.mark.slow) for c in SLOW)]
)
def test_what_every_method_is_held_to(name, check):
    check(trial(name))


def test_all_checks_are_made():
    assert {*QUICK, *SLOW, check_compiles_for_tpu} == {*CHECKS}  # the last: tests/accelerators


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
