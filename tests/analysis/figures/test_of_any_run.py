"""The figures clients, confusion and partition, and the names that a run keeps for them."""

import json

import numpy as np
import pytest
import toys
from inputs import complaint
from run_folders import rows_of, write, write_rows

from fedjax_lab.analysis.figures import clients, confusion, partition
from fedjax_lab.commands import figures
from fedjax_lab.engine.input import Seed
from fedjax_lab.experiment import run_names as named
from fedjax_lab.running import loading, runner
from fedjax_lab.running.storage import files
from fedjax_lab.testing.toy import as_rows

NAMES = {
    "classes": ["cat", "dog"],
    "domains": ["north", "south"],
    "clients": {
        "0": {
            "names": ["Ann", "Bob", "Eve"],
            "examples": [30, 10, 20],
            "domains": ["north", "south", "north"],
        }
    },
}


@pytest.fixture
def run(tmp_path):
    folder = write(tmp_path / "run", {0: (50, 60)})  # the clients have 50, 60 and 70 %
    (folder / "names.json").write_text(json.dumps(NAMES))
    return folder


def test_clients_are_listed_from_the_worst_on_and_drawn_by_size_and_domain(run):
    drawn = clients.draw(run)
    *_, first, second, third = (line.split() for line in drawn.text.splitlines())
    assert first == ["Ann", "30", "north", "50.00"] and second[0] == "Bob" and third[0] == "Eve"
    assert drawn.numbers["clients"][1] == {
        "client": 1,
        "name": "Bob",
        "examples": 10,
        "domain": "south",
        "value": 60,
    }
    figure = drawn.pictures["clients"]
    north, south = figure.axes[0].lines
    assert north.get_xydata().tolist() == [[30, 50], [20, 70]]
    assert south.get_xydata().tolist() == [[10, 60]]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["north", "south"]
    assert [text.get_text() for text in figure.axes[0].texts] == ["Ann", "Bob", "Eve"]
    assert figure.axes[0].get_title() == "FedAvg, toy, IID: last round"
    named = clients.draw(run, names="fedavg=Ours,toy=Toys").pictures["clients"].axes[0]
    assert named.get_title() == "Ours, Toys, IID: last round"
    (best, *_) = clients.draw(run, way="max_over_rounds").numbers["clients"]
    assert best["value"] == 50


def test_the_clients_of_a_sweep_are_in_one_picture_and_one_table(tmp_path):
    scores = {"fedavg": {0: (50, 60), 1: (50, 62)}, "fedprox": {1: (50, 90), 2: (50, 50)}}
    for method, of_seeds in scores.items():
        folder = write(tmp_path / method, of_seeds, method=method)
        named = NAMES["clients"]["0"]
        known = NAMES | {"clients": {str(seed): named for seed in of_seeds}}
        (folder / "names.json").write_text(json.dumps(known))
    drawn = clients.draw(tmp_path)
    assert drawn.numbers["seed"] == 1 and [*drawn.numbers["rows"]] == ["FedAvg", "FedProx"]
    header, _, first, *_ = drawn.text.splitlines()[-5:]
    assert header.split() == ["client", "examples", "domain", "FedAvg", "FedProx"]
    assert first.split() == ["Ann", "30", "north", "52.00", "80.00"]
    (figure,) = drawn.pictures.values()
    assert [axes.get_title() for axes in figure.axes] == ["FedAvg", "FedProx"]
    assert [axes.lines[1].get_xydata().tolist() for axes in figure.axes] == [[[10, 62]], [[10, 90]]]
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()
    assert "has no seed 0 with an evaluation; valid: [1]" in complaint(
        clients.draw, tmp_path, seed=0
    )


def test_federations_have_pictures_of_their_own(run, tmp_path):
    other = write(tmp_path / "other", {0: (50, 60)}, partition={"num_clients": 7})
    (other / "names.json").write_text(json.dumps(NAMES))
    drawn = clients.draw(run, other)
    assert [*drawn.pictures] == [*drawn.numbers] == ["clients-1", "clients-2"]


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"way": "lst"}, "did you mean 'last'?"),
        ({"seed": 7}, "has no seed 7"),
        ({"measure": "globl"}, "did you mean 'global'?"),
        ({"names": "fedavgg=Ours"}, "did you mean 'fedavg'?"),
    ],
)
def test_bad_settings_are_one_line(settings, message, run):
    assert message in complaint(clients.draw, run, **settings)


def test_a_measure_without_values_of_clients(run):
    """Of a metric that has such values they are shown, whatever its form."""
    write_rows(run, [row | {"loss": {"mean": 0.5}} for row in rows_of(run)])
    message = complaint(clients.draw, run, measure="loss.mean")
    assert "no values of single clients for loss.mean" in message
    drawn = clients.draw(run, measure="global")
    assert drawn.numbers["measure"] == "accuracy.mean"
    assert drawn.pictures["clients"].axes[0].get_ylabel() == "Accuracy, %"


@pytest.mark.parametrize("key", ["new", "new_tuned_loss"])
def test_a_measure_of_new_clients_is_refused(key, run):
    new = {key: 50.0, f"{key}_per_client": [50.0, 50.0]}
    write_rows(run, [row | new for row in rows_of(run)])
    message = complaint(clients.draw, run, measure=key)
    assert message == f"--measure={key} is of new clients; this figure shows those that train"


def test_clients_without_any_value_are_one_line(run):
    without = {"mean": 50.0, "per_client": [None] * 3}
    write_rows(run, [row | {"accuracy": row["accuracy"] | without} for row in rows_of(run)])
    assert "no values of single clients" in complaint(clients.draw, run)


def test_a_client_without_examples_is_on_the_logarithmic_axis():
    told = [
        {"name": str(size), "examples": size, "domain": "", "value": 50.0} for size in (0, 1, 900)
    ]
    figure = clients.scatter({"FedAvg": told}, "Accuracy, %", "title")
    figure.canvas.draw()
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    assert axes.get_xscale() == "symlog" and low < 0 and high > 900
    at = axes.transData.transform([(0, 50.0), (1, 50.0), (900, 50.0)])[:, 0]
    assert np.isfinite(at).all() and (np.diff(at) > 20).all()
    (axes,) = clients.scatter({"FedAvg": told[1:]}, "Accuracy, %", "title").axes
    assert axes.get_xscale() == "log"


def test_clients_without_names_have_their_numbers(run):
    (run / "names.json").write_text(json.dumps(NAMES | {"clients": {"0": {"examples": [3, 2, 1]}}}))
    told = clients.draw(run).numbers["clients"]
    assert [(client["name"], client["domain"]) for client in told] == [(n, "") for n in "012"]


def test_names_that_do_not_fit_are_reported(run):
    (run / "names.json").write_text(json.dumps(NAMES | {"clients": {}}))
    with pytest.raises(files.Damaged, match="does not fit"):
        clients.draw(run)


def users(client, domain, num_domains=2):
    """A dataset with users u and v and these columns."""
    R = len(domain)
    x, y = np.zeros((R, 2), np.float32), np.zeros(R, np.int32)
    domains = tuple("ab"[:num_domains])
    made = named.Dataset(x, y, np.array(domain), y > 0, ("k",), domains)
    return made if client is None else made._replace(client=np.array(client), users=("u", "v"))


ROWS = as_rows(np.array([[2, 3], [0, 1]]))


def seed(number):
    federation = toys.FEDERATION._replace(train=ROWS)
    return Seed(number, federation, federation)


@pytest.mark.parametrize(
    "client, domain, names",
    [
        ([1, 1, 0, 0], [0, 0, 1, 1], ["u", "v"]),
        ([1, 1, 0, 1], [0, 0, 1, 1], ["b", "a"]),  # a client with examples of both users
        ([0, 0, 0, 0], [0, 0, 1, 0], ["0", "1"]),  # several clients of one user
        (None, [0, 0, 1, 1], ["b", "a"]),
        (None, [0, 1, 0, 0], ["0", "1"]),
    ],
)
def test_a_client_has_the_name_of_its_user_or_domain(client, domain, names):
    dataset = users(client, domain)
    assert named.names(dataset, ROWS) == names
    told = named.names_of_run(dataset, [seed(5)])
    assert told["clients"]["5"]["examples"] == [2, 2]
    each = {0: "a", 1: "b"}
    mixed = [{each[d] for d in domain[i : i + 2]} for i in (2, 0)]
    domains = ["".join(d) if len(d) == 1 else "" for d in mixed]
    assert told["clients"]["5"].get("domains", ["", ""]) == domains
    assert told["clients"]["5"].get("names", ["0", "1"]) == names


def test_a_single_domain_is_no_name():
    dataset = users([0] * 4, [0] * 4, 1)
    told = named.names_of_run(dataset, [seed(0)])
    assert told["clients"]["0"] == {"examples": [2, 2]}  # no copies of numbers


def test_names_without_classes_are_read(run):
    (run / "names.json").write_text(json.dumps({k: v for k, v in NAMES.items() if k != "classes"}))
    assert "Ann" in clients.draw(run).text
    assert "classes" not in named.names_of_run(users([0] * 4, [0] * 4)._replace(classes=()), [])


@pytest.mark.slow
def test_figures_of_a_run_agree_with_its_data_and_its_predictions(tmp_path, capsys):
    domain = np.array(["north", "south"])[np.arange(300) % 2]
    toys.write_examples(tmp_path / "data.npz", domain=domain)
    e = toys.build(tmp_path, run={"rounds": 2}, partition={"name": "by_domain", "num_clients": 2})
    folder = tmp_path / "run"
    last = runner.run(e, folder, quiet=True).metrics[-1]
    known = json.loads((folder / "names.json").read_text())
    assert known["clients"]["0"]["names"] == ["north", "south"]
    assert known["classes"] == ["0", "1", "2"]
    drawn = confusion.draw(folder)
    counts = np.array(drawn.numbers["confusion"])
    assert 100 * np.trace(counts) / counts.sum() == pytest.approx(last["global"], rel=1e-5)
    assert drawn.numbers["classes"] == known["classes"]
    own = confusion.draw(folder, client=1).pictures["confusion"].axes[0]
    assert own.get_title().endswith(": model of client south,\nround 2")
    held = partition.draw(folder)
    assert (
        np.sum(held.numbers["classes"]["examples"], 1).tolist() == known["clients"]["0"]["examples"]
    )
    assert held.numbers["clients"] == ["north", "south"]
    assert "has no seed 3" in complaint(partition.draw, folder, seed=3)
    values = [client["value"] for client in clients.draw(folder).numbers["clients"]]
    assert values == last["accuracy"]["per_client"]
    (folder / "names.json").unlink()  # a run of an earlier version
    assert figures.main(["clients", str(folder), f"--out={tmp_path}/out"]) == 0
    assert "north" in capsys.readouterr().out
    assert loading.load(folder).rounds == 2
