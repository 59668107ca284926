"""Random token ids in the shapes of a language model's data, to compile runs without their data.

    python launch/speed/aot.py --target=h100 --config=configs/flowertune.py \
        --config.data.name=launch/speed/random_texts.py:random_texts
"""

import numpy as np

from fedjax_lab.data.dataset import Dataset


def random_texts(
    *, rows: int = 2000, length: int = 512, vocabulary: int = 32_768, seed: int = 0
) -> Dataset:
    """x [rows, length] int32, and y, the next token of each one.

    rows: the number of rows, of which every tenth is for testing.
    length: the number of tokens of a row.
    vocabulary: the number of token ids.
    seed: the random seed.
    """
    ids = np.random.default_rng(seed).integers(0, vocabulary, (rows, length + 1), np.int32)
    return Dataset(
        x=ids[:, :-1],
        y=ids[:, 1:],
        domain=np.zeros(rows, np.int32),
        test=np.arange(rows) % 10 == 9,
        classes=tuple(map(str, range(vocabulary))),
        domains=("",),
    )
