"""The learning curve: a run's results do not depend on it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import toys
from absl.testing import flagsaver

from fedjax_lab import main
from fedjax_lab.running import plots

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("backend", ["nonsense", "svg"])
def test_an_unknown_backend_of_matplotlib_is_ignored(backend):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": backend}
    code = "from fedjax_lab.analysis import dealt; from fedjax_lab.running import plots"
    code += "; plots.draw_key(0)"
    code += "; import os, matplotlib; print(matplotlib.rcParams._get_backend_or_none() == 'svg')"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().strip() == str(backend == "svg")


@pytest.mark.slow
def test_a_run_without_a_picture_has_all_other_results(tmp_path, monkeypatch, capsys):
    def broken(*_):
        raise RuntimeError("no fonts")

    monkeypatch.setattr(plots, "learning_curve", broken)
    toys.write_examples(tmp_path / "data.npz")
    toy = toys.write_config(tmp_path, run={"rounds": 1, "eval_every": 1, "cohort": 3})
    with flagsaver.flagsaver():
        assert main.main(["main", f"--config={toy}", f"--workdir={tmp_path / 'run'}"]) == 0
    assert (tmp_path / "run/summary.json").exists()
    out, err = capsys.readouterr()
    assert err == "warning: the learning curve is not drawn, because of RuntimeError: no fonts\n"
    assert "curve:" not in out
