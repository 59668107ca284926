"""A Python file with a user-defined part of each kind, as a researcher would write it."""

from pathlib import Path

OWN = '''
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_lab.data.dataset import Dataset
from fedjax_lab.models.embeddings import Embeddings
from fedjax_lab.methods.fedprox import fedprox


def near(task, *, pull: float = 0.5, epochs_of_start: int = 1):
    """pull: weight of the term that keeps the weights near."""
    return fedprox(task, mu=pull)


def twice(task, make_base, *, strength: float = 1.0):
    """A wrapper that leaves its base as it is."""
    return make_base(task)


def net(num_classes, *, width: int = 8):
    return Net(num_classes, width)


class Net(nn.Module):
    num_classes: int
    width: int = 8
    activation: object = nn.relu

    @nn.compact
    def __call__(self, x):
        z = self.activation(nn.Dense(self.width)(x.reshape(len(x), -1)))
        return nn.Dense(self.num_classes)(z)


def blobs(*, count: int = 240, spread: float = 1.0):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, count)
    x = (2 * rng.normal(size=(3, 5)))[y] + spread * rng.normal(size=(count, 5))
    return Dataset(
        x=x.astype(np.float32),
        y=y.astype(np.int32),
        domain=np.zeros(count, np.int32),
        test=np.arange(count) % 5 == 0,
        classes=("a", "b", "c"),
        domains=("all",),
    )


def halves(y, domain, num_clients, rng, *, shuffle: bool = True):
    order = rng.permutation(len(y)) if shuffle else np.arange(len(y))
    return [part.astype(np.int32) for part in np.array_split(order, num_clients)]


def flat(dataset, *, size: int = 32):
    return Embeddings(np.ones((len(dataset.y), size), np.float32), np.eye(3, size))


def brighter(key, x):
    return x + 1


def steps(lr, *, nesterov: bool = False, momentum: float = 0.5):
    return optax.sgd(lr, momentum, nesterov)


def first_ones(key, server, population, m):
    return jnp.arange(m), jnp.full(m, 1 / m)


def right(logits, labels, mask):
    return (jnp.argmax(logits, 1) == labels).astype(jnp.float32)


def get_config(method="near"):
    return {
        "data": {"name": blobs},
        "partition": {"name": halves, "num_clients": 4},
        "model": {"name": Net, "width": 4},
        "method": {"name": method if method != "near" else near},
        "local": {"optimizer": steps, "lr": 0.1},
        "run": {"rounds": 2, "eval_every": 1, "metrics": (right,)},
    }


def shift(task, shift):  # no method: what is the second argument?
    return near(task)


def no_default(task, *, pull):
    return near(task)


NUMBER = 3
PARTIAL = jax.tree_util.Partial(near, pull=0.25)
'''


def write(folder: Path, name: str = "own.py") -> Path:
    """Writes the file into a folder and returns its path."""
    (folder / name).write_text(OWN)
    return folder / name
