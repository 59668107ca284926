"""Tests that hold for every method of METHODS; a new one with one stage needs no new test."""

import functools
import re
import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from inputs import complaint
from slow_cases import exhaustive_but

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
from fedjax_lab.methods._index_naive import head
from fedjax_lab.models.task import make_task
from fedjax_lab.simulate import Program
from fedjax_lab.types import Method

PLAIN = [name for name in registry.METHODS if isinstance(toys.make(name), Method)]  # one stage
KEYS = streams.make_keys(jax.random.key(0))
BOTH = jax.vmap(streams.make_keys)(jnp.stack([jax.random.key(5), jax.random.key(0)]))


SLOW = [check_blocks, check_learns]
COMPILED = [check_repeats, check_resumes]
DIFFERENT = "fedavg fedbn fedproto ifca knn_per pfedhn scaffold".split()


def methods_and_checks():
    """Yields (name, check). Checks that compile are slow tests except for the DIFFERENT methods.

    Strategies, which need most compilations, are checked exhaustively.
    """
    for name in PLAIN:
        for check in (check_types, *COMPILED, *SLOW):
            slow = check in SLOW or (check in COMPILED and name not in DIFFERENT)
            yield pytest.param(name, check, marks=[pytest.mark.slow] * slow)
    yield from exhaustive_but(DIFFERENT, [(name, check_strategies) for name in PLAIN])


@functools.cache
def trial(name):
    """Returns a trial of two vectorized seeds, so that most checks need one compilation."""
    return Trial(toys.make(name))


@pytest.mark.parametrize(("name", "check"), [*methods_and_checks()])
def test_every_method_passes_its_checks(name, check):
    check(trial(name))


def test_every_check_is_used():
    here = {check_types, *COMPILED, *SLOW, check_strategies}
    assert here | {check_compiles_for_tpu} == {*CHECKS}  # the last one: see tests/accelerators


@pytest.mark.parametrize("name", exhaustive_but(DIFFERENT, PLAIN))
def test_the_pool_of_examples_is_never_copied(name):
    """It is copied neither for each client of an odd cohort on a mesh nor for each vmapped seed.

    A `cond` under `vmap` would copy it: it becomes a `select` whose operands all have the new axis.
    The pool is not converted or reshaped either: no other array of the program is as large.
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


class NoBias(nn.Module):
    @nn.compact
    def __call__(self, x):
        z = nn.relu(nn.Dense(5)(x))
        return nn.Dense(toys.K, use_bias=False, name="head")(z), z


NO_BIAS = make_task(NoBias(), (toys.D,), toys.K)


@pytest.mark.parametrize(
    "name", ["cfl", "ccvr", "fedgh", "feddbe", "fedpac", "fedetf", "fedrod", "fedc2i"]
)
def test_methods_that_use_the_head_accept_one_without_a_bias(name):
    """These methods use the parameters of the head."""
    method = toys.make(name, NO_BIAS)
    stages = [method] if isinstance(method, Method) else [s.method for s in method(2)]
    state = simulate.init(stages[0], KEYS, toys.C)
    program = simulate.Program(stages[-1], toys.PLAN, toys.VECTORIZED)
    lane = simulate.Lane(toys.FEDERATION, toys.POPULATION, KEYS)
    jax.eval_shape(functools.partial(simulate.play_round, program, lane), state, jnp.int32(0))


@pytest.mark.parametrize("name", ["fediir", "fedconcat", "fedconcat_id"])
def test_methods_that_need_a_bias_reject_a_head_without_one(name):
    expected = (
        f"method {name} needs a model whose head has a bias; choose another config.model.name"
    )
    assert complaint(toys.make, name, NO_BIAS) == expected


def test_the_index_local_weights_does_not_need_a_bias():
    w = NO_BIAS.init(KEYS.init)
    toys.same(head((0, w)), w.params["head"]["kernel"].ravel())


@pytest.mark.parametrize("name", registry.METHODS)
def test_nan_settings_are_rejected(name):
    """nan is neither below nor above any bound, so that a range check could miss it."""
    for key, default in registry.default_settings(registry.METHODS[name]).items():
        if type(default) is float:
            error = complaint(toys.make, name, **{key: float("nan")})
            assert error.startswith(f"config.method.{key} must ") and error.endswith(", got nan")


@pytest.mark.parametrize(
    ("name", "setting", "value", "must"),
    [
        ("cfl", "gamma", 1.0, "be at least 0 and below 1"),
        ("elastic", "tau", 1.5, "be from 0 to 1"),
        ("fedadmm", "server_lr", 0.0, "be above 0"),
        ("fedala", "share", 0.0, "be above 0 and at most 1"),
        ("fedcm", "alpha", 0.0, "be above 0 and at most 1"),
        ("fedcm", "server_lr", 0.0, "be above 0"),
        ("fedetf", "scale", 0.0, "be above 0"),
        ("fedpac", "solver_steps", 0, "be above 0"),
        ("pfedme", "lam", 0.0, "be above 0"),
        ("pfedme", "inner_steps", 0, "be above 0"),
        ("pfedme", "inner_lr", 0.0, "be above 0"),
        ("pfedme", "beta", 0.0, "be above 0"),
    ],
)
def test_settings_that_prevent_learning_are_rejected(name, setting, value, must):
    error = complaint(toys.make, name, **{setting: value})
    assert error == f"config.method.{setting} must {must}, got {value}"


@pytest.mark.parametrize("name", registry.METHODS)
def test_docstring_names_paper_and_equations(name):
    """Each `(eq. N)` and `(Alg. N)` of the module docstring is also a comment at its code, once."""
    source = sys.modules[registry.METHODS[name].__module__]
    text = open(source.__file__).read()
    for equation in set(re.findall(r"\(((?:eq|Alg)\. \d+)\)", source.__doc__)):
        assert text.count(f"# {equation}") == 1, equation
    if name not in ("local", "central"):
        assert any(w in source.__doc__ for w in ("arXiv:", "doi:", "proceedings."))


@pytest.mark.slow
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
    for name in ("ditto", "apfl", "pfedme", "per_fedavg", "fedala", "fedphp", "fedamp", "fml"):
        assert sizes(name) == (model, model), name
    assert sizes("fedbabu") == (model - head, model - head)
    numbers = params // 4  # each mask is a byte a parameter
    assert sizes("fedcac") == (model + numbers, model)
    features, count = 4 * toys.K * 16, 4 * toys.K
    assert sizes("fedpac") == (model + 2 * features + count + 4, model + features + count)
    assert sizes("feddbe") == (model + 4 * 16, model + 4 * 16 + 4)
    assert sizes("fedgh") == (features + count, head)
    assert sizes("fd") == (4 * toys.K * toys.K + count, 4 * toys.K * toys.K + count)
    assert sizes("fedetf") == (model + 4, model + 4)
    assert sizes("local") == sizes("central") == (0, 0)
    for name in ("fedntd", "fedsam", "fedexp", "fedadmm", "feddecorr"):
        assert sizes(name) == (model, model), name
    assert sizes("fedcm") == (model + 4, model + params)
    assert sizes("mimelite") == (model + params, model + params + 4)
    assert sizes("feddisco") == (model + 4, model)
    assert sizes("elastic") == (model + params, model)
    assert sizes("fedem") == (3 * model, 3 * model)
    assert sizes("cfl") == sizes("knn_per") == (model, model)
    assert sizes("fedfomo") == (model + 5 * 8, 5 * (model + 4))
