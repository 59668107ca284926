"""The installed package: its commands, its configs and its metadata."""

import configparser
import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
from children import run, start

from fedjax_lab import __main__ as console

ROOT = Path(__file__).parents[1]
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")


def fedjax_lab(*arguments):
    """The exit code and the output of `python -m fedjax_lab ...` in a new process."""
    process = start("-m", "fedjax_lab", *arguments)
    out, error = process.communicate()
    return process.returncode, out, error


def test_all_commands_are_listed_and_a_mistyped_one_is_an_error():
    code, out, error = fedjax_lab()
    assert (code, error) == (0, "")
    for name, (_, what) in console.COMMANDS.items():
        assert re.search(rf"^  {name} +{what}$", out, re.M)
    error = "error: no command 'swep'; did you mean 'sweep'?\n"
    assert fedjax_lab("swep", "--config=quickstart") == (2, "", error)


def test_the_name_of_a_command_runs_its_module(monkeypatch):
    def run_module(module, **options):
        ran.append((module, options["run_name"], sys.argv))
        raise SystemExit

    ran = []
    monkeypatch.setattr(console.runpy, "run_module", run_module)
    for name, (module, _) in console.COMMANDS.items():
        assert importlib.util.find_spec(module)
        monkeypatch.setattr(sys, "argv", ["fedjax-lab", name, "--help"])
        with pytest.raises(SystemExit):
            console.main()
        assert ran[-1] == (module, "__main__", ["fedjax-lab", "--help"])


def test_listing_the_commands_imports_neither_jax_nor_numpy():
    code = (
        "import json, runpy, sys\nsys.argv = ['fedjax-lab', '--help']\n"
        "try: runpy.run_module('fedjax_lab', run_name='__main__')\n"
        "finally: print(json.dumps(list(sys.modules)))"
    )
    loaded = json.loads(run(code).stdout.splitlines()[-1])
    assert "fedjax_lab.commands.command" in loaded and not {"jax", "numpy", "absl"} & set(loaded)


def test_the_wheel_has_every_folder():
    """setup.cfg finds the packages, and takes the files of fedjax_lab.configs from configs/."""
    folders = {path.parent for path in (ROOT / "fedjax_lab").rglob("*.py")}
    assert all((folder / "__init__.py").is_file() for folder in folders)  # `find:` requires it
    assert SETUP["options"]["package_dir"].split() == ["fedjax_lab.configs", "=", "configs"]
    assert [path.name for path in (ROOT / "fedjax_lab/configs").glob("*.py")] == ["__init__.py"]


def test_the_wheel_has_every_file_of_the_package():
    """setup.cfg lists those that are not Python files."""
    package = ROOT / "fedjax_lab"
    files = {path for path in package.rglob("*") if path.suffix not in (".py", ".pyc")}
    data = {str(path.relative_to(package)) for path in files if path.is_file()}
    assert data == set(SETUP["options.package_data"]["fedjax_lab"].split())


def test_the_metadata_agree_with_the_citation_file():
    citation, metadata = (ROOT / "CITATION.cff").read_text(), SETUP["metadata"]
    assert f"name: {metadata['author']}\n" in citation
    assert f"license: {metadata['license']}\n" in citation
    assert re.findall(r"^  - (?!name)(.*)$", citation, re.M) == metadata["keywords"].split(", ")
