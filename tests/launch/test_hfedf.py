"""The table of hFedF on the digit domains."""

import measure
import pytest
from records import Record

table = measure.load("hfedf")
FACTS = "digest", "abc", "0.1.0", "1 x cpu"


def record(cell, seed=0, **values):
    return Record(cell, seed, *FACTS, values)


@pytest.fixture
def fedavg_records():
    """Records of FedAvg: 3e-3 is best by id, 3e-4 on the held-out domain; ood is 10, 20, 30."""
    id_of = {"1e-3": 50.0, "3e-4": 40.0, "3e-3": 60.0}
    all_records = []
    for target in table.TARGETS:
        for step, value in id_of.items():
            cell = table.name_of("", "d1", "fedavg", step, target)
            all_records += [
                record(cell, s, id=value, ood=10.0 * (s + 1), spread=1.0 * s) for s in range(3)
            ]
            cell = table.name_of("held_out/", "d1", "fedavg", step, target)
            all_records.append(record(cell, ood=100 - value))
    return all_records


def test_the_learning_rate_is_chosen_by_seed_0_of_every_learning_rate(fedavg_records):
    _, by_id, held_out = table.WAYS
    place = "d1", "fedavg", "street"
    assert table.step_of([], "Table 10", *place) == "1e-3"
    assert table.step_of(fedavg_records, by_id, *place) == "3e-3"
    assert table.step_of(fedavg_records, held_out, *place) == "3e-4"
    assert table.step_of(fedavg_records, held_out, "d2", *place[1:]) == "3e-4"  # as for d1
    assert table.step_of(fedavg_records, by_id, "d2", *place[1:]) is None
    incomplete = [each for each in fedavg_records if each.seed or "lr=3e-4" not in each.cell]
    assert table.step_of(incomplete, by_id, *place) is None


def test_table_means_are_over_three_seeds_and_need_all_of_them(fedavg_records):
    rows = {name: line for name, *line in table.by_method(fedavg_records, "d1").cells}
    assert rows["fedavg"] == ["50.0", "20.0", "60.0", "20.0", "40.0", "20.0"]
    assert rows["hfedf"] == ["-"] * 6
    incomplete = [
        each for each in fedavg_records if (each.cell, each.seed) != ("d1/fedavg/street", 2)
    ]
    assert table.average(incomplete, ["d1/fedavg/street"], "ood") is None


@pytest.mark.slow
def test_the_settings_of_a_cell_match_its_name():
    config = {cell.name: cell.config for cell in table.planned()}
    server = config["d2/hfedf,server_lr=3e-3/postal"]
    assert (server.method.server_lr, server.local.lr, server.partition.domains) == (3e-3, 1e-3, 2)
    assert (server.data.unseen, server.method.embedding_dim) == ("postal", 1)
    tuned = config["held_out/d1/pfedhn,lr=3e-4/postal"]
    assert (tuned.data.target, tuned.data.unseen) == ("postal", "handwritten")
    ablated = config["d1/hfedf,grad_align=False,ema=1.0/street"].method
    assert (ablated.grad_align, ablated.ema) == (False, 1.0)


def test_the_record_of_a_seed_has_final_values_and_curves():
    rows = [
        {"round": 20, "id": 40.0, "ood": 50.0, "ood_per_client": [40.0, 60.0, None]},
        {"round": 30, "id": 50.0, "ood": 50.0, "ood_per_client": [50.0, 50.0]},
    ]
    final = {"id": 50.0, "ood": 50.0, "spread": 0.0}
    assert table.seed_values(rows) == {**final, "ood/20": 50.0, "spread/20": 10.0}
