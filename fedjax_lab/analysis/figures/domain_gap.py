"""The gap between domains: the model of each client of a run, tested on every domain.

python -m fedjax_lab.figures domain_gap FOLDER [--seed=0]

--seed  the seed; default: the run's first seed

The accuracy in percent on the global test set is printed and drawn in domain_gap.png. Rows are
clients (or the domain that each client holds), columns are the domains of the test examples. To see
how different the domains are, use a run whose clients train alone:

python -m fedjax_lab.main --config=configs/digit_domains.py:local --workdir=runs/alone \\
    --config.run.rounds=30 --config.local.optimizer=adam --config.local.lr=1e-3
python -m fedjax_lab.figures domain_gap runs/alone
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_lab import losses
from fedjax_lab.analysis import finished, formats
from fedjax_lab.analysis.figures.drawn import Drawn
from fedjax_lab.errors import BadInput
from fedjax_lab.running import plots
from fedjax_lab.simulation.client_work import fetch

BATCH = 500  # examples at a time


def draw(workdir: Path, *, seed: int | None = None) -> Drawn:
    """A table and a picture of the accuracy of every client's model on every domain."""
    run = finished.load(workdir, seed)
    if run.federation.global_test is None:
        raise BadInput(f"{workdir}: the federation has no global test set")
    accuracy = accuracies(run)
    domains = list(run.experiment.dataset.domains)
    clients = [f"client {i}" for i in range(run.num_clients)]
    by_domain = run.experiment.config.partition.name == "by_domain"
    names = domains if by_domain and len(domains) == len(clients) else clients
    cells = [
        [name, *(f"{cell:.1f}" for cell in row)] for name, row in zip(names, accuracy, strict=True)
    ]
    table = formats.Table("accuracy, %: rows trained on, columns tested on", ["", *domains], cells)
    picture = plots.draw_heat_maps(
        {"": accuracy},
        "accuracy, %",
        plots.Side("trained on", names),
        plots.Side("tested on", domains),
        high=100,
        written=True,
    )
    return Drawn({"domain_gap": picture}, text=formats.markdown(table))


def accuracies(run: finished.Finished) -> np.ndarray:
    """The accuracy [C, D] in percent of each client's model on each domain of the global test."""
    losses.check_classes(run.experiment.task)
    rows = np.asarray(run.federation.global_test)
    domain = np.asarray(run.federation.domain)[rows]

    @jax.jit
    def is_right(message, client, rows):
        batch = fetch(run.federation, rows, run.plan)
        return jnp.argmax(run.method.predict(message, client, batch.x), -1) == batch.y

    starts = range(0, len(rows), BATCH)
    accuracy = []
    for i in range(run.num_clients):
        client, message = run.client(i)
        right = np.concatenate([is_right(message, client, rows[k : k + BATCH]) for k in starts])
        domains = range(len(run.experiment.dataset.domains))
        accuracy.append([100 * right[domain == d].mean() for d in domains])
    return np.array(accuracy)
