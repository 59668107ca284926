"""hFedF's precomputed embeddings of clients, by an autoencoder on each client's images (Table 9).

  local   an autoencoder, the same start for all, <- Adam on the squared error of 100 images
          upload the mean latent

The paper takes the mean over validation images; here a client uses its training images instead.
"""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import losses, optim, sampling, wire
from fedjax_lab.errors import BadInput
from fedjax_lab.papers.hfedf.autoencoder import Autoencoder
from fedjax_lab.simulation.client_work import num_batches
from fedjax_lab.types import Exchange, Method, PyTree, Stage, State, Task

IMAGES, EPOCHS, BATCH, LR = 100, 100, 32, 1e-3  # the paper only gives the number of images


def embed(task: Task, size: int) -> Stage:
    """Returns a stage of one round that computes the embeddings nu [C, size].

    They are the second entry of the server's state. The stage has no model to predict with.
    """
    check_images(task)
    shape = (1, *task.input_shape)
    net = Autoencoder(size)

    def init(key, num_clients):
        return State((net.init(key, jnp.zeros(shape)), jnp.zeros((num_clients, size))), ())

    def error(params, x, mask):
        made, _ = net.apply(params, x)
        return losses.masked_mean(jnp.mean((made - x) ** 2, (1, 2, 3)), mask)

    def local(params, client, work):
        params = fit(error, params, work.draw(IMAGES))

        def latent(batch):
            return losses.masked_mean(net.apply(params, batch.x)[1], batch.mask)

        return work.mean(latent), ()

    def aggregate(server, nu, cohort):
        return server[0], server[1].at[cohort.id].set(nu)

    def predict(params, client, x):
        return jnp.zeros((len(x), task.num_classes))

    exchange = Exchange(lambda server, id: server[0], local, aggregate, updates=wire.all_kept)
    method = Method(
        init=init,
        round=(exchange,),
        predict=predict,
        newcomer=lambda state: ((), ()),
        sample=sampling.all_clients,
    )
    return Stage("embed", method, 1, reliable=True)


def check_images(task: Task) -> None:
    """Raises BadInput unless the task's inputs are images that the autoencoder can reconstruct."""
    shape = (1, *task.input_shape)
    if len(shape) != 4 or shape[1] % 4 or shape[2] % 4:
        raise BadInput(
            "config.method.embedding: an autoencoder needs images whose height and width are"
            " multiples of 4"
        )
    low, high = np.min(task.bounds[0]), np.max(task.bounds[1])
    if not -1e-6 < low <= high < 1 + 1e-6:  # the decoder ends in a sigmoid
        raise BadInput(
            f"config.method.embedding: an autoencoder needs inputs from 0 to 1, not {low:.3g} to"
            f" {high:.3g}; config.data.normalize=unit scales 8-bit images to this range"
        )


def fit(error, params, batch) -> PyTree:
    """Returns the autoencoder's weights after EPOCHS passes over a batch of images, in order."""
    adam = optim.adam(LR)
    count = num_batches(jnp.sum(batch.mask), BATCH)
    pad = -IMAGES % BATCH
    x = jnp.pad(batch.x, ((0, pad), *((0, 0),) * (batch.x.ndim - 1)))
    mask = jnp.pad(batch.mask, (0, pad))

    def loss(params, s):
        start = s % count * BATCH
        return error(params, *(jax.lax.dynamic_slice_in_dim(a, start, BATCH) for a in (x, mask)))

    return optim.minimize(adam, loss, (params, adam.init(params)), EPOCHS * count)[0]
