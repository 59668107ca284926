"""Published tables: the runs of their cells, and measured next to published numbers."""

import functools
import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import toys
from inputs import complaint

import fedjax_lab
from fedjax_lab.analysis import requirements, tables
from fedjax_lab.commands import paper
from fedjax_lab.commands.arguments import split_overrides
from fedjax_lab.data.fetching import presence
from fedjax_lab.errors import BadInput
from fedjax_lab.experiment import experiment
from fedjax_lab.experiment.config import resolve, value_at
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.papers import published
from fedjax_lab.papers.published import Recipe, Result, Rule
from fedjax_lab.running import runner
from fedjax_lab.sweeping import sweep_plan

CONFIGS = Path(__file__).parents[1] / "configs"
REQUEST = paper.Request(CONFIGS)


@functools.cache
def cells_of(name, table):
    """The cells of a table of a paper."""
    return paper.plan(published.tables()[name, table], REQUEST)


def find(cells, name):
    (cell,) = [cell for cell in cells if cell.name == name]
    return cell


# Descriptions of the runs.


@pytest.mark.slow
def test_every_published_row_has_runs_or_a_reason_why_not():
    """Runs with the same name are the same run."""
    plans = {key: cells_of(*key) for key in published.tables()}
    assert sum(map(len, plans.values())) == len(published.results()) == 2319
    for cells in plans.values():
        assert len({cell.name for cell in cells}) == len(cells)
        by_name = {}
        for cell in cells:
            assert bool(cell.recipe.lacks) != bool(cell.runs)  # their configs have been resolved
            assert cell.recipe.way in tables.WAYS and cell.recipe.seeds
            assert cell.recipe.lacks or cell.recipe.measure
            for run, spec in zip(cell.runs, cell.recipe.specs, strict=True):
                assert by_name.setdefault(spec.name, (run, spec)) == (run, spec)


def test_every_rule_applies_to_a_row():
    for name, rules in published.RULES.items():
        rows = [published.facts(row) for row in published.results() if row.paper == name]
        over = {target for rule in rules for target in rule.over}
        rows += [{"target": target} for target in over]
        for rule in rules:
            assert any(published._fits(rule, row) for row in rows), rule


SETTINGS = [  # paper and table, cell, and keys of the config of its run
    ("fedconcat 1", "fmnist/partition=#C=3/fedconcat_id", {"partition.classes": 3}),
    ("fedconcat 4", "partition=#C=2/fedconcat_fesem", {"method.clustering": "fesem"}),
    ("fedconcat 9", "fmnist/partition=#C=2/fedconcat", {"method.encoder_rounds": 231}),
    ("fedconcat 13", "svhn/num_clients=200/partition=#C=2/fedavg", {"run.cohort": 100}),
    ("fedc2i 4", "digits_five/gamma=0.5/fedc2i", {"method.gamma": 0.5, "data.sampling": "fedc2i"}),
    ("fedpick II", "digits_five/fedrep/svhn", {"method.head_layers": 3, "method.head_epochs": 4}),
    ("hfedf 18", "hfedf/ood:voc2007", {"data.unseen": "VOC2007", "method.server_decay": 1e-3}),
    ("client2vec 1", "cifar10/index=federated/cases=i+ii/moon", {"method.local_training": False}),
    ("client2vec 4", "resnet18/index=none/cases=none/feddyn", {"model.stem": "imagenet"}),
]
COSTS = [  # examples that the run of a cell trains on
    ("fedconcat 1", "fmnist/partition=#C=2/fedconcat", 60_000 * 10 * 31),
    ("fedconcat 1", "fmnist/partition=none/central", 60_000 * 200),
    ("fedpick II", "office_caltech10/fedrep/dslr", 500 * 5 * 300),
    ("client2vec 1", "shakespeare/index=none/cases=none/fedavg", None),
]


@pytest.mark.slow
def test_runs_of_a_cell_have_the_settings_and_the_cost_of_the_paper():
    for table, name, expected in SETTINGS:
        (run,) = find(cells_of(*table.split()), name).runs
        assert {key: value_at(run.cell.config, key) for key in expected} == expected, name
    for table, name, cost in COSTS:
        run = find(cells_of(*table.split()), name).runs[0]
        assert requirements.cost(run.cell.config) == cost, name
    name = "fmnist/partition=Dir(0.5)/fedavg"
    rows = {published.cell_name(row): row for row in published.find("fedconcat", "Table 1")}
    assert (rows[name].mean, rows[name].std) == (87.5, 0.3)
    for name in ("table1", "Table 1", "1", "TABLE1"):
        assert published.find("fedconcat", name)[0].table == "1"
    assert published.find("fedpick", "tableii")[0].table == "II"


def test_a_mean_over_target_domains_has_a_run_for_each_of_them():
    cell = find(cells_of("hfedf", "3"), "d=2/fedsr/ood:avg")
    unseen = [run.cell.config.data.unseen for run in cell.runs]
    assert unseen == ["Art", "Clipart", "Product", "Real World"]
    assert find(cells_of("hfedf", "3"), "d=2/fedsr/id:avg").runs == cell.runs


# Choosing cells.


def test_cells_are_chosen_by_full_or_partial_names():
    cells = cells_of("fedconcat", "1")

    def names(*patterns):
        return [cell.name for cell in paper.choose(cells, patterns)]

    exact = "fmnist/partition=#C=2/fedconcat"
    assert names(exact) == [exact]
    assert names("fmnist/partition=#C=2/fedc") == [exact, exact + "_id"]
    assert names("fmnist*#C=2/fedr", "fmnist*#C=2/moon") == [
        "fmnist/partition=#C=2/moon",
        "fmnist/partition=#C=2/fedrs",
    ]
    assert len(names()) == len(cells) == 87
    assert complaint(paper.choose, cells, ["fedagv"]).endswith("did you mean 'fedavg'?")


# Measured numbers.


def result(mean=80.0, std=2.0, **changes):
    row = Result("fedconcat", "1", "fmnist", "cnn", "", "fedavg", "", "global", mean, std, "")
    return row._replace(**changes)


def test_differences_are_in_units_of_the_published_standard_deviation():
    line = paper.compare(result(), [81.0, 83.0, 88.0], 3)
    assert line.mean == pytest.approx(84)
    assert line.std == pytest.approx(np.sqrt((9 + 1 + 16) / 3))  # population standard deviation
    assert (line.n, line.difference, line.in_stds) == (3, pytest.approx(4), pytest.approx(2))
    assert paper.compare(result(std=None), [81.0], 1) == (81, None, 1, 1, None)
    assert paper.compare(result(std=0.0), [81.0], 1).in_stds is None
    assert paper.compare(result(), None, 3) == (None, None, 0, None, None)


def write(folder, seeds):
    """Writes a finished run; `seeds` gives two values of all measures, one for each round."""
    folder.mkdir(parents=True)
    config = {name: {"name": "x"} for name in ("data", "partition", "method", "run")}
    (folder / "config.json").write_text(json.dumps(config | {"seeds": list(seeds)}))

    def row(after, seed, value):
        row = {"round": after, "seed": seed, "bytes_up": 1, "bytes_down": 1, "seconds": 1.0}
        row |= {"global": value, "id": value, "id_per_client": [value - 3, value + 3]}
        accuracy = {"mean": value, "per_client": [value]}
        return row | {"domains": {"north": value + 1}, "accuracy": accuracy}

    rows = [row(i + 1, seed, values[i]) for i in (0, 1) for seed, values in seeds.items()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "summary.json").write_text(json.dumps(toys.SUMMARY))


def cell(*names, way="last", measure="global", per_client=False):
    config = resolve({})
    cells = [sweep_plan.Cell(name, "fedavg", {}, config, [0, 1]) for name in names]
    made = [paper.Run(each, "x", [], "") for each in cells]
    recipe = Recipe((), way, measure, 2, per_client, (), "")
    return paper.Cell("cell", result(), recipe, made)


def test_values_are_read_from_finished_runs(tmp_path):
    def values(*names, **choice):
        return paper.values(cell(*names, **choice), tmp_path)

    write(tmp_path / "a", {0: (90, 70), 1: (80, 60)})
    write(tmp_path / "b", {0: (10, 30), 1: (20, 40)})
    assert values("a") == [70, 60]
    assert values("a", "b") == [50, 50]  # a mean for each seed
    assert values("a", measure="domains.north", way="max_per_domain") == [91, 81]
    assert values("a", measure="accuracy.mean", way="max_over_rounds") == [90, 80]
    assert values("a", measure="id", per_client=True) == [67, 73, 57, 63]
    assert values("a", "c") is None  # one run is missing
    assert values("a", measure="ood") is values() is None
    (tmp_path / "a" / "summary.json").write_text(json.dumps({**toys.SUMMARY, "diverged": {}}))
    assert values("a") is None


def test_the_rounds_until_a_target_are_those_of_the_first_evaluation_that_reaches_it(tmp_path):
    write(tmp_path / "a", {0: (90, 70), 1: (60, 80)})
    one = cell("a")
    for target, rounds in ((75.0, [1, 2]), (85.0, None)):
        asked = one._replace(recipe=one.recipe._replace(target=target))
        assert paper.values(asked, tmp_path) == rounds
    assert "not reached" in paper.show([asked], tmp_path)
    assert "cell, rounds" in paper.show([asked], tmp_path)


def test_only_the_seeds_of_a_run_are_counted(tmp_path):
    """Seeds that an earlier command trained beside them are left out."""
    write(tmp_path / "a", {0: (90, 70), 1: (80, 60)})
    write(tmp_path / "a-seeds-2", {2: (10, 20)})
    two = cell("a")
    (run,) = two.runs
    three = two._replace(runs=[run._replace(cell=run.cell._replace(seeds=[0, 1, 2]))])
    assert [paper.values(each, tmp_path) for each in (two, three)] == [[70, 60], [70, 60, 20]]


def test_a_damaged_run_is_shown_next_to_the_others(tmp_path):
    write(tmp_path / "a", {0: (90, 70)})
    write(tmp_path / "b", {0: (90, 70)})
    (tmp_path / "a" / "metrics.jsonl").write_text("{}\n")
    both = [cell("a"), cell("b")]
    assert [paper.values(one, tmp_path) for one in both] == [None, [70]]
    assert re.search(r"cell .* damaged.*\ncell .* 70.00", paper.show(both, tmp_path))
    (note,) = paper.damaged(both, tmp_path)
    assert note.startswith(f"{tmp_path / 'a' / 'metrics.jsonl'} cannot be used: line 1")
    (tmp_path / "b" / "summary.json").write_text("")
    assert paper.values(both[1], tmp_path) is None  # its run is not finished


# Data files on this machine.

FIRST_FILES = {  # for sources with different layouts of their files
    "fashion_mnist": [f"{name}.gz" for name in presence.idx.FILES],
    "emnist": [f"emnist/gzip/{name}.gz" for name in presence.emnist.files("balanced")],
    "cinic10": ["CINIC-10/train/airplane/x"],
    "cifar10": ["cifar-10-batches-py/data_batch_1"],
    "svhn": ["svhn/train_32x32.mat"],
    "digits_five": ["digit_dataset/MNIST/test.pkl"],
    "domainnet_full": ["DomainNet/splits/clipart_train.txt"],
    "shakespeare": ["train/x.json"],
    "sentiment140": [f"sentiment140/{presence.text_sets.SENTIMENT140_FILES[0]}"],
    "pacs": [f"PACS/{name}/x" for name in presence.image_folders.PACS.domains],
}


@pytest.mark.parametrize("name", FIRST_FILES)
def test_files_are_found_where_their_source_reads_them(tmp_path, name):
    config = resolve({"data": {"name": name, "folder": str(tmp_path)}})
    assert not presence.has_files(name, str(tmp_path))
    without_files = complaint(experiment.load_data, config.data)
    for file in FIRST_FILES[name]:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    assert presence.has_files(name, str(tmp_path))
    assert complaint(experiment.load_data, config.data) != without_files  # loading fails later


@pytest.mark.exhaustive
def test_missing_initial_weights_and_a_missing_clip_model_are_reported():
    base = {"data": {"name": "digit_domains"}, "model": {"name": "mobilenet_v2"}}
    config = resolve(base, [("model.pretrained", "nowhere.safetensors")])
    assert requirements.missing(config).startswith("no file nowhere.safetensors with first")
    clip = {"data": {"name": "digit_domains"}, "embedding": {"name": "clip", "folder": "nowhere"}}
    config = resolve({**clip, "method": {"name": "client2vec"}})
    assert requirements.missing(config).startswith("CLIP is not available")
    assert requirements.missing(resolve(clip)) == ""  # FedAvg needs no embedding


# The command.


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """The arguments for a table of four cells; the data of two of them are available."""
    run = {"rounds": 2, "eval_every": 2, "cohort": 3}
    held_out = {"validation": 0.2}
    toys.write_config(tmp_path, "fedconcat_small.py", partition=held_out, run=run)
    rules = (
        Rule("", way="last", measure="global", seeds=2, config="fedconcat_small.py", note="a toy"),
        Rule("dataset=svhn", {"data.name": "svhn", "data.folder": str(tmp_path)}),
        Rule("dataset=fmnist", lacks="nobody knows how"),
        Rule("method=fedconcat", {"partition.alpha": "0.9"}, method="fedprox"),
    )
    rows = [
        result(dataset="cifar10"),
        result(dataset="cifar10", method="fedconcat", std=None, conflict="elsewhere 90"),
        result(dataset="svhn"),
        result(dataset="fmnist"),
    ]
    monkeypatch.setitem(published.RULES, "fedconcat", rules)
    monkeypatch.setattr(published, "results", lambda: tuple(rows))
    published._varying.cache_clear()
    yield ["fedconcat", "table1", f"--configs={tmp_path}", f"--out={tmp_path / 'out'}"]
    published._varying.cache_clear()


@pytest.mark.exhaustive
def test_a_table_is_run_once_and_shown(toy, tmp_path, capsys, monkeypatch):
    assert paper.main(toy) == 0
    first = capsys.readouterr().out
    summary = json.loads((tmp_path / "out/cifar10/fedavg/summary.json").read_text())
    each = [seed["global"] for seed in summary["last"]["per_seed"].values()]
    mean, std = np.mean(each), np.std(each)
    line = next(text for text in first.splitlines() if text.startswith("cifar10/fedavg "))
    assert line.split()[1:] == (
        f"80.00 +- 2.00 {mean:.2f} +- {std:.2f} 2 {mean - 80:+.2f} {(mean - 80) / 2:+.2f}".split()
    )
    proximal = json.loads((tmp_path / "out/cifar10/fedconcat/config.json").read_text())
    assert (proximal["method"]["name"], proximal["partition"]["alpha"]) == ("fedprox", 0.9)
    assert "cifar10/fedconcat: elsewhere 90" in first
    assert "a toy" in first
    assert "1 cell not run: nobody knows how" in first
    assert f"1 cell not run: no train_32x32.mat or svhn/train_32x32.mat in {tmp_path}" in first

    monkeypatch.setattr(runner, "run", None)  # no run is left to play
    assert paper.main(toy) == 0
    again = capsys.readouterr().out
    assert first.partition("\n\n")[2] == again.partition("\n\n")[2]
    assert paper.main([*toy, "--config.local.momentum=0.5"]) == 2
    assert "holds another run: its config.local.momentum is " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        (RuntimeError("out of luck"), 1, " failed "),
        (runner.Diverged("it diverged"), 1, " diverged "),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_unsuccessful_run_sets_the_exit_code(toy, capsys, monkeypatch, error, code, shown):
    def run(*_, **__):
        raise error

    monkeypatch.setattr(runner, "run", run)
    assert paper.main([*toy, "--cells=cifar10/fedavg"]) == code
    captured = capsys.readouterr()
    assert shown in captured.out
    assert ("the same command continues" in captured.err) == (code == 130)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fedconct", "table1"], "no paper 'fedconct'; did you mean 'fedconcat'?"),
        (["fedpick", "table2"], "fedpick has no accuracies in 'table2'"),
        (["fedconcat", "table1", "--cells=fedagv"], "did you mean 'fedavg'?"),
        (["fedconcat", "table1", "--cels=x"], "did you mean '--cells'?"),
        (["fedconcat", "table1", "--seeds=a"], "--seeds must be whole numbers"),
        (["fedconcat", "table1", "--configs=nowhere"], "--configs=DIR"),
        ([], "no table is given"),
        (["fedconcat", "table1", "--probe"], "--probe belongs to `fedjax-lab paper list`"),
    ],
)
def test_bad_arguments_are_one_line_errors(arguments, said, capsys):
    assert paper.main(arguments) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


def test_a_dry_run_prints_commands_with_the_given_configs(capsys):
    name = "fmnist/partition=Dir(0.1)/fedconcat"
    arguments = ["fedconcat", "table11", f"--cells={name}", "--seeds=4", "--out=/x y"]
    assert paper.main([*arguments, f"--configs={CONFIGS}", "--dry_run"]) == 0
    line = capsys.readouterr().out.splitlines()[0].removeprefix("# ")
    words, overrides = split_overrides(shlex.split(line))
    assert words[:3] == ["python", "-m", "fedjax_lab.main"]
    assert words[4:] == [f"--workdir=/x y/{name}", "--seeds=4"]
    config = load_config(words[3].removeprefix("--config="))
    actual = resolve(config, overrides)
    assert (actual.method.classifier_rounds, actual.partition.alpha) == (346, 0.1)


@pytest.mark.exhaustive
def test_list_has_every_table(capsys, monkeypatch):
    monkeypatch.setattr(
        requirements, "missing", lambda config: "" if "digits" in config.data.name else "x: y"
    )
    assert paper.main(["list", f"--configs={CONFIGS}"]) == 0
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    for name, table in published.tables():
        assert [name, f"table{table}"] in [line[:2] for line in lines]
    (line,) = [line for line in lines if line[:3] == ["fedc2i", "table1", "digits_five"]]
    assert line[3:] == ["lenet", "42", "42", "7", "3", f"{7 * 3 * 5000 * 40 / 1e6:.0f}", "-"]
    assert "fmnist: x" in out and "fedconcat table12: the paper does not say" in out


def test_a_probe_gives_the_hours_of_the_tables_whose_data_are_here(toy, capsys, monkeypatch):
    """It trains with the settings of the command, once, and not where hours cannot be known."""
    probed = []

    def run(config, *, seeds, quiet):
        assert config.method.name == "fedavg" and config.run.cohort == 3 and seeds == [0]
        assert (config.local.steps, config.run.rounds, config.local.batch_size) == (5, 2, 7)
        probed.append(config)
        return SimpleNamespace(summary={"examples_per_second": 1000.0, "evaluate_seconds": 9.0})

    monkeypatch.setattr(fedjax_lab, "run", run)
    monkeypatch.setattr(requirements, "cost", lambda config: None)
    words = ["list", "--probe", toy[2], "--config.local.batch_size=7", "--config.run.rounds=9"]
    assert paper.main(words) == 0 and not probed
    monkeypatch.setattr(requirements, "cost", lambda config: 3_600_000)
    capsys.readouterr()
    assert paper.main(words) == 0 and len(probed) == 1
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    hours = {line[2]: line[-1] for line in lines if line[:2] == ["fedconcat", "table1"]}
    assert hours == {"cifar10": "4.0", "svhn": "-", "fmnist": "-"}  # two methods, two seeds

    def refuse(config):
        raise BadInput("too few")

    monkeypatch.setattr(requirements, "speed", refuse)
    paper._speed.cache_clear()
    assert paper.main(words) == 0
    assert "has no speed: too few" in capsys.readouterr().out
    paper._speed.cache_clear()


@pytest.mark.slow
def test_the_speed_of_a_run_is_measured_in_two_rounds(tmp_path):
    assert requirements.speed(resolve(toys.config(tmp_path))) > 0


def test_a_release_without_some_domains_measures_the_columns_that_it_has(tmp_path):
    names = ("mnist_m", "mnist", "usps")
    split = np.array(["train", "test"] * 3)
    x, domain = np.zeros((6, 32, 32, 3), np.uint8), np.repeat(names, 2)
    for sampling in ("fedpick", "fedc2i"):
        np.savez(tmp_path / f"{sampling}.npz", x=x, y=np.zeros(6, int), domain=domain, split=split)
    request = REQUEST._replace(overrides=[("data.folder", str(tmp_path))])
    cells = paper.plan(published.tables()["fedc2i", "1"], request)
    row = {cell.result.column: cell for cell in cells if cell.result.method == "fedavg"}
    assert {name for name, cell in row.items() if cell.missing} == {"svhn", "synth_digits"}
    assert row["svhn"].missing == "the release has no svhn"
    config = row["usps"].runs[0].cell.config
    assert config.partition.num_clients == 3
    assert requirements.cost(config) == 3 * 1000 * config.local.epochs * config.run.rounds
    mean = np.mean([row[name].result.mean for name in names])
    assert row["avg"].result.mean == pytest.approx(mean) and row["avg"].result.std is None
    (note,) = [text for text in paper.remarks(list(row.values()), []) if "mean over" in text]
    assert note == (
        f"fedavg/avg: the mean over mnist_m, mnist, usps, beside {mean:.2f}, the mean"
        " of these printed columns; over all domains 82.88 is printed"
    )
    (only, *_) = paper.plan(published.tables()["fedc2i", "4"][:1], request)
    assert only.missing == "only the mean over all domains is printed"
    whole = find(cells_of("fedc2i", "1"), row["avg"].name)
    assert whole.result.mean == 82.88 and not whole.note


def test_all_data_sets_are_found_below_one_folder(tmp_path, capsys):
    for name in ("digits_five", "svhn"):
        for file in FIRST_FILES[name]:
            (tmp_path / f"of {name}" / file).parent.mkdir(parents=True)
            (tmp_path / f"of {name}" / file).touch()
    request = REQUEST._replace(folder=tmp_path)
    rows = published.tables()
    (cell, *_) = paper.plan(rows["fedpick", "II"][:1], request)
    assert cell.runs[0].cell.config.data.folder == str(tmp_path / "of digits_five")
    (cell,) = paper.plan([r for r in rows["fedconcat", "1"] if r.dataset == "svhn"][:1], request)
    assert cell.runs[0].cell.config.data.folder == str(tmp_path / "of svhn")
    assert ("data.folder", str(tmp_path / "of svhn")) in cell.runs[0].settings
    override = request._replace(overrides=[("data.folder", "/elsewhere")])
    (cell,) = paper.plan([r for r in rows["fedconcat", "1"] if r.dataset == "svhn"][:1], override)
    assert cell.runs[0].cell.config.data.folder == "/elsewhere"
    assert paper.main(["list", "--folder=/nowhere"]) == 2
    assert "/nowhere is not a folder" in capsys.readouterr().err
