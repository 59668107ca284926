"""Display names: those with which docstrings begin, and those that a user gives."""

import inspect

import pytest
from inputs import complaint

from fedjax_lab.experiment import registry, titles

UNNAMED = {  # readers of a user's own files
    *("arrays", "huggingface", "idx", "image_folders", "image_table", "instructions", "leaf"),
    *("mapped", "natural", "plays"),
    *("records", "table", "text_files", "tfds", "tff_hdf5"),
}
TITLES = {  # one for each form
    ("method", "fedavg"): "FedAvg",
    ("method", "scaffold"): "SCAFFOLD",
    ("method", "fedconcat_id"): "FedConcat-ID and -IB",
    ("data", "fashion_mnist"): "Fashion-MNIST",
    ("data", "medmnist", ("dataset", "pathmnist")): "MedMNIST pathmnist",
    ("data", "synthetic", ("alpha", 1.0), ("beta", 0.5)): "Synthetic(1.0, 0.5)",
    ("partition", "dirichlet", ("alpha", 0.3)): "Dir(0.3)",
    ("partition", "dirichlet"): "Dir(alpha)",  # a config of another version
    ("partition", "classes_per_client", ("classes", 2)): "#C=2",
    ("partition", "extended_dirichlet", ("classes", 2), ("alpha", 10.0)): "ExDir(2, 10.0)",
    ("partition", "by_client"): "By user",
    ("data", "own.py:mine"): "own.py:mine",
    ("data", "fedjax_lab.data.memory:<arrays>"): "Arrays in memory",
    ("method", 3): "3",
}


@pytest.mark.parametrize("part", TITLES, ids=str)
def test_a_docstring_begins_with_the_display_name(part):
    kind, name, *settings = part
    title = titles.section_title(kind, {"name": name, **dict(settings)})
    assert title == (TITLES[part], {key for key, _ in settings})


def test_data_of_a_file_of_ones_own_are_called_by_it():
    assert titles.section_title("data", {"name": "table", "path": "tables/stays.csv"}) == (
        "stays",
        frozenset(),
    )


def test_only_other_methods_are_called_asynchronous():
    made_for_it = {
        name for name in registry.METHODS if "weighs_staleness=True" in source_of("method", name)
    }
    assert made_for_it == {
        name
        for name in registry.METHODS
        if titles.method_title({"name": name}, 4) == titles.method_title({"name": name}, 0)
    }
    assert titles.method_title({"name": "fedbuff"}, 4).text == "FedBuff"
    assert titles.method_title({"name": "fedavg"}, 0).text == "FedAvg"


def source_of(kind, name):
    return inspect.getsource(inspect.getmodule(registry.look_up(kind, name)))


@pytest.mark.parametrize("kind", ["method", "data", "partition"])
def test_every_built_in_part_has_a_name_of_its_own(kind):
    named = {name: titles.beginning(kind, name) for name in registry.NAMED[kind]}
    assert {name for name, title in named.items() if title == name} == UNNAMED & set(named)


def test_a_user_gives_other_names():
    used = {"data": {"name": "own.py:f"}, "partition": {"name": "dirichlet"}}
    configs = [{"method": {"name": "fedavg"}}, {"method": {"name": "fedprox"}, **used}]
    names = titles.parse("fedavg=Ours, dirichlet=Skewed,own.py:f=F", configs)
    assert names == {"fedavg": "Ours", "dirichlet": "Skewed", "own.py:f": "F"}
    message = complaint(titles.parse, "fedprx=Ours", configs)
    assert message == "--names='fedprx=Ours': no run has 'fedprx'; did you mean 'fedprox'?"
    assert titles.section_title("partition", {"name": "dirichlet", "alpha": 0.3}, names) == (
        "Skewed",
        set(),
    )
    config = {"method": {"name": "fedavg"}, "data": {"name": "mnist"}, "partition": {"name": "iid"}}
    assert titles.run_title(config, names) == "Ours, MNIST, IID"
    config["clock"] = {"concurrency": 4}
    assert titles.run_title(config, names) == "Ours, MNIST, IID"
    assert titles.run_title(config) == "Asynchronous FedAvg, MNIST, IID"
    assert titles.parse(None, configs) == titles.parse("", configs) == {}
    for text in ("fedavg", "fedavg=", "=Ours", "a=b,"):
        assert "is not NAME=TITLE,NAME=TITLE" in complaint(titles.parse, text, configs)
