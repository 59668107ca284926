"""Citations of data sets in reports, and the license, citation and fingerprint of a data set."""

import json

from run_folders import SCORES, call, write
from small_dataset import SMALL

from fedjax_lab.data.dataset import PARTS, fingerprint_of
from fedjax_lab.data.fetching import catalog

DATA = {"name": "toy", "license": "CC0", "citation": "A. Nobody. Toys. 1999.", "fingerprint": "a1"}


def write_summary(folder, **data):
    folder.joinpath("summary.json").write_text(json.dumps({"data": {**DATA, **data}}))


def test_a_report_cites_each_data_set_once(tmp_path, capsys):
    for name in "abc":
        write_summary(write(tmp_path / name, SCORES["fedavg"], method=f"method_{name}"))
    assert "cite" in call(capsys, tmp_path / "a")
    write_summary(tmp_path / "c", fingerprint="b2", license="")
    for form in ("terminal", "markdown", "latex", "html"):
        text = call(capsys, tmp_path, f"--format={form}")
        assert text.count("A. Nobody. Toys. 1999.") == 2
        assert text.count("fingerprint a1") == text.count("license: CC0") == 1
        assert "fingerprint b2" in text
    assert "cite" not in call(capsys, write(tmp_path / "unknown", SCORES["fedavg"]))


def test_named_sources_have_the_license_and_citation_of_the_catalog():
    published = catalog.PUBLISHED["cifar10"]
    for section in ({"name": "cifar10"}, {"name": "tfds", "dataset": "cifar10"}):
        dataset = catalog.credited(SMALL, section)
        assert (dataset.license, dataset.citation) == (published.license, published.citation)
    assert catalog.credited(SMALL, {"name": "arrays", "path": "x.npz"}) == SMALL
    licensed = SMALL._replace(license="mine", citation="me")
    assert catalog.credited(licensed, {"name": "cifar10"}) == licensed
    assert "UCI" in catalog.credited(SMALL, {"name": "digit_domains"}).citation


def test_the_fingerprint_of_data_depends_only_on_their_content():
    digests = SMALL.digests()
    assert list(digests) == [name for name in PARTS if name != "users"]
    original = SMALL.fingerprint()
    assert original == fingerprint_of({**digests, "partition of seed 3": "2"})
    assert len(original) == 16 and int(original, 16)
    for name in PARTS:
        assert fingerprint_of({**digests, name: "0"}) != original
    by_two = SMALL._replace(client=SMALL.y % 2, users=("one", "two"))
    assert by_two.fingerprint() != original
    assert SMALL._replace(y=SMALL.y[::-1]).fingerprint() != original
