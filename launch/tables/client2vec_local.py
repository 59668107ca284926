"""Client2Vec's local term (eq. 4) with an index of 512 numbers: 20 rounds, one seed.

The table of L_orth has the same length and seed, and indices of 128 numbers whose products |Z U^T|
of a batch are averaged (mean), summed (sum), or summed and divided by the batch size (batchmean).
Their beta^f are shorter, so that w=1 is about the same weight as w=0.1 with 512 numbers. The last
table has 100 rounds of the digits and three seeds, with such an index.

One run for each data set and reduction computes the index, which the other runs use. i+ii: sampling
and aggregation; w=0.1, 1, 5: also local training with this weight (the paper's is 5); kl: without
|z P B^f|; detached: without the gradient of the KL term with respect to o.
"""

import records
from records import GridRow

from fedjax_lab.papers.published import CLIENT2VEC_BASES

PAGE = "results_client2vec.md"
SETS = {"digits": "configs/client2vec_digits.py", "fashion": "configs/client2vec_fmnist.py"}
EPOCHS = {"digits": "16", "fashion": "2"}  # of training the index network; 500 in the paper
ONCE = {"run.rounds": "1", "run.eval_every": "1", "method.local_training": "False"}  # of an index
SHORT = {"run.rounds": "20", "run.eval_every": "5"}
READINGS: dict[str, dict[str, str]] = {
    "i+ii": {"method.local_training": "False"},
    "w=0.1": {"method.local_weight": "0.1"},
    "w=1": {"method.local_weight": "1"},
    "w=5": {"method.local_weight": "5"},
    "w=5,kl": {"method.local_orth": "False"},
    "w=5,detached": {"method.detach_teacher": "True"},
}
REDUCTIONS = "mean", "batchmean", "sum"  # of |Z U^T| in L_orth of an index
IN_REDUCTIONS = "i+ii", "w=1", "w=5"
BASES = {"digits": ("fedavg", "fedavgm", "feddyn"), "fashion": ("fedavg",)}
LONG = {"run.rounds": "100", "run.eval_every": "5"}
SMALL = {"embedding.size": "128"}
IN_LONG: dict[str, dict[str, str]] = {"i+ii": READINGS["i+ii"], "w=1": READINGS["w=1"]}
MEASURE = "last/accuracy.mean"
measured = records.in_rounds("max_over_rounds", "last", measures=("accuracy.mean",))


def cells(out):
    """For each data set its index, and each base method alone and with the readings."""
    made = []
    for data, config in SETS.items():
        index = {"method.index_epochs": EPOCHS[data], "embedding.size": "512"}
        made.append(records.cell(f"{data}-index", f"{config}:client2vec", (0,), **index, **ONCE))
        for base in BASES[data]:
            made.append(records.cell(f"{data}-{base}", f"{config}:{base}", (0,), **SHORT))
            made += [_improved(out, data, base, name) for name in READINGS]
    return made + _reduced(out) + _long(out)


def _improved(out, data, base, name):
    """The cell of a base method with a reading, which needs the index of its data set."""
    of_base = {f"method.{k}": str(v) for k, v in CLIENT2VEC_BASES.get(base, {}).items()}
    settings = SHORT | {"method.base": base} | of_base | READINGS[name]
    return _with_index(out, f"{data}-{base}-{name}", data, f"{data}-index", (0,), settings)


def _with_index(out, name, data, index, seeds, settings):
    """A cell of Client2Vec that takes its index from the cell `index`."""
    settings = {"method.index_of": str(out / index)} | settings
    made = records.cell(name, f"{SETS[data]}:client2vec", seeds, **settings)
    return made._replace(note={"needs": [index]})


def _reduced(out):
    """For each of REDUCTIONS the cell of its index, and of FedAvg with IN_REDUCTIONS."""
    config, made = SETS["digits"], []
    for reduction in REDUCTIONS:
        name, index = f"orth-{reduction}", f"orth-{reduction}-index"
        training = {"method.index_epochs": EPOCHS["digits"], "method.orth_reduction": reduction}
        made.append(records.cell(index, f"{config}:client2vec", (0,), **training, **SMALL, **ONCE))
        for reading in IN_REDUCTIONS:
            settings = SHORT | SMALL | READINGS[reading]
            made.append(_with_index(out, f"{name}-{reading}", "digits", index, (0,), settings))
    return made


def _long(out):
    """The cells of 100 rounds with three seeds: the index, FedAvg alone, and IN_LONG."""
    config, seeds, index = SETS["digits"], (0, 1, 2), "long-index"
    epochs = {"method.index_epochs": EPOCHS["digits"]}
    made = [records.cell(index, f"{config}:client2vec", seeds, **epochs, **SMALL, **ONCE)]
    made.append(records.cell("long-fedavg", f"{config}:fedavg", seeds, **LONG))
    for name, reading in IN_LONG.items():
        settings = LONG | SMALL | reading
        made.append(_with_index(out, f"long-fedavg-{name}", "digits", index, seeds, settings))
    return made


def tables(of_table):
    """A row for each base method with the readings, and tables of REDUCTIONS and IN_LONG."""
    accuracy = "mean accuracy over clients in percent after the last of"
    made = []
    for data in SETS:
        names = {base: f"{data}-{base}" for base in BASES[data]}
        made.append(_table(f"{data}: {accuracy} 20 rounds, seed 0.", READINGS, names, of_table))
    title = f"digits, FedAvg, by the reduction of |Z U^T| in L_orth: {accuracy} 20 rounds, seed 0."
    made.append(_reduction_table(title, of_table))
    title = (
        f"digits: {accuracy} 100 rounds, mean (population standard deviation) over seeds 0, 1, 2."
    )
    return [*made, _table(title, IN_LONG, {"fedavg": "long-fedavg"}, of_table)]


def _reduction_table(title, of_table):
    rows = []
    for name in REDUCTIONS:
        cells = ["digits-fedavg", *(f"orth-{name}-{reading}" for reading in IN_REDUCTIONS)]
        rows.append(GridRow(name, cells, MEASURE))
    return records.grid(title, ["alone", *IN_REDUCTIONS], rows, of_table)


def _table(title, readings, names, of_table):
    """names: {base method: the name of its cell}."""
    rows = [
        GridRow(base, [name, *(f"{name}-{reading}" for reading in readings)], MEASURE)
        for base, name in names.items()
    ]
    return records.grid(title, ["alone", *readings], rows, of_table)
