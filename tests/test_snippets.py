"""The Python and shell blocks of README and docs run as they stand.

The fast tests check the syntax and the commands, and import the files that pages have; the slow
ones build all experiments that train on generated data; the exhaustive ones run all pages.
`snippets.py` says how a page marks a block that cannot be run.
"""

import ast
import os
import runpy
import subprocess
import sys

import pytest
import snippets
from snippets import PAGES, ROOT

from fedjax_lab.commands import sweep
from fedjax_lab.experiment import experiment

WITH_BLOCKS = [str(page.relative_to(ROOT)) for page in PAGES if snippets.blocks(page)]
CHECKED_ELSEWHERE = "CONTRIBUTING.md"  # its blocks are parts of tests: test_readme.py


def runnable(name):
    return [block for block in snippets.blocks(ROOT / name) if block.use != "not run"]


@pytest.fixture
def page_folder(tmp_path, monkeypatch):
    """A function that makes the folder of a page, in which its commands run."""

    def make(name):
        snippets.write_files(ROOT / name, tmp_path)
        monkeypatch.chdir(tmp_path)
        return tmp_path

    return make


@pytest.mark.parametrize("name", WITH_BLOCKS)
def test_the_blocks_of_a_page_are_valid(name, page_folder, capsys):
    folder = page_folder(name)
    for block in snippets.blocks(ROOT / name):
        if block.kind == "bash":
            for words in snippets.commands(block):
                snippets.check(words)
        elif not block.text.startswith("%pip"):
            ast.parse(block.text)
    for file in {block.note for block in snippets.blocks(ROOT / name) if block.use == "file"}:
        if not file.startswith("test_"):
            runpy.run_path(str(folder / file))


def test_outdated_blocks_are_noticed(tmp_path):
    for line in (
        "fedjax-lab run --config=quickstart:fedprx",
        "fedjax-lab run --config=quickstart --config.local.rate=1",
        "fedjax-lab sweep --config=quickstart --method=fedavg",
        "fedjax-lab report runs/x --format=word",
        "fedjax-lab figures curve runs/x",
        "fedjax-lab data get cifar11",
        "pip install -e '.[gpu]'",
    ):
        (words,) = snippets.commands(snippets.Block("bash", line, "", "", 0))
        with pytest.raises((Exception, SystemExit)):
            snippets.check(words)
    page = tmp_path / "page.md"
    page.write_text(
        "a\n\n<!-- not run: needs data -->\n```bash\nls\n```\n\n- b\n\n  ```python\n  1\n  ```\n"
    )
    shell, python = snippets.blocks(page)
    assert shell == ("bash", "ls\n", "not run", "needs data", 4)
    assert python == ("python", "1\n", "", "", 10)


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_BLOCKS)
def test_the_experiments_of_a_page_can_be_built(name, page_folder):
    page_folder(name)
    load = sweep.load_once()
    for block in runnable(name):
        for words in snippets.commands(block) if block.kind == "bash" else ():
            if snippets.is_of_config(words):
                config, seeds = snippets.config_of(words)
                experiment.build(config, seeds, load(config))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name in WITH_BLOCKS if name != CHECKED_ELSEWHERE])
def test_the_blocks_of_a_page_run_in_their_order(name, page_folder):
    """The shell blocks run one after another, and the Python blocks as one session."""
    for package in ("pandas", "safetensors"):
        pytest.importorskip(package)
    folder = page_folder(name)
    commands = folder / "bin"
    commands.mkdir()
    for command, module in {"fedjax-lab": "-m fedjax_lab", "python": ""}.items():
        (commands / command).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        (commands / command).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "2",
    }
    session = "\n".join(b.text for b in runnable(name) if b.kind == "python" and b.use != "file")
    shell = [block.text for block in runnable(name) if block.kind == "bash"]
    pipes = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 3600}
    runs = [["bash", "-euo", "pipefail", "-c", text] for text in shell]
    for run in [*runs, [sys.executable, "-c", session]]:
        done = subprocess.run(run, env=environment, **pipes)
        assert done.returncode == 0, f"{run[-1]}\n{done.stdout}\n{done.stderr}"
