"""Tests that hold for every method of METHODS; a new one with one stage needs no new test."""

import functools
import re
import sys
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from inputs import complaint
from naive import KEYS
from slow_cases import exhaustive_but, in_ci, slow_but

from fedjax_lab import streams, tree
from fedjax_lab.engine import parallel
from fedjax_lab.experiment import registry
from fedjax_lab.experiment.stages import lay_out
from fedjax_lab.models import hypernetwork
from fedjax_lab.models.task import make_task
from fedjax_lab.simulation import evaluate, simulate
from fedjax_lab.simulation.simulate import Program
from fedjax_lab.testing import toy
from fedjax_lab.testing.methods import (
    CHECKS,
    check_cohorts,
    check_compiles_for_tpu,
    check_learns,
    check_padding,
    check_repeats,
    check_resumes,
    check_strategies,
    check_types,
)
from fedjax_lab.testing.stage_checks import check_stages
from fedjax_lab.testing.trial import Trial
from fedjax_lab.types import Method

PLAIN = [name for name in registry.METHODS if isinstance(toys.make(name), Method)]  # one stage
STAGED = [name for name in registry.METHODS if name not in PLAIN]
# Biases before a batch normalization have no gradient: FedFed's Adam moves them by rounding errors.
TASKS = {"fedfed": toys.TASK}
ASYNCHRONOUS = {"ca2fl", "fedasync", "fedbuff"}  # tests/test_asynchronous.py
BOTH = jax.vmap(streams.make_keys)(jnp.stack([jax.random.key(5), jax.random.key(0)]))

# The checks of one compiled program, in which two seeds are vectorized.
ONE_PROGRAM = (check_repeats, check_resumes, check_learns)
IN_CI = """
    central fedbn fedfomo hfedf ifca scaffold
""".split()  # the most different ones, beside FedAvg
OTHERS = [name for name in PLAIN if name != "fedavg"]
# A second program, of one seed alone, is compiled for one method of each kind: without private
# state, with layers, parts of models or numbers as private state, with two exchanges, one by one,
# with validation rows and random numbers of the server, pooled, and with its own scoring.
MESH_OF_8 = "fedfomo fediir pfedhn scaffold".split()
IN_CHUNKS = "central fedbn fedem fedproto ifca knn_per".split()


@pytest.mark.parametrize("name", ["fedavg", *exhaustive_but(IN_CI, OTHERS)])
def test_every_method_passes_its_checks(name):
    """It learns, and repeats and resumes bit for bit."""
    trial = Trial(toys.make(name))
    for check in ONE_PROGRAM:
        check(trial)
    if name in MESH_OF_8:
        check_strategies(trial, 8)
    if name in IN_CHUNKS:
        check_strategies(trial, 1)


@pytest.mark.parametrize("name", slow_but(["fedavg"], PLAIN))
def test_every_method_keeps_its_types_and_sends_the_expected_bytes(name):
    """Rounds are traced but not compiled."""
    trial = Trial(toys.make(name))
    check_types(trial)
    assert trial.message_bytes == message_bytes()[name]


@pytest.mark.parametrize("name", STAGED)
def test_the_stages_of_every_method_can_be_played(name):
    """Their functions take the arguments of a run, and later stages start from earlier ones."""
    first, *later = lay_out(toys.make(name, TASKS.get(name, toys.NORM)), 40)
    assert all(stage.rounds > 0 for stage in (first, *later))
    assert all(stage.start for stage in later)


def test_every_method_has_tests_of_its_own():
    """`pytest --method NAME` finds them by this name."""
    files = [path for path in Path(__file__).parent.glob("*.py") if path != Path(__file__)]
    texts = [path.read_text() for path in files]
    names = {path.stem.removeprefix("test_") for path in files}
    missing = {name for name in registry.METHODS if not any(f'"{name}"' in text for text in texts)}
    assert missing - names <= ASYNCHRONOUS


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PLAIN)
def test_a_mesh_of_8_and_chunks_give_every_method_the_numbers_of_one_device(name):
    """One seed alone on eight devices, or two clients at a time, against two seeds at once."""
    trial = Trial(toys.make(name))
    for devices in (8, 1):
        check_strategies(trial, devices)


@pytest.mark.parametrize("name", exhaustive_but(["ccvr"], STAGED))
def test_every_method_with_stages_passes_its_checks(name, small_network):
    check_stages(toys.make(name, TASKS.get(name, toys.NORM)))


def test_every_check_is_used():
    elsewhere = {
        check_types,
        check_strategies,
        check_compiles_for_tpu,
        check_cohorts,
        check_padding,
    }
    assert {*ONE_PROGRAM, *elsewhere} == {*CHECKS}  # see tests/accelerators and test_padding.py


@functools.cache
def message_bytes():
    """The bytes (up, down) of the messages of each method on a toy model."""
    weights = jax.eval_shape(toys.NORM.init, KEYS.init)
    model, params = tree.num_bytes(weights), tree.num_bytes(weights.params)
    norm, head = 4 * 4 * 16, 4 * (16 + 1) * toys.K
    features, count = 4 * toys.K * 16, 4 * toys.K
    outputs = 4 * toys.K * toys.K
    factor, kernel = 4 * toys.D * toy.RANK, 4 * toys.D * 16
    body = model - head
    of_net = 4 * ((16 + 1) * 256 + (256 + 1) * 256 + (256 + 1) * toys.K)
    policy = 4 * (16 * 32 + 3 * 32)
    generic = 4 * (toys.K * 16 + 2 * (16 * 16 + 3 * 16))
    generator = 4 * ((toys.K + 32 + 1) * 256 + (256 + 1) * 16)
    discriminator = 4 * ((16 + 1 + 64 + 1 + 4) * 64 + (64 + 1) * toys.C)
    e = hypernetwork.embedding_size(toys.C)
    psi = body + 4 * (16 + toys.K + 1) * e
    adapted = model - kernel + factor + 4 * toy.RANK * 16
    same = {
        "local": 0,
        **dict.fromkeys("fedper fedrep fedbabu".split(), body),
        **dict.fromkeys("fedbn fedpick".split(), model - norm),
        **dict.fromkeys("lg_fedavg pfl_da".split(), head),
        "fedcp": model + policy,
        "fedetf": model + 4,
        "fedem": 3 * model,
        "scaffold": model + params,
        **dict.fromkeys("fedproto fedtgp".split(), features + count),
        "fedsr": model + 4 * 16 * (toys.D + 1),  # the layer of the spread
        "fedsa_lora": factor,
        **dict.fromkeys("fedit flexlora".split(), adapted),
        "fd": outputs + count,
        "gpfl": body + generic,
    }
    return {
        **{name: (same.get(name, model),) * 2 for name in PLAIN},
        "fedc2i": (model, toys.C * (model + 4)),
        "adcol": (4 * 64 * (16 + 1), discriminator),
        "afl": (model + 4, model),
        "apple": (params, toys.C * (params + 4) + 4),  # the sizes; the number of the round
        "fedas": (body + 4, body),
        "fedcac": (model + params // 4, model),  # each mask is a byte a parameter
        "fedcm": (model + 4, model + params),
        "feddbe": (model + 4 * 16, model + 4 * 16 + 4),
        "feddisco": (model + 4, model),
        "fedfomo": (model + 5 * 8, 5 * (model + 4)),
        "fedgc": (body + features + toys.K, body + features),  # whether it has each class
        "fedgen": (model + count, model + generator + count),
        "fedgkt": (4 * toys.N * (16 + toys.K + 2), 4 + of_net),  # and padding
        "fedgh": (features + count, head),
        "fediir": (model + head + 4, 2 * model + head),
        "fedmtl": (params, params + 4),
        "fednova": (model + 4, model),
        "fedpac": (model + 2 * features + count + 4, model + features + count),
        "fedmrl": (model - 4 * 8 * toys.K,) * 2,  # a head for half of the features
        "fedpcl": (outputs + count, (toys.C + 1) * (outputs + count)),
        "pfedfda": (body + features + 4 * 16**2,) * 2,
        "fedsoft": (model + 2 * 4, 2 * model + 1),  # two shares; whether to compute them
        "elastic": (model + params, model),
        "ifca": (model + 4, 2 * model),
        "mime": (model + params, 2 * model + 2 * params + 4),
        "mimelite": (model + params, model + params + 4),
        **dict.fromkeys("fedmd ds_fl".split(), (4 * toys.K * 200, 4 * toys.K * 200 + 2 * 8)),
        "pefll": (model + psi + 4 * e, model + 2 * psi + 4 * e),
        "q_ffl": (model + 2 * 4, model),
        **dict.fromkeys("fedex_lora flora".split(), (adapted, adapted + kernel)),
        "ffa_lora": (adapted - factor, adapted - factor + 8),  # a random key
        "hetlora": (adapted + 4, adapted),  # the rank
        "rolora": (adapted, adapted + 4),  # the number of the round
        "heterofl": (model + 4, model),  # of a client with all channels, and its capacity
        "fedrolex": (model + 4, model + 4),  # the number of the round
        "federated_dropout": (model + 4, model + 8),  # a random key
        "fjord": (model + 4 * norm + 4, model + 4 * norm),  # normalizations of five widths
        "depthfl": (model + 4, model + 4),  # the depth; the number of the round
    }


@pytest.mark.parametrize("name", exhaustive_but(["fedfomo"], PLAIN))
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
    if method.extra.pooled:
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


HEAD_USERS = """
    ccvr cfl fedc2i fedcp feddbe fedetf fedgc fedgen fedgh fedpac fedrod fedrs gpfl pfedfda
""".split()


@pytest.mark.parametrize("name", in_ci(["ccvr", "fedpac", "fedrs"], HEAD_USERS))
def test_methods_that_use_the_head_accept_one_without_a_bias(name):
    method = toys.make(name, NO_BIAS)
    stages = [method] if isinstance(method, Method) else [s.method for s in method(2)]
    state = simulate.init(stages[0], KEYS, toys.C)
    program = simulate.Program(stages[-1], toys.PLAN, toys.VECTORIZED)
    lane = simulate.Lane(toys.FEDERATION, toys.POPULATION, KEYS)
    jax.eval_shape(functools.partial(simulate.play_round, program, lane), state, jnp.int32(0))


@pytest.mark.parametrize("name", ["fediir", "fedconcat", "fedconcat_id"])
def test_methods_that_need_a_bias_reject_a_head_without_one(name):
    error = complaint(toys.make, name, NO_BIAS)
    assert name in error and "has a bias; choose another config.model.name" in error


@pytest.mark.parametrize("name", registry.METHODS)
def test_nan_settings_are_rejected(name):
    """nan is neither below nor above any bound, so that a range check could miss it."""
    for key, default in registry.default_settings(registry.look_up("method", name)).items():
        if type(default) is float:
            error = complaint(toys.make, name, **{key: float("nan")})
            assert error.startswith(f"config.method.{key} must ") and error.endswith(", got nan")


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("cfl", {"gamma": 1.0}, "must be at least 0 and below 1, got 1.0"),
        ("depthfl", {"exits": ("Dense_9",)}, "no layer 'Dense_9'"),
        ("elastic", {"tau": 1.5}, "must be from 0 to 1"),
        ("fedala", {"share": 0.0}, "must be above 0 and at most 1"),
        ("fedbabu", {"tuned": "heads"}, "did you mean 'head'"),
        ("fedpac", {"solver_steps": 0}, "must be above 0"),
        ("fedper", {"head_layers": 3}, "must be from 1 to 2"),
        ("fedpick", {"mask": "hrad"}, "did you mean 'hard'"),
        ("fedpick", {"mask": "none", "share_bn": True}, "mask=none needs share_bn=False"),
        ("fedpick", {"head_layers": 2}, "leaves no layer for the body"),
        ("fedproto", {"prediction": "nearest"}, "cannot be 'nearest'"),
        ("fedrep", {"head_epochs": 0, "body_epochs": 0}, "body_epochs cannot both be 0"),
        ("fedsr", {"l2r_power": 3}, "cannot be 3; valid: 1, 2"),
        ("fjord", {"widths": (0.5, 0.2)}, "must ascend from above 0 to at most 1"),
        ("heterofl", {"weights": "sizes"}, "did you mean 'size'"),
        ("hfedf", {"embedding": "randm"}, "did you mean 'random'"),
        ("knn_per", {"weight": "test"}, "test"),
        ("lg_fedavg", {"head_layers": 0}, "must be from 1 to 2"),
        ("per_fedavg", {"hessian": "free"}, "did you mean 'hessian_free'"),
        ("pfedme", {"inner_lr": 0.0}, "must be above 0"),
    ],
)
def test_bad_settings_are_rejected(name, settings, words):
    error = complaint(toys.make, name, **settings)
    assert next(iter(settings)) in error and words in error


@pytest.mark.parametrize(
    "name, settings, count, words",
    [
        ("fedamp", {}, 20_000, "1.5 GiB for 20,000 clients; it takes at most 16,384"),
        ("fedamp", {"alpha": 2.0}, 8, "alpha must be at most sigma / 7 = 1.43 for 8 clients"),
        ("fedc2i", {}, 1, "at least two clients"),
        ("fedcac", {}, 20_000, "method fedcac keeps a number for each pair of clients"),
        ("fedfomo", {}, 20_000, "1.5 GiB for 20,000 clients"),
    ],
)
def test_a_wrong_number_of_clients_is_rejected_before_anything_is_compiled(
    name, settings, count, words
):
    method = toys.make(name, **settings)
    assert words in complaint(jax.eval_shape, lambda: simulate.init(method, KEYS, count))


@pytest.mark.parametrize("name", registry.METHODS)
def test_docstring_names_paper_and_equations(name):
    """Each `(eq. N)` and `(Alg. N)` of the module docstring is also a comment at its code, once."""
    source = sys.modules[registry.look_up("method", name).__module__]
    text = open(source.__file__).read()
    for equation in set(re.findall(r"\(((?:eq|Alg)\. \d+)\)", source.__doc__)):
        assert text.count(f"# {equation}") == 1, equation
    if name not in ("local", "central"):
        assert any(w in source.__doc__ for w in ("arXiv:", "doi:", "proceedings."))
