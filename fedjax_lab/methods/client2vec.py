"""Client2Vec (Guo et al., ICCV 2025, arXiv:2405.16233): client indices improve any method.

  before      beta_i = [beta^f_i, beta^l_i] of each client        (papers/client2vec/index.py)
  S(i, A)     1 / 2N_A sum_{j in A} N_j (cos(beta^f_i, beta^f_j) + cos(beta^l_i, beta^l_j))
  i  sample   p_i ~ exp(S(i, C^{t-1}) / tau), no client of the last C / 2M rounds       (eq. 1)
  ii server   p_i ~ N_i exp(H_i / lambda_1), H_i = sum_{s <= t} gamma^{t-s} S(i, C^s)   (eq. 3)
  iii local   base loss + w (mean |z P B^f| + KL(softmax o || softmax o_P))             (eq. 4)
              B^f all clients' beta^f, sent once;  o_P = phi_P(z P)

z are the features of the model before any projection that the base method adds, and o its logits; P
and phi_P become parts of the model. p replaces the shares by which the base's server averages; ii
has no effect on methods with other weights (fedc2i, fedgma, fedproto, fedsoft, fesem, hfedf, ifca).
The paper does not bound the norm of beta^f, and |z P B^f| grows with it. L_orth keeps decreasing
this norm while DSA-IGN is trained; where w |beta^f| is at least 1, iii shrinks the features z
(docs/results_client2vec.md).
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab import losses, tree, wire
from fedjax_lab.errors import BadInput
from fedjax_lab.models.task import with_side_head
from fedjax_lab.papers.client2vec import index_source
from fedjax_lab.papers.client2vec.dsa_ign import REDUCTIONS, Training
from fedjax_lab.papers.client2vec.index import Index
from fedjax_lab.papers.client2vec.index_source import Source
from fedjax_lab.papers.client2vec.naive_index import NAIVE, head
from fedjax_lab.ranges import OneOf, Positive, Share, checked, choice
from fedjax_lab.transforms import lens
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
    Work,
)

RANGES = {"sampling_tau": choice(0.1, 0.5, 1.0, 2.0), "history_gamma": choice(0.1, 0.5, 0.9)}

Similarity = Callable[[Index, Array], Array]  # S: (index, n [C], 0 outside of A) -> [C]


class Server(NamedTuple):
    """The base method's server, and the state that the index needs."""

    base: PyTree
    index: Index  # type: ignore[assignment]  # not the tuple's method of that name
    history: Array  # H [C]
    age: Array  # [C] int32: how many rounds ago a client last took part, from 1


@checked("method")
def client2vec(
    task: Task,
    make_base: Callable[[Task], Method],
    *,
    sampling: bool = True,
    aggregation: bool = True,
    local_training: bool = True,
    index: Annotated[str, OneOf(index_source.INDICES)] = "global",
    index_part: Literal["both", "feature", "label"] = "both",
    index_of: str = "",
    index_epochs: Positive[int] = 500,
    index_pooled: bool = False,
    index_positions: bool = True,
    index_decoder: Literal["linear", "mlp"] = "linear",
    weight_div: float = 1.0,
    weight_sim: float = 1.0,
    weight_orth: float = 1.0,
    weight_recon: float = 1.0,
    orth_reduction: Annotated[str, OneOf(REDUCTIONS)] = "mean",
    orth_normalize: bool = False,
    sampling_tau: Positive[float] = 1.0,
    history_gamma: Share = 0.5,
    history_lambda: Positive[float] = 1.0,
    local_weight: float = 0.0,
    local_orth: bool = True,
    detach_teacher: bool = False,
) -> Stages | Method:
    """make_base: task -> the base method, which is improved.

    sampling: whether part i is used, the sampling of similar clients.
    aggregation: whether part ii is used, the aggregation by similarity.
    local_training: whether part iii is used, the local loss with the index; without any of the
    three parts the run is that of the base method.
    index: the kind of the index: DSA-IGN, trained by global or federated; or an index of Table 2:
    feature_average, class_prototypes, local_weights (the head after a client's last training).
    index_part: the parts of the index that S compares: both, feature or label; an index of Table 2
    only has features.
    index_of: the workdir of an earlier run, whose index of this kind is loaded; no index is
    computed.
    index_epochs: E, the epochs of the server (index=global) or the rounds (index=federated) in
    which DSA-IGN is trained.
    index_pooled: whether the server's batches mix the examples of different clients.
    index_positions: whether DSA-IGN has positional embeddings; without them Z = U.
    index_decoder: the decoder of DSA-IGN: linear or mlp.
    weight_div: weight of L_div in DSA-IGN's loss. weight_sim: weight of L_sim in DSA-IGN's loss.
    weight_orth: weight of L_orth in DSA-IGN's loss.
    weight_recon: weight of L_recon in DSA-IGN's loss.
    orth_reduction: mean, sum or batchmean (sum / B): how the products in L_orth and in part iii are
    reduced.
    orth_normalize: whether L_orth takes unit vectors.
    sampling_tau: the temperature tau of eq. 1.
    history_gamma: the decay gamma of the history in eq. 3.
    history_lambda: the temperature lambda_1 of the history in eq. 3.
    local_weight: w in eq. 4; 0: 1 with index=federated and 5 otherwise (in appendix D.2 it is the
    base method's own weight).
    local_orth: whether eq. 4 has the term |z P B^f|.
    detach_teacher: whether softmax o gets no gradient from the KL term.
    """
    if index_part == "label" and (local_training or index in NAIVE):
        raise BadInput("config.method.index_part=label needs local_training=False and DSA-IGN")
    reduce = REDUCTIONS[orth_reduction]
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
    base = make_base(task)
    if not (sampling or aggregation or local_training):
        return base
    index_source.check_base(source, base)
    size = index_source.size(source, task, base)
    if local_training:
        base = beside_head(make_base, task, size)
    similarity, changes = index_source.similarity_of(source), index_source.changes(source)
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

    train = Stage(
        "train",
        method,
        rounds=0,
        prepare=None if changes else partial(index_source.facts, source),
        start=partial(first_state, base, source, size),
        frozen=all_features if local_training and not changes else None,
    )
    return partial(stages, source, task, train)


def stages(source: Source, task: Task, train: Stage, rounds: int) -> tuple[Stage, ...]:
    """Returns the stages that make the index, and the one that trains with it for all rounds."""
    return *index_source.stages(source, task), train._replace(rounds=rounds)


def beside_head(make_base: Callable[[Task], Method], task: Task, size: int) -> Method:
    """Returns the base method for the model with P, a head for the index.

    Raises BadInput if the base cannot train P.
    """
    try:
        return make_base(with_side_head(task, size))
    except BadInput as error:
        raise BadInput(
            "config.method.local_training adds a layer to the model, with which config.method.base"
            f" does not work; set it to False or choose another base: {error}"
        ) from error


def all_features(server: Server) -> Array:
    """Returns B^f, which the stage sends to every client once."""
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
    """Returns the base's first state, the same as without an index, together with the index."""
    init: Any = base.init
    state = init(key if last is None else last.server.key, num_clients)
    server = Server(
        base=state.server,
        index=index_source.first_index(source, size, num_clients, facts),
        history=jnp.zeros(num_clients),
        age=jnp.full(num_clients, num_clients + 1),
    )
    return State(server, state.private)


# The wrappers. All except the first wrap methods whose server is a `Server`.


def with_index(base: Method) -> Method:
    """The base method with an index in its server's state, which it does not use yet."""
    base = base._replace(init=None, scored=base.sends_scored)
    return lens.lifted(base, server=lens.field("base"))


def with_index_sampling(method: Method, similarity: Similarity, tau: float) -> Method:
    """Part i: a cohort is similar to the last one, but has no client of the last C / 2M rounds."""

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
    """Part ii: the server averages by p, which grows with the similarity to the last cohorts."""

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
    """Part iii: clients train on the base's loss plus w times the index loss.

    sent_once: whether the stage has sent B^f to every client; otherwise each message contains it.
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
    """The method in which beta^f of a client is the last layer of its last upload."""

    def with_heads(exchange, ends_round):
        def aggregate(server, uploads, cohort):
            feature = server.index.feature.at[cohort.id].set(jax.vmap(head)(uploads))
            index = server.index._replace(feature=feature)
            return exchange.aggregate(server._replace(index=index), uploads, cohort)

        return exchange._replace(aggregate=aggregate) if ends_round else exchange

    return with_exchanges(method, with_heads)


def with_exchanges(method: Method, change: Callable[[Exchange, bool], Exchange]) -> Method:
    """The method with each exchange replaced.

    change: (exchange, whether it is the last one of the round) -> exchange.
    """
    last = len(method.round) - 1
    return method._replace(round=tuple(change(e, i == last) for i, e in enumerate(method.round)))


# The loss of part iii.


def altered(work: Work, w: float, index_loss: Callable, B_f: Array) -> Work:
    """The same work, except that `train` adds w times the index loss to every loss."""

    def train(weights, loss, **options):
        def value(weights, batch, key):
            value, out = loss(weights, batch, key)
            if not getattr(out, "extra", ()):
                raise BadInput(
                    "config.method.local_training=True cannot be combined with this"
                    " config.method.base; set it to False or choose another base"
                )
            return value + w * index_loss(out, batch, B_f), out  # eq. 4

        return work.train(weights, value, **options)

    return work._replace(train=train)


def L_index(
    out: Output, batch: Batch, B_f: Array, reduce: Callable, orth: bool, detach: bool
) -> Array:
    """Returns mean |z P B^f| + KL(softmax o || softmax o_P).

    reduce: how the products are reduced, by default to their mean.
    orth: whether the loss has the first term.
    detach: whether the KL term has no gradient with respect to o.
    """
    z_P, o_P = out.extra
    log_q, log_p = jax.nn.log_softmax(o_P), jax.nn.log_softmax(out.logits)
    log_p = jax.lax.stop_gradient(log_p) if detach else log_p
    L_dist = losses.masked_mean(jnp.sum(jnp.exp(log_p) * (log_p - log_q), 1), batch.mask)
    products = jnp.abs(z_P @ B_f.T) * batch.mask[:, None]  # [B, C]
    L_orth = orth * reduce(jnp.sum(products), jnp.sum(batch.mask), len(B_f))
    return L_orth + L_dist
