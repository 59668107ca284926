"""Published numbers next to runs: only if the methods, settings, data and partitions agree."""

import json
from pathlib import Path

import pytest
from inputs import complaint
from run_folders import call, evaluation, refusal, write_rows

from fedjax_lab import configs
from fedjax_lab.analysis import matching, tables
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.papers import published
from fedjax_lab.running import growth

SCORES = {0: 40.0, 1: 44.0}
CHOICE = tables.Choice(way="last", measure="global", target=None, ddof=1)


SETTING = "num_clients=40;partition=#C=2"


def result(method):
    """A method's result in FedConcat's Table 1: Fashion-MNIST, two classes per client."""
    rows = published.find("fedconcat", "1")
    return next(r for r in rows if (r.dataset, r.setting, r.method) == ("fmnist", SETTING, method))


def write(folder, method, **changed):
    """Writes a run with the settings of a published number, except for the changed ones."""
    (spec,) = published.recipe(result(method)).specs
    path = Path(configs.__path__[-1]) / spec.config
    changed = {"data__folder": "'/here'", **changed}
    settings = spec.settings | {key.replace("__", "."): text for key, text in changed.items()}
    config = resolve(load_config(f"{path}:{spec.method}"), settings.items())
    folder.mkdir(parents=True)
    saved = growth.saved_config(config, list(SCORES))
    (folder / "config.json").write_text(json.dumps(saved))
    rows = [evaluation(seed, 50, mean, 2) | {"global": mean} for seed, mean in SCORES.items()]
    write_rows(folder, rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("beside")
    write(tmp_path / "a", "fedavg")
    write(tmp_path / "b", "fedprox", run__rounds="20")
    write(tmp_path / "c", "fedrs", method__alpha="0.7")
    write(tmp_path / "d", "fedavg", partition__num_clients="10")
    return tmp_path


def test_published_numbers_are_shown_next_to_runs_with_their_settings(folder, capsys):
    arguments = "--pivot", "--measure=global", "--published=fedconcat/table1"
    lines = call(capsys, folder, *arguments, "--format=markdown").splitlines()
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in lines if "|" in line]
    cells = {name.partition(" ")[0].lower(): values for name, *values in rows}
    header = next(line for line in lines if line.startswith("|  |"))
    assert header.count("published") == 1  # nothing was published for 10 clients
    assert header.index("num\\_clients=40") < header.index("published")
    for method in ("fedavg", "fedprox"):
        printed = result(method)
        assert f"{printed.mean:.2f} +- {printed.std:.2f}" in cells[method][1]
        assert "**" not in cells[method][1]  # only measured numbers are ranked
    assert cells["fedrs"][1] == "-"  # published with another alpha
    text = "\n".join(lines)
    assert "Published numbers are those of fedconcat, Table 1." in text
    assert "run.rounds is 20 in these runs, 50 as published" in text.replace("\\", "")
    assert "not legible" in text and "data.folder" not in text


@pytest.mark.slow
def test_csv_has_the_published_numbers(folder, capsys):
    arguments = "--pivot", "--measure=global", "--published=fedconcat/table1"
    header, first, *_ = call(capsys, folder, *arguments, "--format=csv").splitlines()
    assert header.count("published mean") == 1
    assert str(result("fedavg").mean) in first.split(",")
    text = call(capsys, folder / "d", *arguments)  # no run matches
    assert "fedconcat/table1 has no number for these methods" in text and "published" not in text
    error = refusal(capsys, folder, "--pivot", "--published=fedconcat/table1")
    assert "has no numbers of accuracy.mean, last round; --measure=global --way=last" in error
    assert "has no accuracies in 'table77'" in complaint(matching.read, "fedconcat/table77", CHOICE)
