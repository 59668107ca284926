"""Example-level differential privacy: DP-SGD (Abadi et al., CCS 2016, arXiv:1607.00133).

  B_s     each of the client's n examples with probability q, drawn independently in every step
  r       the gradient of the loss of no example
  g_j     the gradient of the loss of example j alone, minus r
  g       1/(q n) (sum_{j in B_s} g_j min(1, S / ||g_j||) + N(0, (sigma S)^2 I)) + r

The client's optimizer gets g instead of the gradient. r comes from the terms of a loss that do not
depend on examples, such as FedProx's proximal term, and is not clipped. A loss that compares the
examples of a batch sees each example alone. A client whose pass has b = ceil(n / B) batches makes
as many steps as without DP-SGD, with q = 1 / b, so that it is expected to see each example once in
a pass. If more examples are drawn than fit in a batch, a random subset is taken; b B - n empty
examples are drawn as well and compete for these places, so that epsilon only depends on b.
jax-privacy does the clipping.

The guarantee is for one example of one client, even against the other clients and the server, who
see everything that this client sends. `accounting_examples` describes the mechanisms that are
composed. The number of examples of each client is public. Clients see their examples only in
training; everything else that they compute is therefore post-processing and costs no privacy. An
augmentation (config.data.augment) must change each image independently of the others. The remarks
in `privacy` on the measurements of a simulation, on the private state of clients and on
floating-point numbers also hold here.
"""

from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from fedjax_lab import losses, streams, tree, wire
from fedjax_lab.errors import BadInput
from fedjax_lab.ranges import BelowOne, NotNegative, Positive, checked
from fedjax_lab.sampling import AT_RANDOM
from fedjax_lab.simulation import needs
from fedjax_lab.transforms import accounting, accounting_examples, libraries, privacy, rehearsal
from fedjax_lab.transforms.accounting_examples import Training
from fedjax_lab.transforms.guarantee import Guarantee, Setup, noise_multiplier
from fedjax_lab.types import Client, Method, Stepping, Task, Weights, Work

NEIGHBORS = "the examples of all clients, one of which has a gradient of zero in one of them"
PROTECTED = ("train", "switch", "steps", "optimizer", "frozen", "upload_key")  # in use


@checked("privacy")
def example_level(
    method: Method,
    task: Task,
    setup: Setup,
    *,
    clip: Positive[float] | Literal["inf"] = 1.0,
    noise: NotNegative[float] = 0.0,
    epsilon: NotNegative[float] | Literal["inf"] = 0.0,
    delta: BelowOne = 0.0,
) -> Method:
    """Each client clips the gradient of each of its examples, and adds noise to their sum.

    The cohorts are those of the method. If each client takes part in a round with a probability of
    m / C, the accounting uses this; otherwise it assumes that every client takes part in every
    round. The epsilon after the first and after the last round is the highest of all clients. In
    between it is the higher one of the two clients with these epsilons, because computing epsilon
    takes seconds for a client with many examples.

    clip: S, the largest norm of the gradient of an example; larger gradients are scaled down to it.
    noise: sigma, the standard deviation of the noise in the sum, relative to S; 0: the smallest one
        for the given epsilon.
    epsilon: the epsilon of the run after its last round, given instead of noise; inf: no noise.
    delta: the delta of the guarantee; 0: n^-1.1 for the n examples of the largest client.
    """
    clip = float(clip)
    if task.levels and method.extra.absent:
        raise BadInput(
            "its clients train parts of a model, and the noise would be added to all weights; leave"
            " out config.partition.capacity"
        )
    if any(kind.batch_norms for kind in (task, *task.kinds)):
        raise BadInput(
            "its model has BatchNorm, with which an example changes the outputs for the other"
            " examples of its batch; choose a model without BatchNorm"
        )
    needs.check(method, "first_state")
    guarantee = _promise(method, task, setup, noise, float(epsilon), delta)
    stepping = partial(_stepping, setup, clip, noise_multiplier(guarantee, clip))

    def train(work, weights, loss, **options):
        return work.train(weights, loss, stepping=stepping, **options)

    return _with_training(method, train).having(guarantee=guarantee)


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
    """Returns the length of each call of `Work.train` by a client in a round. No data are needed.

    Raises BadInput for a method whose clients use their examples in other ways, or make a number of
    passes that is not known before the run.
    """
    trainings: list[Training] = []

    def train(work, weights, loss, *, epochs=None, steps=None, **options):
        epochs = setup.epochs if epochs is None else epochs
        if not isinstance(epochs, int):
            raise BadInput(
                "its clients make a number of passes that is not known before the run, so that"
                " epsilon cannot be computed"
            )
        if "public" in options:
            raise BadInput("its clients also train on examples that are not their own")
        trainings.append(Training(epochs, steps if isinstance(steps, int) else None))
        return weights

    noted = _with_training(method, train)
    each = tuple(e._replace(updates=lambda m, id, upload: wire.kept(upload)) for e in noted.round)
    init: Any = method.init
    state = jax.eval_shape(lambda: init(jax.random.key(0), setup.num_clients))
    rehearsal.updates(noted._replace(round=each), task, state, setup.num_clients)
    return trainings


# The training of a client.


class Discreet(Client):
    """A client that does not give a method its number of examples of each class."""

    @property
    def label_count(self):
        raise BadInput(
            "its clients use their numbers of examples of each class, which reveal single examples;"
            " config.privacy.name=central protects whole clients"
        )


def _with_training(method, train):
    """The method whose clients train by `train(work, ...)` and see their examples only in it."""

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
        "its clients use their examples outside of training, where single examples are not"
        " protected; config.privacy.name=central protects whole clients"
    )


def _stepping(setup, clip, sigma, examples) -> Stepping:
    """The steps of a client, from its `local.Examples`."""
    size, places = accounting_examples.batch_size(setup), accounting_examples.places(setup)
    if examples.plan.batch_size != size:
        raise BadInput(
            f"it trains on batches of {examples.plan.batch_size}, but the privacy accounting"
            f" assumes batches of {size} (config.local.batch_size)"
        )
    q = 1 / examples.batches
    slots = jnp.arange(examples.padded.size)

    def draw(key):
        def step_examples(s):
            u = jax.random.uniform(jax.random.fold_in(key, s), slots.shape)
            u = jnp.where(slots < examples.batches * size, u, 1)
            lowest, at = jax.lax.top_k(-u, min(places, len(slots)))
            return jnp.where((-lowest < q) & (at < examples.size), at, -1)

        return step_examples

    return Stepping(draw, partial(_gradient, clip, sigma, 1 / (q * examples.size)))


def _gradient(clip, sigma, share, objective, free, batch, key):
    """Returns ((mean loss, statistics), g). share: 1 / (q n)."""
    library = libraries.import_library("jax_privacy", "jax-privacy")

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
        pre_clipping_transform=lambda g: optax.tree.sub(g, rest),
        prng_argnum=2,
    )
    total, each = summed(free, batch, key, is_padding_example=batch.mask == 0)
    leaves, structure = jax.tree.flatten(total)
    leaves = privacy.with_noise(leaves, streams.gradient(key), sigma * clip) if sigma else leaves
    gradient = tree.add(rest, jax.tree.unflatten(structure, leaves), share)
    value = losses.masked_mean(each.values, batch.mask)
    return (value, Weights((), stats)), tree.typed_like(gradient, free)
