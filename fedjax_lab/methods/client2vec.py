"""Client2Vec (Guo et al., ICCV 2025, arXiv:2405.16233): client indices improve any method.

  before      beta_i = [beta^f_i, beta^l_i] of each client                    (client_index.py)
  S(i, A)     1 / 2N_A sum_{j in A} N_j (cos(beta^f_i, beta^f_j) + cos(beta^l_i, beta^l_j))
  i  sample   p_i ~ exp(S(i, C^{t-1}) / tau), nobody of the last C / 2M rounds          (eq. 1)
  ii server   p_i ~ N_i exp(H_i / lambda_1), H_i = sum_{s <= t} gamma^{t-s} S(i, C^s)   (eq. 3)
  iii local   base loss + w (mean |z P B^f| + KL(softmax o || softmax o_P))             (eq. 4)
              B^f all clients' beta^f, sent once;  o_P = phi_P(z P)

z are the features of the model before any projection of the base's own, o its logits. P and phi_P
are parts of the model that the server averages with the rest. p takes the place of every share in
the base's mean, also in that of running statistics.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_lab import losses, methods, tree
from fedjax_lab.errors import BadInput, check_choice, check_positive
from fedjax_lab.methods import client_index
from fedjax_lab.methods.client_index import INDICES, NAIVE, Index, Settings, unit
from fedjax_lab.models.task import Seen, with_side_head
from fedjax_lab.types import Array, Exchange, Method, PyTree, Stage, Stages, State, Task


class Server(NamedTuple):
    """The base method's server, and what the index needs."""

    base: PyTree
    index: Index
    history: Array  # H [C]
    age: Array  # [C] int32: how many rounds ago a client last took part, from 1


def client2vec(
    task: Task,
    *,
    base: str = "fedavg",
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
    sampling_tau: float = 1.0,
    history_gamma: float = 0.5,
    history_lambda: float = 1.0,
    local_weight: float = 0.0,
    local_orth: bool = True,
    detach_teacher: bool = False,
    **hyper,
) -> Stages | Method:
    """base: the method that is improved; its own settings stand beside these.

    sampling, aggregation, local_training: i, ii, iii. Without any of them it is the base method.
    index: global, federated (how DSA-IGN is trained); or one of Table 2: feature_average,
    class_prototypes, local_weights (the head after a client's last training).
    index_part: both, feature or label: the cosines in S; those of Table 2 have a feature only.
    index_of: the workdir of an earlier run, whose index is taken instead.
    index_epochs: E, of the server (global) or rounds (federated). index_pooled: the server mixes
    the clients' examples in its batches. index_positions: off, Z = U. index_decoder: linear, mlp.
    weight_div, weight_sim, weight_orth, weight_recon: of DSA-IGN's losses.
    orth_reduction: mean, sum or batchmean of the products in its L_orth.
    sampling_tau, history_gamma, history_lambda: tau, gamma, lambda_1.
    local_weight: w; 0: the paper's, 1 for federated, else 5. local_orth: off, no |z P B^f|.
    detach_teacher: softmax o gets no gradient from the KL term.
    """
    check_positive("method.sampling_tau", sampling_tau)
    check_positive("method.history_lambda", history_lambda)
    check_choice("method.index", index, INDICES)
    check_choice("method.index_part", index_part, ("both", "feature", "label"))
    if index_part == "label" and (local_training or index in NAIVE):
        raise BadInput("config.method.index_part=label needs local_training=False and DSA-IGN")
    if not (sampling or aggregation or local_training):
        return methods.make_plain(base, task, hyper)
    weights = dict(div=weight_div, sim=weight_sim, orth=weight_orth, recon=weight_recon)
    settings = Settings(
        index_epochs, weights, orth_reduction, index_pooled, index_positions, index_decoder
    )
    w = local_weight or (1.0 if index == "federated" else 5.0)
    changes = index == "local_weights"  # from round to round
    parts = ("feature",) if index in NAIVE else Index._fields
    parts = parts if index_part == "both" else (index_part,)
    method = methods.make_plain(base, task, hyper)
    size = client_index.head_size(method) if changes else client_index.index_size(task, index)
    if local_training:
        method = methods.make_plain(base, with_side_head(task, size), hyper)

    def S(index, n):
        """Similarity [C] of all clients to a set A; n [C]: N_j of those in A, 0 of others."""
        share = n / jnp.maximum(jnp.sum(n), 1)
        units = [unit(getattr(index, part)) for part in parts]
        return sum(b @ (share @ b) for b in units) / len(units)

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
                    raise BadInput(f"config.method.local_training=True does not go with {base}")
                log_q = jax.nn.log_softmax(seen.side_logits)
                log_p = jax.nn.log_softmax(seen.logits)
                log_p = jax.lax.stop_gradient(log_p) if detach_teacher else log_p
                each = jnp.sum(jnp.exp(log_p) * (log_p - log_q), 1)
                if local_orth:
                    each = each + jnp.mean(jnp.abs(seen.side @ B_f.T), 1)
                return value + w * losses.masked_mean(each, batch.mask), seen.stats  # eq. 4

            return work.train(weights, value, **options)

        return work._replace(train=train)

    def wrap(exchange, ends_round):
        def send(server, id):
            message = exchange.send(server.base, id)
            return (message, server.index.feature) if changes else message

        def local(message, client, work):
            message, B_f = message if changes else (message, work.frozen)
            work = altered(work, B_f) if local_training else work
            return exchange.local(message, client, work)

        def aggregate(server, uploads, cohort):
            n = jnp.zeros_like(server.history).at[cohort.id].set(cohort.n)
            H = history_gamma * server.history + S(server.index, n)
            if aggregation:
                share = jax.nn.softmax(jnp.log(cohort.n) + H[cohort.id] / history_lambda)  # eq. 3
                cohort = cohort._replace(weight=share)
            server = server._replace(base=exchange.aggregate(server.base, uploads, cohort))
            if not ends_round:
                return server
            age = jnp.minimum(server.age + 1, len(H) + 1).at[cohort.id].set(1)
            index = server.index
            if changes:
                heads = jax.vmap(client_index.head)(uploads)
                index = index._replace(feature=index.feature.at[cohort.id].set(heads))
            return Server(server.base, index, H, age)

        return Exchange(send, local, aggregate)

    def prepare(key, population, last):
        if index_of:
            return client_index.load(index_of, population.label_count)
        return {**last.server.index._asdict(), "label_count": population.label_count}

    def start(key, num_clients, last, facts):
        key = key if last is None else jax.random.wrap_key_data(last.server.key)
        state = method.init(key, num_clients)
        if changes:
            facts = {"feature": jnp.zeros((num_clients, size)), "label": ()}
        found = Index(facts["feature"], facts["label"])
        never = jnp.full(num_clients, num_clients + 1)
        server = Server(state.server, found, jnp.zeros(num_clients), never)
        return State(server, state.private)

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
    constants = (lambda server: server.index.feature) if local_training and not changes else None

    def stages(rounds):
        before = () if changes or index_of else client_index.find(task, index, settings)
        look = None if changes else prepare
        return *before, Stage("train", improved, rounds, look, start, constants)

    return stages
