"""Client2Vec's local term (eq. 4) with an index of 512 numbers: 20 rounds, one seed.

A last table has one reading that did no harm in 20 rounds, for 100 rounds of the digits and three
seeds, with an index of 128 numbers.

One run for each data set computes the index, which the other runs use. i+ii: sampling and
aggregation; w=0.1, 1, 5: also local training with this weight (the paper's is 5); kl: without
|z P B^f|; detached: without the gradient of the KL term with respect to o.
"""

import records

PAGE = "results_client2vec.md"
SETS = {"digits": "configs/client2vec_digits.py", "fashion": "configs/client2vec_fmnist.py"}
EPOCHS = {"digits": "16", "fashion": "2"}  # of training the index network; 500 in the paper
SHORT = {"run.rounds": "20", "run.eval_every": "5"}
READINGS: dict[str, dict[str, str]] = {
    "i+ii": {"method.local_training": "False"},
    "w=0.1": {"method.local_weight": "0.1"},
    "w=1": {"method.local_weight": "1"},
    "w=5": {"method.local_weight": "5"},
    "w=5,kl": {"method.local_orth": "False"},
    "w=5,detached": {"method.detach_teacher": "True"},
}
BASES = {"digits": ("fedavg", "fedavgm", "feddyn"), "fashion": ("fedavg",)}
LONG = {"run.rounds": "100", "run.eval_every": "5"}
SMALL_INDEX = {"method.index_epochs": "16", "embedding.size": "128"}
IN_LONG: dict[str, dict[str, str]] = {"i+ii": READINGS["i+ii"], "w=1": READINGS["w=1"]}
measured = records.in_rounds("max_over_rounds", "last", measures=("accuracy.mean",))


def cells(out):
    """For each data set its index, and each base method alone and with the readings."""
    made = []
    for data, config in SETS.items():
        index = {"method.index_epochs": EPOCHS[data], "embedding.size": "512"}
        once = {"run.rounds": "1", "run.eval_every": "1", "method.local_training": "False"}
        made.append(records.cell(f"{data}-index", f"{config}:client2vec", (0,), **index, **once))
        for base in BASES[data]:
            made.append(records.cell(f"{data}-{base}", f"{config}:{base}", (0,), **SHORT))
            made += [_improved(out, data, base, name) for name in READINGS]
    return made + _long(out)


def _improved(out, data, base, name):
    """The cell of a base method with a reading, which needs the index of its data set."""
    of_base = {"method.index_of": str(out / f"{data}-index"), "method.base": base}
    settings = SHORT | of_base | READINGS[name]
    made = records.cell(f"{data}-{base}-{name}", f"{SETS[data]}:client2vec", (0,), **settings)
    return made._replace(note={"needs": [f"{data}-index"]})


def _long(out):
    """The cells of 100 rounds with three seeds: the index, FedAvg alone, and IN_LONG."""
    config, seeds, index = SETS["digits"], (0, 1, 2), "long-index"
    once = {"run.rounds": "1", "run.eval_every": "1", "method.local_training": "False"}
    made = [records.cell(index, f"{config}:client2vec", seeds, **SMALL_INDEX, **once)]
    made.append(records.cell("long-fedavg", f"{config}:fedavg", seeds, **LONG))
    for name, reading in IN_LONG.items():
        of_index = {"method.index_of": str(out / index), "embedding.size": "128"}
        settings = LONG | of_index | reading
        cell = records.cell(f"long-fedavg-{name}", f"{config}:client2vec", seeds, **settings)
        made.append(cell._replace(note={"needs": [index]}))
    return made


def tables(of_table):
    """One table for each data set, with the base methods below each other, and one of IN_LONG."""
    columns = {"best round": "max_over_rounds/accuracy.mean", "last": "last/accuracy.mean"}
    title = "accuracy in percent, mean over clients"
    short = [
        records.table(f"{data}: {title}, 20 rounds, seed 0.", _rows(data), columns, of_table)
        for data in SETS
    ]
    rows = ["long-fedavg", *(f"long-fedavg-{name}" for name in IN_LONG)]
    title = f"digits: {title}, 100 rounds, mean (population standard deviation) over seeds 0, 1, 2."
    return [*short, records.table(title, rows, columns, of_table)]


def _rows(data):
    """The names of the cells of a data set, without the cell of its index."""
    return [
        each
        for base in BASES[data]
        for each in (f"{data}-{base}", *(f"{data}-{base}-{name}" for name in READINGS))
    ]
