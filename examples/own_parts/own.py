"""An example of a user's own method, model, data source, partition and metric, with a config.

Clients hold digits of different rotations, and most of the digits are upright. FedAvg serves the
clients with rare rotations badly; the method here gives more weight to clients with larger losses.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

from fedjax_lab import losses, tree
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.types import Exchange, Method, Task


def tilted(task: Task, *, tilt: float = 1.0) -> Method:
    """FedAvg with tilted weights of clients (TERM, Li et al., ICLR 2021, arXiv:2007.01162).

    send    w_t
    local   F_i(w_t) on all examples, then as FedAvg
    server  w_{t+1} = sum_i a_i w_i,  a_i ~ n_i exp(t F_i(w_t))    (Lemma 1)

    tilt: t; 0 is FedAvg, and for large t only the client with the largest loss counts.
    """
    risk, plain = losses.risk(task), fedavg(task)

    def local(w_t, client, work):
        loss = work.mean(lambda batch: risk(w_t, batch)[0])
        return (work.train(w_t, risk), loss), client.private

    def aggregate(w_t, uploads, cohort):
        w, loss = uploads  # [M, ...], [M]
        return tree.mix(jax.nn.softmax(jnp.log(cohort.weight) + tilt * loss), w)  # Lemma 1

    return plain._replace(round=(Exchange(plain.round[0].send, local, aggregate),))


class SmallCNN(nn.Module):
    """A CNN with one convolution and one hidden layer. Fields with a default are settings."""

    num_classes: int
    channels: int = 16
    hidden: int = 64

    @nn.compact
    def __call__(self, x):  # [B, 8, 8, 1]
        x = nn.relu(nn.Conv(self.channels, (3, 3))(x))
        x = nn.max_pool(x, (2, 2), (2, 2))
        x = nn.relu(nn.Dense(self.hidden)(x.reshape(len(x), -1)))
        return nn.Dense(self.num_classes)(x)


def rotated_digits(*, imbalance: float = 2.0) -> Dataset:
    """Scikit-learn's 1,797 digits, each rotated by 0, 90, 180 or 270 degrees; angles are domains.

    imbalance: expected number of digits of a domain, divided by that of the next one.
    """
    digits, rng = load_digits(), np.random.default_rng(0)
    share = imbalance ** -np.arange(4.0)
    domain = rng.choice(4, len(digits.target), p=share / share.sum())
    images = (digits.images * (255 / 16)).astype(np.uint8)  # [R, 8, 8]
    turned = [np.rot90(x, quarters) for x, quarters in zip(images, domain, strict=True)]
    return Dataset(
        x=np.stack(turned)[..., None],
        y=digits.target.astype(np.int32),
        domain=domain.astype(np.int32),
        test=rng.random(len(domain)) < 0.25,
        classes=tuple("0123456789"),
        domains=tuple(f"{90 * quarters} degrees" for quarters in range(4)),
    )


def power_law(y, domain, num_clients, rng, *, exponent: float = 0.5) -> list[np.ndarray]:
    """Each client holds one domain; the k-th client of a domain has size ~ k^-exponent."""
    parts = {}
    for z in range(num_domains := int(domain.max()) + 1):
        clients = range(z, num_clients, num_domains)
        share = np.cumsum(np.arange(1.0, len(clients) + 1) ** -exponent)
        rows = rng.permutation(np.flatnonzero(domain == z))
        cuts = (share[:-1] / share[-1:] * len(rows)).astype(int)
        parts.update(zip(clients, np.split(rows, cuts), strict=False))
    return [parts[client] for client in range(num_clients)]


def margin(logits, labels, mask):
    """The probability [N] of the label minus that of the most probable other class."""
    p, label = jax.nn.softmax(logits), jax.nn.one_hot(labels, logits.shape[1])
    return jnp.sum(p * label, 1) - jnp.max(p * (1 - label), 1)


def get_config(method=tilted):
    """The config of the example; `fedjax-lab run --config=own.py --show_config` shows all keys."""
    return {
        "data": {"name": rotated_digits},
        "partition": {"name": power_law, "num_clients": 12},
        "model": {"name": SmallCNN},
        "method": {"name": method},
        "local": {"lr": 0.05, "momentum": 0.9, "batch_size": 16},
        "run": {"rounds": 20, "eval_every": 5, "metrics": (margin,)},
    }
