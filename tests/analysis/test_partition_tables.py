"""The examples that each client holds, as a table, a picture and a CSV file."""

import csv

import numpy as np
from PIL import Image

from fedjax_lab.analysis import partition_tables
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.experiment import deal_dataset, feature_skew
from fedjax_lab.running import plots


def held(clients=3, classes=4, domains=0, num_new=0):
    """Client i, whether new or not, holds 1 + i % 7 examples of each class."""
    size = 1 + np.arange(clients + num_new)[:, None] % 7
    of_domain = classes * size * (np.arange(clients + num_new)[:, None] % 2 == np.arange(domains))
    return partition_tables.Held(
        classes=np.tile(size, classes),
        domains=of_domain,
        num_new=num_new,
        class_names=[f"class {i}" for i in range(classes)],
        domain_names=[f"domain {i}" for i in range(domains)],
    )


def rows_of(axes):
    return [label.get_text() for label in axes.get_yticklabels()]


def test_new_clients_are_drawn_below_the_others():
    heat, bars, _ = partition_tables.draw(held(num_new=2)).axes
    assert rows_of(heat) == ["0", "1", "2", "new 0", "new 1"]
    assert {line.get_ydata()[0] for line in heat.lines} == {2.5}
    assert heat.images[0].get_array().shape == (5, 4)
    assert [bar.get_width() for bar in bars.patches] == [4, 8, 12, 16, 20]


def test_a_picture_of_thousands_of_clients_shows_a_sample_sorted_by_size(tmp_path):
    figure = partition_tables.draw(held(clients=3500, num_new=500))
    heat, bars, _ = figure.axes
    assert heat.get_ylabel() == "100 of 4000 clients, by size"
    widths = [bar.get_width() for bar in bars.patches]
    assert len(widths) == 100 and widths == sorted(widths)
    assert (widths[0], widths[-1]) == (4, 28)
    assert heat.images[0].get_array().shape == (100, 4)
    for shape in ((3, 2), (300, 120)):
        plots.save(partition_tables.draw(held(*shape)), tmp_path / "clients.png")
        width, height = Image.open(tmp_path / "clients.png").size
        assert 200 < height < 1700 and 300 < width < 2200


def test_domains_are_shown_after_the_classes():
    made = held(clients=2, domains=2)
    classes, domains, *_ = partition_tables.draw(made).axes
    assert classes.images[0].get_array().tolist() == [[25] * 4] * 2
    assert domains.images[0].get_array().tolist() == [[100, 0], [0, 100]]
    assert (classes.get_xlabel(), domains.get_xlabel()) == ("Class", "Domain")
    text = partition_tables.table(made).splitlines()
    assert text[1].split() == ["0", "1", "1", "1", "1", "4", "0", "4"]
    assert text[-1] == "domains: EMD to the global domains 0.889 (max 2), 1.0 domains per client"


def test_labels_without_classes_leave_only_names_and_sizes():
    made = held(clients=3, classes=1)._replace(named=["Berlin", "Oslo", "2"])
    (bars,) = partition_tables.draw(made).axes
    assert rows_of(bars) == ["Berlin", "Oslo", "2"]
    assert bars.get_ylim()[0] > bars.get_ylim()[1]  # the first client is at the top
    header, first, _, last, *_, skew = partition_tables.table(made).splitlines()
    assert [line.split() for line in (header, first, last)] == [
        ["client", "all"],
        ["0", "Berlin", "1"],
        ["2", "3"],
    ]
    assert skew == "skew: Gini of sizes 0.222"


def test_the_test_examples_that_belong_to_no_client_are_counted():
    client = np.array([0, 0, 1, 1, 1, 0, 1, 2, 2, 2])
    test = np.arange(10) >= 5
    data = Dataset(np.zeros((10, 2), np.float32), client % 2, 0 * client, test, ("a", "b"), ("d",))
    data = data._replace(client=client, users=("u", "v", "w"))
    for settings, line in (
        ({}, "3 of 5 test examples belong to no client; they are only in the global test set"),
        ({"min_examples": 3}, "4 of 5 test examples belong to no client"),
        ({"new_clients": 0.5}, "3 of 5 test examples belong to no client"),
    ):
        config = resolve({"partition": {"name": "by_client", **settings}})
        made = partition_tables.held_by(deal_dataset(config, data, [0])[0], data)
        assert line in partition_tables.table(made)
    assert "test examples" not in partition_tables.table(held())


def test_the_csv_file_has_every_client(tmp_path):
    partition_tables.write(
        held(clients=200, classes=2, domains=2, num_new=1), tmp_path / "partition.csv"
    )
    lines = list(csv.reader((tmp_path / "partition.csv").read_text().splitlines()))
    assert lines[0] == ["client", "examples", "class 0", "class 1", "domain 0", "domain 1"]
    assert lines[2] == ["1", "4", "2", "2", "0", "4"]
    assert len(lines) == 202 and lines[-1][0] == "new 0"
    made = held(clients=2, num_new=1)
    for names, last in ((["0", "1", "new 0"], ["class 3"]), (["Ann", "Bob", "new Eve"], ["name"])):
        partition_tables.write(made._replace(named=names), tmp_path / "partition.csv")
        header, *_, new = csv.reader((tmp_path / "partition.csv").read_text().splitlines())
        assert header[-1:] == last and (new[0], len(new)) == ("new 0", len(header))
    assert new[-1] == "new Eve"
    assert rows_of(partition_tables.draw(made._replace(named=names)).axes[0]) == names


def test_one_image_is_shown_with_the_feature_skew_of_each_client():
    x = np.random.default_rng(0).integers(0, 256, (40, 4, 4, 1), dtype=np.uint8)
    zeros = np.zeros(40, np.int32)
    dataset = Dataset(x, zeros, zeros, np.arange(40) % 4 == 0, ("a",), ("",))
    partition = {"name": "iid", "num_clients": 4, "feature_skew": "rotation", "new_clients": 0.25}
    config = resolve({"partition": partition})
    (federation,) = deal_dataset(config, dataset, [0])
    skew = feature_skew(config, dataset.x, federation)
    images = partition_tables.skewed_images(dataset, federation, skew)
    assert list(images) == ["0", "1", "2", "new 0"]
    first, *_ = numbers = federation.traits["skew"].client
    for number, image in zip(numbers, images.values(), strict=True):
        np.testing.assert_allclose(image, np.rot90(images["0"], number - first), atol=1e-6)
    shown = partition_tables.draw(partition_tables.held_by(federation, dataset), images).axes
    assert [axes.get_title() for axes in shown[:4]] == ["0", "1", "2", "new 0"]
    assert partition_tables.skewed_images(dataset, federation, None) == {}
