"""Tables with users of their own, from the packages of R: loans, chemistry and flights.

`fedjax_lab.data.natural_tables` makes their Parquet files and has the columns.
"""

from pathlib import Path
from typing import Literal

from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.declared import source
from fedjax_lab.data.natural_tables import TABLES
from fedjax_lab.data.places import locate
from fedjax_lab.data.sources.table import table
from fedjax_lab.ranges import BelowOne, NotNegative

REMEDY = (
    "`pip install 'fedjax-lab[natural]'` and `python -m fedjax_lab.data.natural_tables` make it, or"
    " name the folder with it with --config.data.folder"
)


@source(REMEDY)
def natural(
    *,
    dataset: Literal["loans", "chemistry", "flights"],
    folder: str = "",
    test: BelowOne = 0.2,
    test_seed: NotNegative[int] = 0,
    normalize: str = "standard",
) -> Dataset:
    """Examples of a table as in the source `table`; a user is a state, a school or an airport.

    dataset: loans, the interest rate of 10,000 loans by state; chemistry, the score of 31,022
        pupils at A-level in chemistry by school; flights, whether a flight from New York arrives
        more than 15 minutes late (327,346), by its destination.
    folder: the folder with NAME.parquet; empty: ~/.cache/fedjax_lab/natural and data/natural.
    test: the share of the rows of each user and class that are drawn as test rows.
    test_seed: the seed of the draw.
    normalize: config.data.normalize.
    """
    chosen = TABLES[dataset]
    return table(
        path=str(find(dataset, folder)),
        target=chosen.target,
        client=chosen.client,
        test=test,
        test_seed=test_seed,
        normalize=normalize,
    )


def find(dataset: str, folder: str) -> Path:
    """The Parquet file of a table."""
    return locate(folder, (f"{dataset}.parquet", f"natural/{dataset}.parquet"))
