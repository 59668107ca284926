"""How the table files arrange their records."""

from types import SimpleNamespace

import measure
from records import Record


def records_of(values):
    """Records {cell: [a dict of measures for each seed]} with the same facts."""
    facts = "", "abc", "0.2.0", "1 x cpu"
    return [
        Record(cell, seed, *facts, of_seed)
        for cell, seeds in values.items()
        for seed, of_seed in enumerate(seeds)
    ]


def test_the_best_accuracy_and_the_lowest_success_of_a_backdoor_are_bold():
    table = measure.load("attacks")
    values = {
        "none/none": [{"last/global": 90.0}, {"last/global": 91.0}],
        "none/krum": [{"last/global": 80.0}],
        "backdoor/none": [{"last/global": 89.0, "last/global_backdoor_success": 97.0}],
        "backdoor/krum": [{"last/global": 70.0, "last/global_backdoor_success": 2.0}],
    }
    (made,) = table.tables(records_of(values))
    krum = made.header.index("krum")
    rows = {row[0]: i for i, row in enumerate(made.cells)}
    assert made.cells[rows["none"]][1] == "90.5 (0.5)" and made.cells[rows["sign_flip"]][1] == "-"
    assert made.cells[rows["backdoor: its success"]][krum] == "2.0"
    assert made.bold == {
        (rows["none"], 1),
        (rows["backdoor"], 1),
        (rows["backdoor: its success"], krum),
    }


def test_the_parts_of_client2vec_stand_beside_their_base(tmp_path):
    """An improved base has its own settings and needs the index."""
    table = measure.load("client2vec")
    cells = "digits/moon", "digits/moon/federated+i", "digits/moon/global+i+ii+iii"
    values = {
        cell: [{table.MEASURE: 80.0 + place}] for cell, place in zip(cells, (0, 2, 1), strict=True)
    }
    digits, fashion = table.tables(records_of(values))
    place = [row[0] for row in digits.cells].index("moon")
    assert digits.cells[place] == ["moon", "80.0", "82.0", "-", "-", "-", "-", "81.0"]
    assert digits.bold == {(place, 2)} and not fashion.bold
    planned = {cell.name: cell for cell in table.cells(tmp_path)}
    made = planned["digits/moon/global+i+ii"]
    method = made.config.method
    assert made.note["needs"] == ["digits/index-global"]
    assert method.index_of == str(tmp_path / "digits/index-global")
    assert (method.sampling, method.aggregation, method.local_training) == (True, True, False)
    assert method.projection == planned["digits/moon"].config.method.projection == "mlp256"


def test_synthetic_averages_the_last_rounds_and_shows_loss_and_accuracy():
    table = measure.load("synthetic")
    rows = [
        {"round": r, "seed": 0, "global": 70.0 + (r == 200), "global_loss": 0.5}
        for r in (160, 165, 200)
    ]
    measured = table.measured(SimpleNamespace(seeds={0: rows}))
    assert measured == {0: {"global_loss": 0.5, "global": 70.5}}
    (made,) = table.tables(records_of({"fedprox/run.straggler/data 5": [measured[0]]}))
    assert made.cells[3] == ["FedProx, mu = 1, run.straggler=0.9", "-", "-", "0.50, 70.5", "-"]
    (made,) = measure.load("privacy").tables(records_of({"scaffold/inf": [{"last/global": 80.0}]}))
    assert made.cells[2] == ["scaffold", "-", "-", "80.0"]  # a column for each epsilon
