"""Why FedConcat concatenates encoders: Tables 6 and 7 of its Appendix C (arXiv:2312.06290).

python -m fedjax_lab.figures encoder_exchange FOLDER [--clients=0,1] [--seed=1]

--clients  the two clients
--seed     the seed; default: the run's first seed

The models are those of two clients of a run in which every client has a model, preferably a run
whose clients train alone:

python -m fedjax_lab.main --config=configs/fmnist_label_skew.py:local --workdir=runs/alone \\
    --seeds=1 --config.run.rounds=1 --config.local.epochs=50

Their encoders (all layers but the head) are frozen, and two probes are trained on the features for
as many epochs as the run has: a linear classifier, with the clients' optimizer, and a decoder. The
table shows the losses of the probes on their own training examples: the cross-entropy, and the mean
squared error of a pixel in [0, 1]. The ratio to the first row of the task follows in parentheses.
The row `none` has the losses of constant predictions, without any features: the entropy of the
labels, and the variance of a pixel. numbers.json has the losses.

Table 6 consists of the first two tasks, with a client's own encoder and the exchanged one. Table 7
is the third task, with the examples of both clients. `averaged` is the size-weighted mean of both
encoders' parameters; `concatenated` has the features of both side by side.

The paper does not state how its probes are built and trained. The decoder here (dense 256, ReLU,
dense to the pixels, sigmoid; Adam 1e-3) and the epochs are our choice, so only ratios can be
compared. The paper's clients hold classes 0 and 2, and 1 and 9, as do those of --seed=0
--clients=2,29, for which the variance of a pixel is close to the paper's reconstruction losses.
"""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import entropy

from fedjax_lab import losses, optim, tree
from fedjax_lab.analysis import finished, formats
from fedjax_lab.analysis.figures.drawn import Drawn
from fedjax_lab.errors import BadInput
from fedjax_lab.models import nets
from fedjax_lab.models.task import make_task
from fedjax_lab.simulation.client_work import client_federation, fetch, make_work
from fedjax_lab.types import ROWS, Array, Batch, Federation, Plan, Task, Weights

Losses = tuple[float, float]  # classification, reconstruction
PUBLISHED = {  # task -> encoder -> losses; rows are identified by their order in the paper
    "client 1": {"encoder 1": (0.0235, 0.0646), "encoder 2": (0.2345, 0.0657)},
    "client 2": {"encoder 2": (0.0007, 0.0796), "encoder 1": (0.0292, 0.0816)},
    "both": {
        "concatenated": (0.0493, 0.0819),
        "encoder 1": (0.0810, 0.0817),
        "encoder 2": (0.2456, 0.0823),
        "averaged": (0.1072, 0.0850),
    },
}


def draw(workdir: Path, *, clients: str = "0,1", seed: int | None = None) -> Drawn:
    """The losses of probes trained on the encoders of two clients of a run."""
    run = finished.load(workdir, seed)
    chosen = two_clients(clients, run.num_clients)
    plan = run.plan._replace(epochs=run.plan.epochs * run.plan.rounds)
    held = [
        (client_federation(run.federation, run.client(i)[0]), run.federation.train[i])
        for i in chosen
    ]
    data = [fetch(federation, rows[rows >= 0], plan) for federation, rows in held]
    models = jax.tree.map(lambda *a: jnp.stack(a), *(run.model(i) for i in chosen))
    measured = exchange(run.experiment.task, models, data, plan, jax.random.key(run.seed))
    classes = [np.unique(batch.y).tolist() for batch in data]
    facts = {"seed": run.seed, "clients": chosen, "classes": classes, "epochs": plan.epochs}
    title = f"seed {run.seed}, clients {chosen} with classes {classes}, {plan.epochs} epochs"
    text = formats.markdown(table(title, measured))
    return Drawn({}, {**facts, "losses": measured}, text)


def two_clients(text: str, num_clients: int) -> list[int]:
    """Parses two clients such as 0,1. Raises BadInput unless they exist and are different."""
    clients = [int(part) if part.isdecimal() else -1 for part in text.split(",")]
    if len(clients) != 2 or len(set(clients)) != 2 or not set(clients) <= set(range(num_clients)):
        raise BadInput(f"--clients={text} must be two different numbers in 0..{num_clients - 1}")
    return clients


def exchange(task: Task, models: Weights, data: list[Batch], plan: Plan, key: Array):
    """The losses {task: {encoder: Losses}} of all probes, in the layout of PUBLISHED.

    Args:
      task: the run's task.
      models: [2, ...] the models of both clients.
      data: the training examples of both clients.
      plan: the optimizer and the epochs of the classifier.
      key: the random key.
    """
    encoders = make_encoders(models, [len(batch.y) for batch in data])
    both = jax.tree.map(lambda *a: jnp.concatenate(a), *data)
    measure = jax.jit(partial(probe, task.num_classes, plan))
    measured = {}
    for name, examples in zip(PUBLISHED, [*data, both], strict=True):
        features = {e: encode(task, encoders[e], examples.x) for e in PUBLISHED[name]}
        rows = {e: jax.device_get(measure(z, examples, key)) for e, z in features.items()}
        rows["none"] = constant(examples)
        measured[name] = {e: (float(a), float(b)) for e, (a, b) in rows.items()}
    return measured


def make_encoders(models: Weights, sizes: list[int]) -> dict[str, list[Weights]]:
    """Each encoder of Table 7, as a list of the models whose features it concatenates."""
    one, two = (tree.take(models, i) for i in range(2))
    average = tree.mix(jnp.array(sizes) / sum(sizes), models)
    single = {"encoder 1": [one], "encoder 2": [two], "averaged": [average]}
    return {**single, "concatenated": [one, two]}


def encode(task: Task, encoder: list[Weights], x: Array) -> Array:
    """The features of x [R, ...] in evaluation mode: [R, D] of each model, concatenated."""
    return jnp.concatenate([jax.jit(task.apply)(w, x).features for w in encoder], axis=-1)


def probe(num_classes: int, plan: Plan, features: Array, data: Batch, key: Array):
    """Trains both probes on the features [R, D] of R examples; returns their losses."""
    width, pixels = features.shape[1:], data.x.reshape(len(data.x), -1)
    classifier = make_task(nets.mlp(num_classes, depth=0), width, num_classes)
    decoder = make_task(nets.mlp(pixels.shape[1], width=256), width, pixels.shape[1])

    def squared_error(w, batch, key=None):
        out = decoder.apply(w, batch.x, key)
        error = jnp.mean((jax.nn.sigmoid(out.logits) - batch.y) ** 2, axis=-1)
        return losses.masked_mean(error, batch.mask), out

    adam = plan._replace(optimizer=optim.adam(1e-3))
    return (
        fit(classifier, losses.risk(classifier), features, data.y, plan, key),
        fit(decoder, squared_error, features, pixels, adam, key),
    )


def fit(task: Task, loss: losses.Loss, x: Array, y: Array, plan: Plan, key: Array) -> Array:
    """Trains the task on examples (x [R, D], y [R, ...]); returns its mean loss on them."""
    none: dict[str, Any] = dict.fromkeys(("domain", *ROWS))
    pool = Federation(x=x, y=y, center=jnp.float32(0), scale=jnp.float32(1), **none)
    k_init, k_train = jax.random.split(key)
    plan = plan._replace(example_shape=())
    work, _ = make_work(pool, jnp.arange(len(x)), plan, k_train)
    weights = work.train(task.init(k_init), loss)
    return work.mean(lambda batch: loss(weights, batch, None)[0])


def constant(data: Batch) -> Losses:
    """The losses of the best constant predictions."""
    count = np.unique(data.y, return_counts=True)[1]
    return entropy(count), np.var(data.x, axis=0).mean()


def table(title: str, measured: dict[str, dict[str, Losses]]) -> formats.Table:
    """A table of each encoder's losses by task, beside the published ones."""
    header = ["task", "encoder", "classification", "published", "reconstruction", "published"]
    cells = []
    for task, rows in measured.items():
        published = shown(PUBLISHED[task])
        for encoder, (a, b) in shown(rows).items():
            c, d = published.get(encoder, ("", ""))
            cells.append([task, encoder, a, c, b, d])
    return formats.Table(title, header, cells)


def shown(rows: dict[str, Losses]) -> dict[str, list[str]]:
    """Each loss as text, with its ratio to that of the first row."""
    first = next(iter(rows.values()))
    return {
        encoder: [f"{loss:.4f} ({loss / one:.2f})" for loss, one in zip(pair, first, strict=True)]
        for encoder, pair in rows.items()
    }
