"""The partition by natural users, such as the writers or authors of the examples."""

from typing import Annotated

import numpy as np

from fedjax_lab.data.partitions.dealing import Examples, mixed_by_number
from fedjax_lab.data.partitions.partitioning import Parts
from fedjax_lab.errors import BadInput
from fedjax_lab.ranges import NotNegative, Within, checked

SOURCES = (  # data sources that can have natural users
    "arrays",
    "generated_instructions",
    "huggingface",
    "image_folders",
    "image_table",
    "instructions",
    "leaf",
    "mapped",
    "plays",
    "records",
    "sentiment140",
    "shakespeare",
    "synthetic",
    "text_files",
    "tff_hdf5",
    "topics",
    "writers",
)


@checked("partition")
def by_client(
    examples: Examples,
    rng: np.random.Generator,
    *,
    num_clients: NotNegative[int] = 0,
    min_examples: Annotated[int, Within(1)] = 1,
) -> Parts:
    """By user: one client for each natural user, in the order of the users.

    A user's test examples are held by the same client. The global test set has the test examples of
    all users.

    num_clients: the number of users, drawn at random; 0: all.
    min_examples: the number of training examples that a user must have; other users are left out.
    """
    if examples.client is None:
        raise BadInput(
            "partition by_client needs the natural user of each example, which these data lack; use"
            " another partition, such as dirichlet or by_domain, or a data source that can have"
            f" natural users: {', '.join(SOURCES)}"
        )
    sizes = np.bincount(examples.client, minlength=len(examples.users))
    chosen = np.flatnonzero(sizes >= min_examples)
    if len(chosen) < max(num_clients, 1):
        remedy = "lower it or num_clients (0: all)" if num_clients else "lower it"
        raise BadInput(
            f"partition by_client needs at least {max(num_clients, 1)} users with at least"
            f" {min_examples} training examples (config.partition.min_examples), but {len(chosen)}"
            f" of {len(sizes)} users have that many, and the largest has {sizes.max()}; {remedy}"
        )
    if num_clients:
        chosen = np.sort(rng.choice(chosen, num_clients, replace=False))
    place = np.full(len(sizes), -1)
    place[chosen] = np.arange(len(chosen))
    return mixed_by_number(place[examples.client], len(chosen), rng)
