"""What a method's functions must take and return; errors are reported before any compilation."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
import toys
from inputs import complaint
from naive import KEYS

from fedjax_lab.engine.tracing import depends
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.simulation import client_work, contract, evaluate, outline, simulate
from fedjax_lab.simulation.population import new_on_host
from fedjax_lab.types import Stage, State

PLAIN = fedavg(toys.TASK)


def with_exchange(**fields):
    (exchange,) = PLAIN.round
    return PLAIN._replace(round=(exchange._replace(**fields),))


def stages_of(method):
    return (Stage("train", method, 1),)


EMBEDDED = Stage("train", PLAIN._replace(validation=True), 1, embeddings=tuple)
INVALID = [
    (stages_of(with_exchange(local=lambda w, client: w)), "must take (message, client, work)"),
    (stages_of(with_exchange(send=3)), "`send` of a method must be a function, not 3"),
    (stages_of(PLAIN._replace(predict=lambda x: x)), "must take (message, client, x), but"),
    (stages_of(PLAIN._replace(round=())), "at least one Exchange"),
    (
        stages_of(PLAIN._replace(validation=True).having(one_by_one=True)),
        "validation=True: its clients take turns",
    ),
    (stages_of(3), "must be a Method, not 3"),
    (3, "must be a tuple of Stage, not 3"),
    ((EMBEDDED,), "it trains on embeddings"),
]


@pytest.mark.parametrize("stages, error", INVALID)
def test_an_invalid_method_is_rejected_with_the_reason(stages, error):
    assert error in complaint(contract.check_stages, stages)


@pytest.mark.parametrize(
    "state, error",
    [
        (3, "must return a State, not 3"),
        (State((), jnp.zeros(toys.C + 1)), "each array [8, ...], not [9]"),
        (State((), 0.5), "each array [8, ...], not []"),
    ],
)
def test_init_must_return_a_state_with_an_axis_of_clients(state, error):
    method = PLAIN._replace(init=lambda key, num_clients: state)
    assert error in complaint(simulate.init, method, KEYS, toys.C)


@pytest.mark.parametrize(
    "part, function, error",
    [
        ("local", lambda w, client, work: jnp.zeros(3), "(upload, private), not float32[3]"),
        ("local", lambda w, client, work: (w, {"a": 1.0}), "(), not {'a': 'float32[]'}"),
        ("aggregate", lambda w, uploads, cohort: (w, 1), "must return the server's state"),
        ("aggregate", lambda w, uploads, cohort: 1, "must return the server's state"),
    ],
)
def test_a_round_must_keep_the_structure_of_the_states(part, function, error):
    assert error in complaint(toys.bytes_of, with_exchange(**{part: function}))


@pytest.mark.parametrize(
    "drawn, error",
    [
        (jnp.arange(5), "not int32[5]"),
        ((jnp.zeros(5), jnp.zeros(5)), "not ('float32[5]', 'float32[5]')"),
        ((jnp.arange(5), jnp.zeros(6)), "not ('int32[5]', 'float32[6]')"),
    ],
)
def test_a_sampling_must_return_ids_and_shares(drawn, error):
    method = PLAIN._replace(sample=lambda key, server, population, m: drawn)
    program = simulate.Program(method, toys.PLAN, toys.VECTORIZED)
    lane = simulate.Lane(toys.FEDERATION, toys.POPULATION, KEYS)
    state = simulate.init(method, KEYS, toys.C)
    assert error in complaint(outline.checked, program, lane, state)


@pytest.mark.parametrize("made, shown", [(None, "None"), (jnp.zeros((2, 3)), "float32[2, 3]")])
def test_an_augmentation_must_keep_the_shape_of_the_examples(made, shown):
    plan = toys.PLAN._replace(augment=lambda key, x: made)
    message = complaint(client_work.fetch, toys.FEDERATION, jnp.arange(2), plan, jax.random.key(0))
    assert message.endswith(f"examples of the same shape, [2, {toys.D}], not {shown}")


@pytest.mark.parametrize(
    "fields",
    [
        {"newcomer": lambda state: state.server},
        {"tune": lambda w, client, work: w},
        {"join": lambda w, client, work: [w, ()]},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_newcomer_tune_and_join_must_return_a_message_and_a_private_state(fields):
    """Weights alone are a pair as well, but not of a message and a private state."""
    federation = toys.with_new(toys.FEDERATION)
    new = jax.tree.map(jnp.asarray, new_on_host(federation, toys.K))
    lane = simulate.Lane(federation, toys.POPULATION, KEYS, new=new)
    program = simulate.Program(PLAIN._replace(**fields), toys.PLAN, toys.VECTORIZED)
    state = simulate.init(PLAIN, KEYS, toys.C)
    message = complaint(jax.eval_shape, partial(evaluate.score, program), lane, state, jnp.int32(0))
    assert message.startswith(
        f"`{next(iter(fields))}` of a method must return (message, private), not"
    )


LIKE = jax.ShapeDtypeStruct((3,), jnp.float32), {"b": jax.ShapeDtypeStruct((2,), jnp.float32)}


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda a, b: a, True),
        (lambda a, b: b["b"] + jnp.sum(jnp.where(a > 0, a, 0)), True),
        (lambda a, b: jax.lax.fori_loop(0, 3, lambda _, x: x + a[0], b["b"]), True),
        (lambda a, b: b, False),
        (lambda a, b: (jnp.zeros_like(a), len(a) * b["b"]), False),
        (lambda a, b: (jnp.linalg.norm(a), jnp.sin(b["b"]))[1], False),
    ],
)
def test_dependence_on_values_and_not_on_shapes(function, expected):
    assert depends(function, *LIKE) is expected
