"""Members and nonmembers of a run, how sure its models are of them, and reference federations.

Members are the training examples of the clients. Nonmembers are test examples: of each client some
of those that the federation deals to it, at most as many as its members. A model is seen by the
evaluation of the simulator, so that every method is attacked with the models that it is scored
with.

A reference federation is trained like the run, with other random numbers, and each client holds a
random choice of its members and nonmembers, as many as it has training examples. References only
differ in numbers, so that many of them are trained by one program.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab.auditing import rates
from fedjax_lab.auditing.findings import Findings
from fedjax_lab.auditing.likelihood import confidence
from fedjax_lab.auditing.target import Target
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment.federation import make_rows, parts_of
from fedjax_lab.simulation.by_kind import deal_kinds
from fedjax_lab.simulation.evaluate import Scores
from fedjax_lab.simulation.metrics import Whole
from fedjax_lab.simulation.simulator import Simulator, from_program
from fedjax_lab.simulation.strategies import vectorized
from fedjax_lab.types import Federation, NoCounts, Rows

PHI = "confidence"
VIEWS = ("global", "client")  # whose model is seen: a new client's, or each client's own


class Candidates(NamedTuple):
    """The examples that are attacked, [E], those of the first client first."""

    rows: Rows  # of each client, its members first
    client: np.ndarray  # [E] the client that an example is dealt to
    member: np.ndarray  # [E] bool


class References(NamedTuple):
    """Reference federations: confidences of all candidates, after each of several rounds."""

    phi: np.ndarray  # [S, rounds, E]
    included: np.ndarray  # [S, E] bool


def candidates(federation: Federation) -> Candidates:
    """The members and nonmembers of a federation.

    Nonmembers are chosen among the test rows of each client, or its validation rows, or else a
    share of the global test set; there are at most as many as members. Raises BadInput if there are
    none.
    """
    members = parts_of(federation.train)
    others = next((r for r in (federation.test, federation.validation) if r is not None), None)
    if others is not None:
        outside = parts_of(others)
    elif federation.global_test is not None:
        outside = np.array_split(np.asarray(federation.global_test), len(members))
    else:
        raise BadInput(
            "the run has no examples that were not trained on, with which members are compared;"
            " draw some with --config.data.test=0.2"
        )
    rng = np.random.default_rng(0)
    pairs = zip(members, outside, strict=True)
    each = [(a, np.sort(rng.permutation(b)[: len(a)])) for a, b in pairs]
    (rows,) = make_rows([[np.concatenate(pair) for pair in each]])
    is_member = [np.arange(len(a) + len(b)) < len(a) for a, b in each]
    client = np.repeat(np.arange(len(each)), [len(a) for a in is_member])
    return Candidates(rows, client, np.concatenate(is_member))


def make_simulator(target: Target, of: Candidates, view: str) -> Simulator:
    """The simulator of a run, which scores the candidates.

    view: one of `VIEWS`. Raises BadInput if the method has no global model for the view `global`,
    or if the run cannot be trained again from its beginning.
    """
    run, method = target.run, target.stage.method
    if len(run.experiment.simulation.stages) > 1 or run.config.clock.concurrency:
        what = "asynchronous" if run.config.clock.concurrency else "of several stages"
        raise BadInput(f"{target.title}: a run that is {what} has no membership inference")
    if view == "global" and method.newcomer is None:
        raise BadInput(
            f"method {run.config.method.name} has no global model; use --attack.view=client"
        )
    objective = target.task.objective
    metric = Whole(PHI, lambda logits, labels, mask: confidence(objective, logits, labels))
    program = run.program()
    plan = program.plan._replace(metrics=(metric,))
    strategy = deal_kinds(vectorized()) if target.task.kinds else vectorized()
    return from_program(
        program._replace(plan=plan, strategy=strategy),
        scored(target.federation, of, view),
        run.experiment.dataset.domains,
    )


def scored(federation: Federation, of: Candidates, view: str) -> Federation:
    """The federation whose test rows are the candidates: of all clients, or of each client."""
    none = dict.fromkeys(("unseen", "new_train", "new_test", "test", "global_test"))
    rows = {"test": of.rows} if view == "client" else {"global_test": of.rows.list}
    return federation._replace(**none | rows)


def phi(scores: Scores, of: Candidates) -> jax.Array:
    """The confidences [E] of the candidates in the scores of such a simulator."""
    if scores.test is not None:
        place = np.arange(len(of.client)) - np.asarray(of.rows.start)[of.client]
        return scores.test.measured[PHI][of.client, place]
    assert scores.global_test is not None  # the simulator scores one of the two
    return scores.global_test.measured[PHI][0, : len(of.client)]


def seen(sim: Simulator, target: Target, of: Candidates) -> np.ndarray:
    """The confidences [E] of the candidates under the models of the run."""
    scores = jax.jit(sim.score)(target.key, target.state, target.round, sim.data)
    return np.asarray(phi(scores, of), np.float64)


def references(
    sim: Simulator, of: Candidates, rounds: Sequence[int], count: int, chunk: int, seed: int = 0
) -> References:
    """Trains reference federations and scores the candidates.

    rounds: the numbers of rounds after which the models are seen, ascending. count: S. chunk: how
    many are trained at once. seed: of their random numbers, none of which are those of the run.
    """
    included = draw(of, count, seed)
    lists = jnp.asarray(np.stack([np.asarray(of.rows.list)[chosen] for chosen in included]))
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), len(of.client)), count)
    stops = jnp.asarray(rounds)
    starts = jnp.concatenate([jnp.zeros(1, stops.dtype), stops[:-1]])

    def train(key, rows, data):
        data = _with_rows(data, rows)

        def until(state, span):
            state = jax.lax.fori_loop(
                *span, lambda t, state: sim.round(key, state, t, data)[0], state
            )
            return state, phi(sim.score(key, state, span[1], data), of)

        return jax.lax.scan(until, sim.init(key), (starts, stops))[1]

    def each(keys, lists, data):
        return jax.lax.map(lambda one: train(*one, data), (keys, lists), batch_size=chunk)

    return References(np.asarray(jax.jit(each)(keys, lists, sim.data), np.float64), included)


def draw(of: Candidates, count: int, seed: int) -> np.ndarray:
    """Which candidates each reference holds, [S, E] bool: of each client as many as its members.

    Every candidate of a client is in the same number of references, up to one.
    """
    rng, included = np.random.default_rng(seed), np.zeros((count, len(of.client)), bool)
    for client in np.unique(of.client):
        all_of_client = np.flatnonzero(of.client == client)
        n, queue = of.member[all_of_client].sum(), np.zeros(0, int)
        for reference in included:
            if len(queue) < n:
                others = np.setdiff1d(all_of_client, queue)
                queue = np.concatenate([queue, rng.permutation(others), rng.permutation(queue)])
            reference[queue[:n]], queue = True, queue[n:]
    return included


def _with_rows(data, rows):
    """The data of a simulator whose clients hold these rows, as many as before."""
    federation, people = data.federation, data.population
    federation = federation._replace(train=replace(federation.train, list=rows))
    if not isinstance(people.label_count, NoCounts):
        owner = jnp.repeat(people.id, federation.train.count, total_repeat_length=len(rows))
        count = jnp.zeros_like(people.label_count).at[owner, federation.y[rows]].add(1)
        people = people._replace(label_count=count)
    return data._replace(federation=federation, population=people)


def comparable(of: Candidates, client: int) -> np.ndarray:
    """Which candidates are attacked, [E] bool: those of clients with nonmembers.

    client: the one whose examples count; -1: all. Raises BadInput if it does not exist or has no
    nonmembers.
    """
    if client >= len(of.rows):
        raise BadInput(
            f"attack.client: no client {client}; valid: 0 .. {len(of.rows) - 1}, -1: all"
        )
    has_nonmembers = np.isin(of.client, of.client[~of.member])
    chosen = has_nonmembers & ((of.client == client) | (client == -1))
    if not chosen.any():
        others = "this client has no nonmembers; use another one"
        others = others if client >= 0 else "no client has test examples of its own"
        raise BadInput(f"attack.client={client}: {others}")
    return chosen


def findings(scores: np.ndarray, of: Candidates, chosen: np.ndarray) -> Findings:
    """The rates and the ROC curve of an attack, and the area under that of each client.

    scores: [E], higher means "member". chosen: [E] bool, which of them count.
    """
    members, nonmembers = scores[chosen & of.member], scores[chosen & ~of.member]
    measured: dict[str, Any] = {"members": len(members), "nonmembers": len(nonmembers)}
    for name, rate in rates.summarize(members, nonmembers).items():
        measured |= {name: rate.value, f"{name}_low": rate.low, f"{name}_high": rate.high}
    measured["auc_per_client"] = [
        _area(scores, of, chosen & (of.client == each)) for each in range(len(of.rows))
    ]
    false, true = rates.curve(members, nonmembers)
    arrays = {"false": np.array(false), "true": np.array(true)}
    return Findings([measured], arrays, _left_out(of))


def _left_out(of):
    """A remark about the clients without nonmembers, if there are any."""
    number = len(of.rows) - len(np.unique(of.client[~of.member]))
    return [f"Left out: {number} clients without nonmembers."] if number else []


def _area(scores, of, here):
    """The area under the ROC curve of some examples; None without both kinds."""
    members, nonmembers = (scores[here & which] for which in (of.member, ~of.member))
    return rates.auc(members, nonmembers).value if len(members) and len(nonmembers) else None
