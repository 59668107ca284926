"""Client2Vec (Guo et al., ICCV 2025, arXiv:2405.16233): client indices improve any method.

  before      beta_i = [beta^f_i, beta^l_i] of each client                    (_client_index.py)
  S(i, A)     1 / 2N_A sum_{j in A} N_j (cos(beta^f_i, beta^f_j) + cos(beta^l_i, beta^l_j))
  i  sample   p_i ~ exp(S(i, C^{t-1}) / tau), nobody of the last C / 2M rounds          (eq. 1)
  ii server   p_i ~ N_i exp(H_i / lambda_1), H_i = sum_{s <= t} gamma^{t-s} S(i, C^s)   (eq. 3)
  iii local   base loss + w (mean |z P B^f| + KL(softmax o || softmax o_P))             (eq. 4)
              B^f all clients' beta^f, sent once;  o_P = phi_P(z P)

z are the features of the model before any projection of the base's own, o its logits; P and phi_P
become parts of the model. p takes the place of the shares by which the base's server averages; ii
changes nothing where it has other weights (fedc2i, fedgma, fedproto, fedsoft, fesem, hfedf, ifca).
The paper does not bound the length of beta^f, and |z P B^f| grows with it. L_orth keeps shortening
beta^f while DSA-IGN is trained; where w |beta^f| is at least 1, iii shrinks the features z
(docs/results_client2vec.md).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab import losses, tree, wire
from fedjax_lab.errors import BadInput, check_positive, check_share
from fedjax_lab.methods import _index_source
from fedjax_lab.methods._client_index import Index
from fedjax_lab.methods._index_dsa_ign import Training, reduction
from fedjax_lab.methods._index_naive import NAIVE, head
from fedjax_lab.methods._index_source import Source
from fedjax_lab.models.task import with_side_head
from fedjax_lab.ranges import choice
from fedjax_lab.types import (
    Array,
    Batch,
    Exchange,
    Method,
    Output,
    PyTree,
    Stage,
    Stages,
    State,
    Task,
    View,
    Work,
)

RANGES = {"sampling_tau": choice(0.1, 0.5, 1.0, 2.0), "history_gamma": choice(0.1, 0.5, 0.9)}

Similarity = Callable[[Index, Array], Array]  # S: (index, n [C], 0 of who is not in A) -> [C]


class Server(NamedTuple):
    """The base method's server, and what the index needs."""

    base: PyTree
    index: Index  # type: ignore[assignment]  # not the tuple's method of that name
    history: Array  # H [C]
    age: Array  # [C] int32: how many rounds ago a client last took part, from 1


def client2vec(
    task: Task,
    make_base: Callable[[Task], Method],
    *,
    sampling: bool = True,
    aggregation: bool = True,
    local_training: bool = True,
    index: str = "global",
    index_part: str = "both",
    index_of: str = "",
    index_epochs: int = 500,
    index_pooled: bool = False,
    index_positions: bool = True,
    index_decoder: str = "linear",
    weight_div: float = 1.0,
    weight_sim: float = 1.0,
    weight_orth: float = 1.0,
    weight_recon: float = 1.0,
    orth_reduction: str = "mean",
    orth_normalize: bool = False,
    sampling_tau: float = 1.0,
    history_gamma: float = 0.5,
    history_lambda: float = 1.0,
    local_weight: float = 0.0,
    local_orth: bool = True,
    detach_teacher: bool = False,
) -> Stages | Method:
    """make_base: gives the method that is improved, for a task.

    sampling, aggregation, local_training: i, ii, iii. Without any of them it is the base method.
    index: global, federated (how DSA-IGN is trained); or one of Table 2: feature_average,
    class_prototypes, local_weights (the head after a client's last training).
    index_part: both, feature or label: the cosines in S; those of Table 2 have a feature only.
    index_of: the workdir of an earlier run, whose index of this kind is taken: nothing is trained.
    index_epochs: E; global: epochs of the server, federated: rounds. index_pooled: the server's
    batches mix the clients' examples. index_positions: off, Z = U. index_decoder: linear, mlp.
    weight_div, weight_sim, weight_orth, weight_recon: of DSA-IGN's losses.
    orth_reduction: mean, sum or batchmean (sum / B) of the products in L_orth, here and in iii.
    orth_normalize: L_orth of unit vectors. sampling_tau, history_gamma, history_lambda: as above.
    local_weight: w; 0: 1 for federated, 5 else (appendix D.2 has the base's own weight).
    local_orth: off, no |z P B^f|. detach_teacher: softmax o gets no gradient from the KL term.
    """
    check_positive("method.sampling_tau", sampling_tau)
    check_share("method.history_gamma", history_gamma)
    check_positive("method.history_lambda", history_lambda)
    if index_part == "label" and (local_training or index in NAIVE):
        raise BadInput("config.method.index_part=label needs local_training=False and DSA-IGN")
    reduce = reduction(orth_reduction)
    training = Training(
        strategy=index,
        epochs=index_epochs,
        weights=dict(div=weight_div, sim=weight_sim, orth=weight_orth, recon=weight_recon),
        reduce=reduce,
        normalize=orth_normalize,
        pooled=index_pooled,
        positions=index_positions,
        decoder=index_decoder,
    )
    source = Source(kind=index, part=index_part, workdir=index_of, training=training)
    _index_source.check(source)
    base = make_base(task)
    if not (sampling or aggregation or local_training):
        return base
    _index_source.check_base(source, base)
    size = _index_source.size(source, task, base)
    if local_training:
        base = make_base(with_side_head(task, size))
    similarity, changes = _index_source.similarity_of(source), _index_source.changes(source)
    method = with_index(base)
    if sampling:
        method = with_index_sampling(method, similarity, sampling_tau)
    if aggregation:
        method = with_index_shares(method, similarity, history_gamma, history_lambda)
    if local_training:
        w = local_weight or (1.0 if index == "federated" else 5.0)
        index_loss = partial(L_index, reduce=reduce, orth=local_orth, detach=detach_teacher)
        method = with_index_loss(method, w, index_loss, sent_once=not changes)
    if changes:
        method = with_heads_as_index(method)

    def stages(rounds):
        train = Stage(
            "train",
            method,
            rounds,
            prepare=None if changes else partial(_index_source.facts, source),
            start=partial(first_state, base, source, size),
            view=View(frozen=all_features) if local_training and not changes else None,
        )
        return *_index_source.stages(source, task), train

    return stages


def all_features(server: Server) -> Array:
    """B^f, which the stage sends to every client once."""
    return server.index.feature


def first_state(
    base: Method,
    source: Source,
    size: int,
    key: Array,
    num_clients: int,
    last: State | None,
    facts: dict[str, Array],
) -> State:
    """The base's first state, as it would be without an index, and the index."""
    init: Any = base.init
    state = init(key if last is None else last.server.key, num_clients)
    server = Server(
        base=state.server,
        index=_index_source.first_index(source, size, num_clients, facts),
        history=jnp.zeros(num_clients),
        age=jnp.full(num_clients, num_clients + 1),
    )
    return State(server, state.private)


# The wrappers. All but the first are of methods whose server is a `Server`.


def with_index(base: Method) -> Method:
    """The base method with an index, which it does not use yet, in its server's state."""

    def beside_index(exchange, ends_round):
        def send(server, id):
            return exchange.send(server.base, id)

        def aggregate(server, uploads, cohort):
            return server._replace(base=exchange.aggregate(server.base, uploads, cohort))

        return exchange._replace(send=send, aggregate=aggregate)

    def sample(key, server, population, m):
        return base.sample(key, server.base, population, m)

    def of_base(state):
        return State(state.server.base, state.private)

    scored = base.scored or base.round[-1].send
    newcomer, join, record = base.newcomer, base.join, base.record
    return with_exchanges(base, beside_index)._replace(
        init=None,
        newcomer=newcomer and (lambda state: newcomer(of_base(state))),
        join=join and (lambda server, client, work: join(server.base, client, work)),
        sample=sample,
        scored=lambda server, id: scored(server.base, id),
        record=record and (lambda state: record(of_base(state))),
    )


def with_index_sampling(method: Method, similarity: Similarity, tau: float) -> Method:
    """i: a cohort is like the last one, but has nobody of the last C / 2M rounds."""

    def sample(key, server, population, m):
        last = jnp.where(server.age == 1, population.n, 0)  # C^{t-1}
        recent = server.age <= len(last) // (2 * m)
        logits = jnp.where(recent, 0, similarity(server.index, last) / tau)  # eq. 1
        ids = jnp.lexsort((-logits - jax.random.gumbel(key, logits.shape), recent))[:m]
        place, shares = method.sample(key, server, tree.take(population, ids), m)
        return ids[place], shares

    def with_age(exchange, ends_round):
        def aggregate(server, uploads, cohort):
            after = exchange.aggregate(server, uploads, cohort)
            older = jnp.minimum(server.age + 1, len(server.age) + 1)
            return after._replace(age=older.at[cohort.id].set(1))

        return exchange._replace(aggregate=aggregate) if ends_round else exchange

    return with_exchanges(method, with_age)._replace(sample=sample)


def with_index_shares(
    method: Method, similarity: Similarity, gamma: float, lambda_1: float
) -> Method:
    """ii: the server averages by p, which grows with the similarity to the last cohorts."""

    def by_similarity(exchange, ends_round):
        def aggregate(server, uploads, cohort):
            n = jnp.zeros_like(server.history).at[cohort.id].set(cohort.n)
            H = gamma * server.history + similarity(server.index, n)
            p = jax.nn.softmax(jnp.log(cohort.n) + H[cohort.id] / lambda_1)  # eq. 3
            after = exchange.aggregate(server, uploads, cohort._replace(weight=p))
            return after._replace(history=H) if ends_round else after

        return exchange._replace(aggregate=aggregate)

    return with_exchanges(method, by_similarity)


def with_index_loss(method: Method, w: float, index_loss: Callable, sent_once: bool) -> Method:
    """iii: clients train on the base's loss and w times the index loss.

    sent_once: the stage has sent B^f to every client; otherwise it comes with each message.
    """

    def with_loss(exchange, ends_round):
        def send(server, id):
            message = exchange.send(server, id)
            return message if sent_once else (message, server.index.feature)

        def local(message, client, work):
            message, B_f = (message, work.frozen) if sent_once else message
            return exchange.local(message, client, altered(work, w, index_loss, B_f))

        def updates(message, id, upload):
            message = message if sent_once else message[0]
            return wire.references(exchange, message, id, upload)

        return exchange._replace(send=send, local=local, updates=updates)

    def tune(message, client, work):
        return method.tune(message, client, altered(work, w, index_loss, work.frozen))

    def join(server, client, work):
        B_f = work.frozen if sent_once else server.index.feature
        return method.join(server, client, altered(work, w, index_loss, B_f))

    return with_exchanges(method, with_loss)._replace(
        tune=method.tune and tune, join=method.join and join
    )


def with_heads_as_index(method: Method) -> Method:
    """Each client's beta^f is the last layer of what it has uploaded last."""

    def with_heads(exchange, ends_round):
        def aggregate(server, uploads, cohort):
            feature = server.index.feature.at[cohort.id].set(jax.vmap(head)(uploads))
            index = server.index._replace(feature=feature)
            return exchange.aggregate(server._replace(index=index), uploads, cohort)

        return exchange._replace(aggregate=aggregate) if ends_round else exchange

    return with_exchanges(method, with_heads)


def with_exchanges(method: Method, change: Callable[[Exchange, bool], Exchange]) -> Method:
    """The method with `change(exchange, whether it ends the round)` for each exchange."""
    last = len(method.round) - 1
    return method._replace(round=tuple(change(e, i == last) for i, e in enumerate(method.round)))


# The loss of iii.


def altered(work: Work, w: float, index_loss: Callable, B_f: Array) -> Work:
    """The same work, but that `train` adds w times the index loss to every loss."""

    def train(weights, loss, **options):
        def value(weights, batch, key):
            value, out = loss(weights, batch, key)
            if not getattr(out, "extra", ()):
                raise BadInput("this config.method.base does not go with local_training=True")
            return value + w * index_loss(out, batch, B_f), out  # eq. 4

        return work.train(weights, value, **options)

    return work._replace(train=train)


def L_index(
    out: Output, batch: Batch, B_f: Array, reduce: Callable, orth: bool, detach: bool
) -> Array:
    """mean |z P B^f| + KL(softmax o || softmax o_P).

    reduce: the mean of the products; orth: off, they do not count; detach: no gradient to o.
    """
    z_P, o_P = out.extra
    log_q, log_p = jax.nn.log_softmax(o_P), jax.nn.log_softmax(out.logits)
    log_p = jax.lax.stop_gradient(log_p) if detach else log_p
    L_dist = losses.masked_mean(jnp.sum(jnp.exp(log_p) * (log_p - log_q), 1), batch.mask)
    products = jnp.abs(z_P @ B_f.T) * batch.mask[:, None]  # [B, C]
    L_orth = orth * reduce(jnp.sum(products), jnp.sum(batch.mask), len(B_f))
    return L_orth + L_dist
