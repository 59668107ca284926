"""What a run and a report say of the data."""

import json

from run_folders import SCORES, call, write
from small_dataset import SMALL

from fedjax_lab.data import catalog
from fedjax_lab.data.dataset import PARTS, fingerprint_of

DATA = {"name": "toy", "license": "CC0", "citation": "A. Nobody. Toys. 1999.", "fingerprint": "a1"}


def told(folder, **data):
    folder.joinpath("summary.json").write_text(json.dumps({"data": {**DATA, **data}}))


def test_a_report_cites_each_data_set_once(tmp_path, capsys):
    for name in "abc":
        told(write(tmp_path / name, SCORES["fedavg"], method=f"method_{name}"))
    told(tmp_path / "c", fingerprint="b2", license="")
    for form in ("terminal", "markdown", "latex", "html"):
        text = call(capsys, tmp_path, f"--format={form}")
        assert text.count("A. Nobody. Toys. 1999.") == 2
        assert text.count("fingerprint a1") == text.count("license: CC0") == 1
        assert "fingerprint b2" in text


def test_a_report_is_silent_about_data_that_it_does_not_know(tmp_path, capsys):
    write(tmp_path / "a", SCORES["fedavg"])
    assert "cite" not in call(capsys, tmp_path)


def test_named_sources_have_the_license_and_citation_of_their_catalog():
    published = catalog.PUBLISHED["cifar10"]
    for section in ({"name": "cifar10"}, {"name": "tfds", "dataset": "cifar10"}):
        dataset = catalog.credited(SMALL, section)
        assert (dataset.license, dataset.citation) == (published.license, published.citation)
    assert catalog.credited(SMALL, {"name": "arrays", "path": "x.npz"}) == SMALL
    said = SMALL._replace(license="mine", citation="me")
    assert catalog.credited(said, {"name": "cifar10"}) == said
    assert "UCI" in catalog.credited(SMALL, {"name": "digit_domains"}).citation


def test_the_fingerprint_of_the_data_is_that_of_their_content_alone():
    digests = SMALL.digests()
    assert list(digests) == [name for name in PARTS if name != "users"]
    said = SMALL.fingerprint()
    assert said == fingerprint_of({**digests, "partition of seed 3": "2"})
    assert len(said) == 16 and int(said, 16)
    for name in PARTS:
        assert fingerprint_of({**digests, name: "0"}) != said
    by_two = SMALL._replace(client=SMALL.y % 2, users=("one", "two"))
    assert by_two.fingerprint() != said
    assert SMALL._replace(y=SMALL.y[::-1]).fingerprint() != said
