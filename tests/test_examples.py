"""The worked example runs from outside of the package exactly as its README says."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples/own_parts"
BLOCKS = re.findall(
    r"^```(bash|python)\n(.*?)^```", (EXAMPLE / "README.md").read_text(), re.S | re.M
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A copy of the example, and beside it the commands that an installed package has."""
    folder = tmp_path_factory.mktemp("elsewhere") / "own_parts"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__", "runs"))
    commands = folder.parent / "bin"
    commands.mkdir()
    for name, module in {"fedjax-lab": "-m fedjax_lab", "python": ""}.items():
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        (commands / name).chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def outputs(folder):
    """What each block of the README has printed. A command that fails fails the tests."""
    path = f"{folder.parent / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {
        **os.environ,
        "PATH": path,
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "2",
        "JAX_COMPILATION_CACHE_DIR": jax.config.jax_compilation_cache_dir,
    }
    shells = {"bash": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}

    def run(shell, block):
        done = subprocess.run(
            [*shells[shell], block],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stdout

    return {block: run(shell, block) for shell, block in BLOCKS}


def printed(outputs, text):
    """By the one block with that text."""
    (output,) = (output for block, output in outputs.items() if text in block)
    return output


def rows(folder):
    """The metrics of a run by round, without the clock."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return {row["round"]: {**row, "seconds": 0} for row in map(json.loads, lines)}


def test_all_parts_together_take_about_a_hundred_lines():
    assert len((EXAMPLE / "own.py").read_text().splitlines()) <= 105


@pytest.mark.slow
def test_runs_say_where_the_parts_came_from(folder, outputs):
    config = json.loads((folder / "runs/first/config.json").read_text())
    assert set(config["parts"]) == {
        f"own.py:{name}" for name in ("tilted", "SmallCNN", "rotated_digits", "power_law", "margin")
    }
    assert {part["file"] for part in config["parts"].values()} == {str(folder / "own.py")}
    assert "margin.mean" in printed(outputs, "--workdir=runs/first")


@pytest.mark.slow
def test_the_sweep_has_a_cell_for_each_point_and_the_report_compares_them(folder, outputs):
    cells = {path.parent.name for path in (folder / "runs/sweep").glob("*/summary.json")}
    assert cells == {"fedavg", "own.py:tilted,tilt=0.5", "own.py:tilted,tilt=2.0"}
    report = printed(outputs, "report runs/sweep")
    assert "margin.mean, last round: row minus fedavg, seed by seed" in report
    assert "own.py:tilted tilt=2.0      3" in report


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_numbers_of_one_that_was_not(folder, outputs):
    first, killed = rows(folder / "runs/first"), rows(folder / "runs/killed")
    assert max(killed) == 200 and first == {round: killed[round] for round in first}
    resumed = printed(outputs, "--resume").rpartition("compiling")[2]
    assert "round 200/200" in resumed and "round 5/200" not in resumed


@pytest.mark.slow
def test_the_loaded_model_is_the_one_that_was_scored(folder, outputs):
    (line,) = printed(outputs, "fedjax_lab.load").splitlines()
    assert float(line) == pytest.approx(rows(folder / "runs/first")[20]["global"], abs=0.01)
    assert (folder / "global.safetensors").is_file()


@pytest.mark.slow
def test_its_own_tests_pass(outputs):
    assert "4 passed" in printed(outputs, "pytest")
