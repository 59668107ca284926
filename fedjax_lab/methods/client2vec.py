"""Client2Vec (Guo et al., ICCV 2025, arXiv:2405.16233): client indices improve any method.

  before      beta_i = [beta^f_i, beta^l_i] of each client                    (client_index.py)
  S(i, A)     1 / 2N_A sum_{j in A} N_j (cos(beta^f_i, beta^f_j) + cos(beta^l_i, beta^l_j))
  i  sample   p_i ~ exp(S(i, C^{t-1}) / tau), nobody of the last C / 2M rounds          (eq. 1)
  ii server   p_i ~ N_i exp(H_i / lambda_1), H_i = sum_{s <= t} gamma^{t-s} S(i, C^s)   (eq. 3)
  iii local   base loss + w (mean |z P B^f| + KL(softmax o || softmax o_P))             (eq. 4)
              B^f all clients' beta^f, sent once;  o_P = phi_P(z P)

z are the features of the model before any projection of the base's own, o its logits; P and phi_P
become parts of the model. p takes the place of the shares by which the base's server averages; ii
changes nothing where it has other weights (fedc2i, fedgma, fedproto, fedsoft, fesem, hfedf, ifca).
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab import losses, tree
from fedjax_lab.errors import BadInput, check_choice, check_positive, check_share
from fedjax_lab.methods import client_index
from fedjax_lab.methods.client_index import INDICES, NAIVE, Index, similarity
from fedjax_lab.models.task import Seen, with_side_head
from fedjax_lab.types import Array, Exchange, Method, PyTree, Stage, Stages, State, Task, View


class Server(NamedTuple):
    """The base method's server, and what the index needs."""

    base: PyTree
    index: Index
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
    check_choice("method.index", index, INDICES)
    check_choice("method.index_part", index_part, ("both", "feature", "label"))
    if index_part == "label" and (local_training or index in NAIVE):
        raise BadInput("config.method.index_part=label needs local_training=False and DSA-IGN")
    weights = dict(div=weight_div, sim=weight_sim, orth=weight_orth, recon=weight_recon)
    reduce = client_index.reduction(orth_reduction)
    network = index_pooled, index_positions, index_decoder
    settings = client_index.Settings(index_epochs, weights, reduce, orth_normalize, *network)
    client_index.check(settings)
    method = make_base(task)
    if not (sampling or aggregation or local_training):
        return method
    w = local_weight or (1.0 if index == "federated" else 5.0)
    changes = index == "local_weights"  # from round to round
    if changes and (index_of or method.tune):
        other = index_of or "this config.method.base"
        raise BadInput(f"config.method.index=local_weights does not go with {other}")
    size = client_index.size(task, method, index, index_of)
    if local_training:
        method = make_base(with_side_head(task, size))
    parts = ("feature",) if index in NAIVE else Index._fields
    S = partial(similarity, parts=parts if index_part == "both" else (index_part,))

    def sample(key, server, population, m):
        if not sampling:
            return method.sample(key, server.base, population, m)
        last = jnp.where(server.age == 1, population.n, 0)  # C^{t-1}
        recent = server.age <= len(last) // (2 * m)
        logits = jnp.where(recent, 0, S(server.index, last) / sampling_tau)  # eq. 1
        ids = jnp.lexsort((-logits - jax.random.gumbel(key, logits.shape), recent))[:m]
        place, shares = method.sample(key, server.base, tree.take(population, ids), m)
        return ids[place], shares

    def altered(work, B_f):
        def train(weights, loss, **options):
            def value(weights, batch, key):
                value, seen = loss(weights, batch, key)
                if not isinstance(seen, Seen):
                    raise BadInput("this config.method.base does not go with local_training=True")
                log_q = jax.nn.log_softmax(seen.side_logits)
                log_p = jax.nn.log_softmax(seen.logits)
                log_p = jax.lax.stop_gradient(log_p) if detach_teacher else log_p
                each = jnp.sum(jnp.exp(log_p) * (log_p - log_q), 1)
                L_dist = losses.masked_mean(each, batch.mask)
                products = jnp.abs(seen.side @ B_f.T) * batch.mask[:, None]  # [B, C]
                L_orth = local_orth * reduce(jnp.sum(products), jnp.sum(batch.mask), len(B_f))
                return value + w * (L_orth + L_dist), seen.stats  # eq. 4

            return work.train(weights, value, **options)

        return work._replace(train=train)

    def wrap(exchange, ends_round):
        def send(server, id):
            message = exchange.send(server.base, id)
            return (message, server.index.feature) if changes and local_training else message

        def local(message, client, work):
            if local_training:
                message, B_f = message if changes else (message, work.frozen)
                work = altered(work, B_f)
            return exchange.local(message, client, work)

        def aggregate(server, uploads, cohort):
            index = server.index
            if changes and ends_round:
                heads = jax.vmap(client_index.head)(uploads)
                index = index._replace(feature=index.feature.at[cohort.id].set(heads))
            n = jnp.zeros_like(server.history).at[cohort.id].set(cohort.n)
            H = history_gamma * server.history + S(index, n)
            if aggregation:
                share = jax.nn.softmax(jnp.log(cohort.n) + H[cohort.id] / history_lambda)  # eq. 3
                cohort = cohort._replace(weight=share)
            after = exchange.aggregate(server.base, uploads, cohort)
            if not ends_round:
                return server._replace(base=after)
            age = jnp.minimum(server.age + 1, len(H) + 1).at[cohort.id].set(1)
            return Server(after, index, H, age)

        return Exchange(send, local, aggregate)

    def prepare(key, population, last):
        if index_of:
            return client_index.load(index_of, population.label_count)
        return {**last.server.index._asdict(), "label_count": population.label_count}

    def start(key, num_clients, last, facts):
        key = key if last is None else last.server.key
        state = method.init(key, num_clients)
        feature = jnp.zeros((num_clients, size)) if changes else facts["feature"]
        found = Index(feature, facts.get("label", ()))
        history, never = jnp.zeros(num_clients), jnp.full(num_clients, num_clients + 1)
        return State(Server(state.server, found, history, never), state.private)

    def of_base(state):
        return State(state.server.base, state.private)

    def tune(message, client, work):
        return method.tune(message, client, altered(work, work.frozen) if local_training else work)

    scored = method.scored or method.round[-1].send
    improved = method._replace(
        init=None,
        round=tuple(wrap(exchange, exchange is method.round[-1]) for exchange in method.round),
        newcomer=method.newcomer and (lambda state: method.newcomer(of_base(state))),
        sample=sample,
        tune=method.tune and tune,
        scored=lambda server, id: scored(server.base, id),
        record=method.record and (lambda state: method.record(of_base(state))),
    )
    once = View(frozen=lambda server: server.index.feature)
    view = once if local_training and not changes else None

    def stages(rounds):
        before = () if changes or index_of else client_index.find(task, index, settings)
        return *before, Stage(
            "train", improved, rounds, None if changes else prepare, start=start, view=view
        )

    return stages
