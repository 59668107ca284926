"""The sizes of a round and the checks of a method, from the shapes of arrays.

Nothing is computed or compiled here. Rounds themselves check nothing.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_lab import streams, tree
from fedjax_lab.simulation import by_kind, contract, simulate
from fedjax_lab.simulation.client_work import Public, work_rows
from fedjax_lab.simulation.simulate import Lane, Program
from fedjax_lab.types import Array, Client, Exchange, Federation, Plan, PyTree, Rows, State

AGGREGATED = "the last `aggregate` of a method's round must return the server's state"
ALIKE = "where uploads may be lost, each `aggregate` of a method must return the server's state"


def cohort_size(program: Program, lane: Lane, state: State) -> int:
    """Returns the size of a cohort, which is larger than the plan's if the method samples more.

    Raises BadInput unless the method's sampling returns clients and shares.
    """

    def ids(key, server, population):
        clients = simulate.without_padding(program.plan, population)
        drawn = program.method.sample(key, server, clients, program.plan.cohort)
        return contract.check_sample(drawn)[0]

    return jax.eval_shape(ids, jax.random.key(0), state.server, lane.population).shape[0]


def one_entry(lane: Lane, state: State) -> tuple[Client, Array, None]:
    """Returns the shapes of what `one_client` gets for a client that does all planned work.

    It is a client of the first kind.
    """
    private = by_kind.all_of_kind(state.private, 0)
    client = stripped(lane.population._replace(private=private), lambda shape: shape[1:])
    return client, jax.eval_shape(lambda: jax.random.key(0)), None


def aggregated(client: Client, upload: PyTree, size: int) -> tuple[PyTree, Client]:
    """Returns the shapes of the uploads and of the cohort [size] that `aggregate` gets.

    client, upload: the shapes of one client and of its upload.
    """
    uploads, cohort = stripped((upload, client), lambda shape: (size, *shape))
    key = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), size))
    arrived = jax.ShapeDtypeStruct((size,), bool)
    return uploads, cohort._replace(arrived=arrived, key=key, staleness=cohort.n)


def aggregate_with(exchange: Exchange, plan: Plan) -> Callable[..., PyTree]:
    """Returns an exchange's function (server, uploads [M], cohort [M], federation) -> server."""

    def aggregate(server, uploads, cohort, federation):
        return exchange.aggregate(server, uploads, cohort._replace(public=Public(federation, plan)))

    return aggregate


def stripped(arrays: PyTree, change: Callable = lambda shape: shape) -> PyTree:
    """Returns the shapes of arrays, without shardings. change: shape -> the shape it becomes."""

    def one(a):
        return jax.ShapeDtypeStruct(change(a.shape), a.dtype)

    return jax.tree.map(one, arrays)


def first_round(
    program: Program, federation: Federation, population: Client
) -> tuple[Program, Lane, State]:
    """Checks a program for a federation before its first round.

    Returns the program after `checked`, and the shapes of its lane and of its first state.
    """
    keys = jax.eval_shape(lambda: streams.make_keys(jax.random.key(0)))
    lane, number = Lane(stripped(federation), population, keys), len(federation.train)
    traits = population.traits
    state = jax.eval_shape(lambda keys: simulate.init(program.method, keys, number, traits), keys)
    return checked(program, lane, state), lane, state


def checked(program: Program, lane: Lane, state: State) -> Program:
    """Returns the program with the bytes of a client's messages in a round.

    Lost uploads are counted like others.

    Raises BadInput unless the functions of the method return what a round needs.
    """
    extra, failures, server = program.method.extra, program.plan.failures, state.server
    lossy = failures.dropout or failures.clock
    size, up, down = cohort_size(program, lane, state), 0, 0
    attacks = jax.ShapeDtypeStruct((), bool) if failures.attackers else None
    client, *others = one_entry(lane, state)
    client = client._replace(attacks=attacks)
    rows = jax.tree.map(
        lambda of_set: jax.ShapeDtypeStruct((of_set.longest,), jnp.int32),
        work_rows(program.method, lane.federation),
        is_leaf=lambda part: isinstance(part, Rows),
    )
    for exchange in program.method.round:
        down += tree.num_bytes(jax.eval_shape(exchange.send, server, client.id))
        run = simulate.one_client(exchange, program.plan)
        returned, _ = jax.eval_shape(run, server, lane.federation, rows, (client, *others))
        upload, private = contract.check_local(returned, client.private)
        up += tree.num_bytes(upload)
        client = client._replace(private=private)
        uploads, cohort = aggregated(client, upload, 1 if extra.one_by_one else size)
        aggregate = aggregate_with(exchange, program.plan)
        after = jax.eval_shape(aggregate, server, uploads, cohort, lane.federation)
        if extra.one_by_one or lossy:
            contract.check_alike(ALIKE if lossy else AGGREGATED, after, server)
        server = after
    contract.check_alike(AGGREGATED, server, state.server)
    return program._replace(message_bytes=(up, down))
