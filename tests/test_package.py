"""The installed package: its commands, its configs and its metadata."""

import configparser
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from slow_cases import slow_but

from fedjax_lab import __main__ as console

ROOT = Path(__file__).parents[1]
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")


def fedjax_lab(*arguments, **options):
    """Runs `python -m fedjax_lab ...` in a new process."""
    command = [sys.executable, "-m", "fedjax_lab", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, **options)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_all_commands_are_listed_if_none_is_given(arguments):
    done = fedjax_lab(*arguments)
    assert done.returncode == 0 and done.stderr == ""
    for name, (_, what) in console.COMMANDS.items():
        assert re.search(rf"^  {name} +{what}$", done.stdout, re.M)


def test_the_error_about_a_mistyped_command_names_the_nearest_one():
    done = fedjax_lab("swep", "--config=quickstart")
    assert done.returncode == 2
    assert done.stderr == "error: no command 'swep'; did you mean 'sweep'?\n"


@pytest.mark.parametrize("name", slow_but(["run"], console.COMMANDS))
def test_the_name_of_a_command_runs_its_module(name):
    module, _ = console.COMMANDS[name]
    helped = fedjax_lab(name, "--help")
    assert helped.returncode == 0 and f"python -m {module} " in helped.stdout


def test_the_module_of_a_named_command_reports_its_errors():
    done = fedjax_lab("run", "--config=quickstart", "--config.local.lr=fast")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: config.local.lr must be of type float, got 'fast'\n"


def test_listing_the_commands_imports_neither_jax_nor_numpy():
    code = (
        "import json, runpy, sys\nsys.argv = ['fedjax-lab', '--help']\n"
        "try: runpy.run_module('fedjax_lab', run_name='__main__')\n"
        "finally: print(json.dumps(list(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert "fedjax_lab.command" in loaded and not {"jax", "numpy", "absl"} & set(loaded)


def test_the_wheel_has_every_folder_of_the_package_and_the_configs():
    """setup.cfg finds the packages, and takes the files of fedjax_lab.configs from configs/."""
    folders = {path.parent for path in (ROOT / "fedjax_lab").rglob("*.py")}
    assert all((folder / "__init__.py").is_file() for folder in folders)  # `find:` requires it
    assert SETUP["options"]["package_dir"].split() == ["fedjax_lab.configs", "=", "configs"]
    assert [path.name for path in (ROOT / "fedjax_lab/configs").glob("*.py")] == ["__init__.py"]


def test_the_metadata_agree_with_the_citation_file():
    citation, metadata = (ROOT / "CITATION.cff").read_text(), SETUP["metadata"]
    assert f"name: {metadata['author']}\n" in citation
    assert f"license: {metadata['license']}\n" in citation
    assert re.findall(r"^  - (?!name)(.*)$", citation, re.M) == metadata["keywords"].split(", ")
