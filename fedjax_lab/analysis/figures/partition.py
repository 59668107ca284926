"""Who holds what in a run: the classes and domains of each client's training examples.

python -m fedjax_lab.figures partition FOLDER [--seed=0]

--seed  the seed; default: the run's first seed

partition.png has the share of each class and domain in the examples of each client, and their
number, as `fedjax-lab run --partition_only` draws it. If there are many clients, it has a selection
from the smallest to the largest. numbers.json has the numbers of all clients. The data of the run
are read again; the run need not be finished.
"""

from pathlib import Path

from fedjax_lab.analysis import partition_tables
from fedjax_lab.analysis.figures.drawn import Drawn
from fedjax_lab.errors import BadInput
from fedjax_lab.running import loading


def draw(workdir: Path, *, seed: int | None = None) -> Drawn:
    """The partition of one seed of a run."""
    built = loading.build(workdir)
    simulation, dataset = built.simulation, built.dataset
    seed = simulation.seed_numbers[0] if seed is None else seed
    if seed not in simulation.seed_numbers:
        raise BadInput(f"{workdir} has no seed {seed}; valid: {simulation.seed_numbers}")
    federation = simulation.seeds[simulation.seed_numbers.index(seed)].federation
    held = partition_tables.held_by(federation, dataset)
    skew = simulation.plan.feature_skew
    images = partition_tables.skewed_images(dataset, federation, skew)
    numbers = {
        "clients": list(held.named),
        "classes": {"names": list(held.class_names), "examples": held.classes.tolist()},
        "domains": {"names": list(held.domain_names), "examples": held.domains.tolist()},
    }
    picture = partition_tables.draw(held, images)
    return Drawn({"partition": picture}, numbers, partition_tables.table(held))
