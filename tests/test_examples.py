"""The worked example runs outside of the package, with the commands of its README."""

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
    """A copy of the example, and next to it the commands of an installed package."""
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
    """{block of the README: its output}. A command that fails makes the tests fail."""
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
    """The output of the one block that contains this text."""
    (output,) = (output for block, output in outputs.items() if text in block)
    return output


def rows(folder):
    """{round: metrics} of a run, without the elapsed time."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return {row["round"]: {**row, "seconds": 0} for row in map(json.loads, lines)}


def test_all_parts_together_have_about_a_hundred_lines():
    assert len((EXAMPLE / "own.py").read_text().splitlines()) <= 105


@pytest.mark.slow
def test_a_run_records_the_file_of_each_user_defined_part(folder, outputs):
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
def test_a_killed_run_resumes_with_the_numbers_of_an_uninterrupted_run(folder, outputs):
    first, killed = rows(folder / "runs/first"), rows(folder / "runs/killed")
    assert max(killed) == 200 and first == {round: killed[round] for round in first}
    resumed = printed(outputs, "--resume").rpartition("compiling")[2]
    assert "round 200/200" in resumed and "round 5/200" not in resumed


@pytest.mark.slow
def test_the_loaded_model_has_the_score_of_its_run(folder, outputs):
    (line,) = printed(outputs, "fedjax_lab.load").splitlines()
    assert float(line) == pytest.approx(rows(folder / "runs/first")[20]["global"], abs=0.01)
    assert (folder / "global.safetensors").is_file()


@pytest.mark.slow
def test_the_tests_of_the_example_pass(outputs):
    assert "4 passed" in printed(outputs, "pytest")


@pytest.mark.slow
def test_the_files_and_the_command_of_the_page_about_own_parts_work(tmp_path, folder):
    page = (ROOT / "docs/own_parts.md").read_text()
    own, tests, *_ = re.findall(r"^```python\n(.*?)^```", page, re.S | re.M)
    commands = re.findall(r"^```bash\n(.*?)^```", page, re.S | re.M)[0].rstrip()
    (tmp_path / "own.py").write_text(own)
    (tmp_path / "test_own.py").write_text(tests)
    call = f"{commands} --config.run.rounds=2 && python -m pytest -p no:cacheprovider test_own.py"
    path = f"{folder.parent / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        call, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout + done.stderr
