"""The figure domain_gap: the model of every client, tested on every domain."""

import numpy as np
import pytest
import toys

from fedjax_lab.analysis import finished
from fedjax_lab.analysis.figures import domain_gap
from fedjax_lab.commands import figures
from fedjax_lab.running import runner


@pytest.mark.slow
def test_the_accuracies_equal_those_of_the_evaluation(tmp_path, capsys, monkeypatch):
    """The diagonal equals the run's scores by domain, and the weighted mean its global score."""
    monkeypatch.setattr(domain_gap, "BATCH", 7)
    domain = np.array(["north", "south"])[np.arange(300) % 2]
    toys.write_examples(tmp_path / "data.npz", domain=domain)
    sections = {"partition": {"name": "by_domain", "num_clients": 2}, "method": {"name": "local"}}
    e = toys.build(tmp_path, run={"rounds": 2}, **sections)
    last = runner.run(e, tmp_path / "run", quiet=True).metrics[-1]
    run = finished.load(tmp_path / "run")
    accuracy = domain_gap.accuracies(run)
    np.testing.assert_allclose(np.diag(accuracy), list(last["domains"].values()), rtol=1e-5)
    counts = np.bincount(np.asarray(run.federation.domain)[np.asarray(run.federation.global_test)])
    expected = np.average(accuracy.mean(0), weights=counts)
    assert expected == pytest.approx(last["global"], rel=1e-5)
    assert figures.main(["domain_gap", str(tmp_path / "run"), f"--out={tmp_path}/out"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "|  | north | south |"
    assert lines[4] == f"| `north` | {accuracy[0, 0]:.1f} | {accuracy[0, 1]:.1f} |"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["domain_gap.png"]
