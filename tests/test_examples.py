"""The worked example runs outside of the package, with the commands of its README."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

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


def environment_of(folder):
    """The environment of the commands, which find the package as if it was installed."""
    return {
        **os.environ,
        "PATH": f"{folder.parent / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "2",
    }


@pytest.fixture(scope="module")
def printed(folder):
    """A function that runs the README's one block with a text, once, and returns its output."""
    shells = {"bash": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}
    pipes = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 300}

    @functools.cache
    def run(text):
        ((shell, block),) = (each for each in BLOCKS if text in each[1])
        environment = environment_of(folder)
        done = subprocess.run([*shells[shell], block], cwd=folder, env=environment, **pipes)
        assert done.returncode == 0, f"{block}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stdout

    return run


def rows(folder):
    """{round: metrics} of a run, without the elapsed time."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return {row["round"]: {**row, "seconds": 0} for row in map(json.loads, lines)}


def test_all_parts_together_have_about_a_hundred_lines():
    assert len((EXAMPLE / "own.py").read_text().splitlines()) <= 105


@pytest.mark.exhaustive
def test_a_run_records_its_parts_and_the_loaded_model_has_its_score(folder, printed):
    assert "margin.mean" in printed("--workdir=runs/first")
    config = json.loads((folder / "runs/first/config.json").read_text())
    names = ("tilted", "SmallCNN", "rotated_digits", "power_law", "margin")
    assert set(config["parts"]) == {f"own.py:{name}" for name in names}
    assert {part["file"] for part in config["parts"].values()} == {str(folder / "own.py")}
    (line,) = printed("fedjax_lab.load").splitlines()
    assert float(line) == pytest.approx(rows(folder / "runs/first")[20]["global"], abs=0.01)
    assert (folder / "global.safetensors").is_file()


@pytest.mark.exhaustive  # a dozen processes, which take minutes
def test_the_other_commands_of_the_readme_do_what_it_says(folder, printed):
    assert "tilt" in printed("--help-method")
    report = printed("report runs/sweep")
    cells = {path.parent.name for path in (folder / "runs/sweep").glob("*/summary.json")}
    assert cells == {"fedavg", "own.py:tilted,tilt=0.5", "own.py:tilted,tilt=2.0"}
    assert "margin.mean, last round: row minus fedavg, seed by seed" in report
    assert "own.py:tilted tilt=2.0      3" in report
    resumed = printed("--resume").rpartition("compiling")[2]
    assert "round 200/200" in resumed and "round 5/200" not in resumed
    printed("--workdir=runs/first")
    first, killed = rows(folder / "runs/first"), rows(folder / "runs/killed")
    assert max(killed) == 200 and first == {round: killed[round] for round in first}
    assert "4 passed" in printed("pytest")
    assert len(BLOCKS) == 6


@pytest.mark.exhaustive
def test_the_files_and_the_command_of_the_page_about_own_parts_work(tmp_path, folder):
    page = (ROOT / "docs/own_parts.md").read_text()
    own, tests, *_ = re.findall(r"^```python\n(.*?)^```", page, re.S | re.M)
    commands = re.findall(r"^```bash\n(.*?)^```", page, re.S | re.M)[0].rstrip()
    (tmp_path / "own.py").write_text(own)
    (tmp_path / "test_own.py").write_text(tests)
    call = f"{commands} --config.run.rounds=2 && python -m pytest -p no:cacheprovider test_own.py"
    options = {"cwd": tmp_path, "env": environment_of(folder), "capture_output": True, "text": True}
    done = subprocess.run(call, shell=True, **options)
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout + done.stderr
