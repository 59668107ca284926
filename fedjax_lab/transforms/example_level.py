"""Example-level differential privacy: DP-SGD (Abadi et al., CCS 2016, arXiv:1607.00133).

  B_s     each of the client's n examples with probability q, in every step anew
  g_j     the gradient of the loss of example j alone, less that of the loss of no example, r
  g       1/(q n) (sum_{j in B_s} g_j min(1, S / ||g_j||) + N(0, (sigma S)^2 I)) + r

The client's optimizer gets g in the place of the gradient. What a loss has besides its examples,
such as FedProx's proximal term, is r and is not clipped; one that compares examples of a batch sees
each of them alone. A client whose pass has b = ceil(n / B) batches makes as many steps as without
all this, with q = 1 / b: it is expected to see each example once in a pass. Of more examples than a
batch has places for, so many at random are taken; they compete for these with b B - n empty ones,
so that epsilon depends on b alone. jax-privacy clips.

The guarantee is for one example of one client, even if the others and the server see all that this
client sends: `accounting_examples` says what is composed. How many examples each client has is
public. Clients see their examples in training alone, so that all else they compute is made of its
result. An augmentation (config.data.augment) must change each image for itself. What `privacy` says
about what a simulation measures, about what clients keep and about floating point holds here too.
"""

from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp

from fedjax_lab import losses, sampling, streams, tree, wire
from fedjax_lab.errors import BadInput, check_positive
from fedjax_lab.transforms import accounting, accounting_examples, libraries, privacy, rehearsal
from fedjax_lab.transforms.accounting_examples import Training
from fedjax_lab.transforms.guarantee import Guarantee, Setup, noise_multiplier
from fedjax_lab.types import Client, Method, Stepping, Task, Weights, Work

NEIGHBORS = "the examples of all clients, one of which has a gradient of zero in one of them"
AT_RANDOM = (sampling.by_size, sampling.equal, sampling.shuffled)  # each client with m / C
PROTECTED = ("train", "steps", "optimizer", "frozen", "upload_key")  # of `Work`


def example_level(
    method: Method,
    task: Task,
    setup: Setup,
    *,
    clip: float | Literal["inf"] = 1.0,
    noise: float = 0.0,
    epsilon: float | Literal["inf"] = 0.0,
    delta: float = 0.0,
) -> Method:
    """Each client clips the gradient of each of its examples, and adds noise to their sum.

    Cohorts are drawn as without it. Where that gives each client the probability m / C to take part
    in a round this is taken into account, and else everybody is taken to be in every round. Epsilon
    after the first and after the last round is the highest of any client's. In between it is the
    higher one of these two clients', since it takes seconds for a client with many examples.

    clip: S, the largest norm of the gradient of an example; longer ones are shortened.
    noise: sigma, the standard deviation of the noise in the sum, relative to S; 0: the least that
        gives epsilon.
    epsilon: that the run has after its last round, in the place of noise; inf: no noise.
    delta: at which epsilon is meant; 0: n^-1.1 of the n examples of the largest client.
    """
    clip = float(clip)
    check_positive("privacy.clip", clip)
    if task.batch_norms:
        raise BadInput(
            "its model has BatchNorm, in which an example changes what becomes of the others; take"
            " a model without"
        )
    if method.init is None:
        raise BadInput("it starts from the state of an earlier stage")
    guarantee = _promise(method, task, setup, noise, float(epsilon), delta)
    stepping = partial(_stepping, setup, clip, noise_multiplier(guarantee, clip))

    def train(work, weights, loss, **options):
        return work.train(weights, loss, stepping=stepping, **options)

    return _with_training(method, train)._replace(guarantee=guarantee)


def _promise(method, task, setup, noise, epsilon, delta):
    """The guarantee; None without noise."""
    probability = setup.cohort / setup.num_clients if method.sample in AT_RANDOM else 1.0
    trainings = trainings_of_a_round(method, task, setup)
    each = accounting_examples.accounts(setup, trainings, probability)
    delta = accounting.chosen_delta(delta, max(setup.sizes))
    sigma = accounting.chosen_noise(
        noise, epsilon, lambda e: accounting_examples.noise_for(each, e, setup.rounds, delta)
    )
    if sigma == 0:
        return None

    def epsilons(rounds):
        clients = {accounting_examples.worst(each, sigma, t, delta) for t in (1, setup.rounds)}
        return [
            max(accounting_examples.epsilon(client, sigma, number, delta) for client in clients)
            for number in rounds
        ]

    return Guarantee(
        unit="example",
        neighbors=NEIGHBORS,
        delta=delta,
        noise=sigma,
        epsilons=epsilons,
        rounds=setup.rounds if epsilon else None,
    )


def trainings_of_a_round(method: Method, task: Task, setup: Setup) -> list[Training]:
    """What each call of `Work.train` by a client does in a round. No data are needed.

    BadInput for a method that learns of examples in other ways, or whose passes are not known.
    """
    trainings: list[Training] = []

    def train(work, weights, loss, *, epochs=None, steps=None, **options):
        epochs = setup.epochs if epochs is None else epochs
        if not isinstance(epochs, int):
            raise BadInput("its clients make passes whose number is not known before the run")
        trainings.append(Training(epochs, steps if isinstance(steps, int) else None))
        return weights

    noted = _with_training(method, train)
    each = tuple(e._replace(updates=lambda m, id, upload: wire.kept(upload)) for e in noted.round)
    init: Any = method.init
    state = jax.eval_shape(lambda: init(jax.random.key(0), setup.num_clients))
    rehearsal.updates(noted._replace(round=each), task, state, setup.num_clients)
    return trainings


# What clients do.


class Discreet(Client):
    """A client that does not tell a method how many examples of each class it has."""

    @property
    def label_count(self):
        raise BadInput(
            "its clients use how many examples of each class they have, which tells of single"
            " examples; config.privacy.name=central protects whole clients"
        )


def _with_training(method, train):
    """The method whose clients train by `train(work, ...)`, and see their examples only there."""

    def local(exchange, message, client, work):
        discreet: Any = Discreet(*client[:])
        others = {name: _refuse for name in Work._fields if name not in PROTECTED}
        return exchange.local(
            message, discreet, work._replace(train=partial(train, work), **others)
        )

    each = (exchange._replace(local=partial(local, exchange)) for exchange in method.round)
    return method._replace(round=tuple(each))


def _refuse(*args, **options):
    raise BadInput(
        "its clients learn of their examples in other ways than by training, where single examples"
        " are not protected; config.privacy.name=central protects whole clients"
    )


def _stepping(setup, clip, sigma, examples) -> Stepping:
    """How a client steps, of its `local.Examples`."""
    size, places = accounting_examples.batch_size(setup), accounting_examples.places(setup)
    if examples.plan.batch_size != size:
        raise BadInput(
            f"it trains on batches of {examples.plan.batch_size}, but what is accounted for are"
            f" batches of {size} (config.local.batch_size)"
        )
    q = 1 / examples.batches
    slots = jnp.arange(examples.padded.size)

    def draw(key):
        def of_step(s):
            u = jax.random.uniform(jax.random.fold_in(key, s), slots.shape)
            u = jnp.where(slots < examples.batches * size, u, 1)
            lowest, at = jax.lax.top_k(-u, min(places, len(slots)))
            return jnp.where((-lowest < q) & (at < examples.size), at, -1)

        return of_step

    return Stepping(draw, partial(_gradient, clip, sigma, 1 / (q * examples.size)))


def _gradient(clip, sigma, share, objective, free, batch, key):
    """((mean loss, statistics), g); share: 1 / (q n)."""
    library = libraries.of_privacy("jax_privacy", "jax-privacy")

    def value_and_stats(free, batch, key):
        value, out = objective(free, batch, key)
        if jax.tree.leaves(out.stats):
            raise BadInput("its model has running statistics, which are not protected")
        return value, out.stats

    nothing = tree.zeros(tree.take(batch, jnp.arange(1)))
    rest, stats = jax.grad(value_and_stats, has_aux=True)(free, nothing, key)
    summed = library.clipped_grad(
        value_and_stats,
        has_aux=True,
        l2_clip_norm=clip,
        return_values=True,
        pre_clipping_transform=lambda g: tree.sub(g, rest),
        prng_argnum=2,
    )
    total, each = summed(free, batch, key, is_padding_example=batch.mask == 0)
    leaves, structure = jax.tree.flatten(total)
    leaves = privacy.with_noise(leaves, streams.gradient(key), sigma * clip) if sigma else leaves
    gradient = tree.add(rest, jax.tree.unflatten(structure, leaves), share)
    value = losses.masked_mean(each.values, batch.mask)
    return (value, Weights((), stats)), tree.typed_like(gradient, free)
