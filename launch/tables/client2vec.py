"""Client2Vec's Table 1 on the digit domains and on Fashion-MNIST, shortened for two cores.

One run for each data set and kind of index computes the index, which the other runs use. The number
is the best of every fifth round of the mean accuracy over clients, which the paper reports too.
"""

import records
from records import GridRow

from fedjax_lab.papers.published import CLIENT2VEC_BASES

STEPS = {  # {column: improvements that it leaves out}
    "+i": ("aggregation", "local_training"),
    "+i+ii": ("local_training",),
    "+i+ii+iii": (),
}
INDICES = "federated", "global"
DATA = {  # {data: (config, bases, rounds, epochs of each kind of index)}
    "digits": (
        "configs/client2vec_digits.py",
        ("fedavg", "fedavgm", "feddyn", "moon", "fedlc", "fediir"),
        "30",
        {"federated": "30", "global": "30"},
    ),
    "fashion": (
        "configs/client2vec_fmnist.py",
        ("fedavg", "fedavgm", "feddyn", "moon", "fedlc"),
        "25",
        {"federated": "4", "global": "15"},
    ),
}
SIZE = {"embedding.size": "128"}
MEASURE = "max_over_rounds/accuracy.mean"
measured = records.in_rounds("max_over_rounds", "last", measures=("accuracy.mean",))


def cells(out):
    """For each data set its indices, and each base method alone and with the improvements."""
    made = []
    for data, (config, bases, rounds, epochs) in DATA.items():
        length = SIZE | {"run.rounds": rounds, "run.eval_every": "5"}
        made += [_index(data, config, kind, epochs[kind]) for kind in INDICES]
        for base in bases:
            made.append(records.cell(f"{data}/{base}", f"{config}:{base}", (0,), **length))
            made += [
                _improved(out, data, config, base, kind, step, length)
                for kind in INDICES
                for step in STEPS
            ]
    return made


def _index(data, config, kind, epochs):
    """The cell that computes an index, followed by only one round of training."""
    once = {"run.rounds": "1", "run.eval_every": "1"}
    settings = {"method.index": kind, "method.index_epochs": epochs}
    name = f"{data}/index-{kind}"
    return records.cell(name, f"{config}:client2vec", (0,), **SIZE, **once, **settings)


def _improved(out, data, config, base, kind, step, length):
    """The cell of a base method with improvements by an index."""
    index = f"{data}/index-{kind}"
    settings = {"index": kind, "index_of": str(out / index), "base": base}
    settings |= CLIENT2VEC_BASES.get(base, {}) | dict.fromkeys(STEPS[step], "False")
    overrides = length | {f"method.{key}": str(value) for key, value in settings.items()}
    name = f"{data}/{base}/{kind}{step}"
    made = records.cell(name, f"{config}:client2vec", (0,), **overrides)
    return made._replace(note={"needs": [index]})


def tables(of_table):
    """A table for each data set; the best number of each row is bold."""
    return [_table(of_table, data) for data in DATA]


def _table(of_table, data):
    _, bases, rounds, epochs = DATA[data]
    places = ["", *(f"/{kind}{step}" for kind in INDICES for step in STEPS)]
    rows = [GridRow(base, [f"{data}/{base}{place}" for place in places], MEASURE) for base in bases]
    title = (
        f"{data}: mean accuracy over clients in percent, the best of every fifth of {rounds} rounds"
        " (chosen on the test set itself), seed 0; epochs of the index: "
        + ", ".join(f"{kind} {epochs[kind]}" for kind in INDICES)
    )
    groups = [("", 1), *((kind, len(STEPS)) for kind in INDICES)]
    columns = ["alone", *[*STEPS] * len(INDICES)]
    return records.grid(title, columns, rows, of_table, groups=groups)
