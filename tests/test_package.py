"""The package as it is installed: its commands by name, its configs, what its files say of it."""

import configparser
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedjax_lab import __main__ as console

ROOT = Path(__file__).parents[1]
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")


def fedjax_lab(*arguments, **options):
    """`python -m fedjax_lab ...` in a process of its own."""
    command = [sys.executable, "-m", "fedjax_lab", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, **options)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_without_a_command_all_are_listed_with_a_line_each(arguments):
    done = fedjax_lab(*arguments)
    assert done.returncode == 0 and done.stderr == ""
    for name, (_, what) in console.COMMANDS.items():
        assert re.search(rf"^  {name} +{what}$", done.stdout, re.M)


def test_a_mistyped_command_gets_the_nearest():
    done = fedjax_lab("swep", "--config=quickstart")
    assert done.returncode == 2
    assert done.stderr == "error: no command 'swep'; did you mean 'sweep'?\n"


@pytest.mark.parametrize("name", console.COMMANDS)
def test_a_command_by_name_is_the_module_with_its_arguments_and_exit_codes(name):
    module, _ = console.COMMANDS[name]
    helped = fedjax_lab(name, "--help")
    assert helped.returncode == 0 and f"python -m {module} " in helped.stdout


def test_a_mistake_in_a_command_by_name_is_told_by_its_module():
    done = fedjax_lab("run", "--config=quickstart", "--config.local.lr=fast")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: config.local.lr must be of type float, got 'fast'\n"


def test_listing_the_commands_imports_nothing_heavy():
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
    assert all((folder / "__init__.py").is_file() for folder in folders)  # `find:` asks for it
    assert SETUP["options"]["package_dir"].split() == ["fedjax_lab.configs", "=", "configs"]
    assert [path.name for path in (ROOT / "fedjax_lab/configs").glob("*.py")] == ["__init__.py"]


def test_the_metadata_say_what_the_citation_says():
    citation, metadata = (ROOT / "CITATION.cff").read_text(), SETUP["metadata"]
    assert f"name: {metadata['author']}\n" in citation
    assert f"license: {metadata['license']}\n" in citation
    assert re.findall(r"^  - (?!name)(.*)$", citation, re.M) == metadata["keywords"].split(", ")
