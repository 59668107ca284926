"""The tests run with every supported jaxlib, and without each package of an extra."""

import subprocess
import sys
from pathlib import Path

import optional
import pytest
import xla_flags
from slow_cases import exhaustive_but


def test_only_flags_that_jaxlib_knows_are_used():
    flags = ["--xla_no_such_flag=1", "--xla_cpu_parallel_codegen_split_count=1"]
    assert xla_flags.known(flags) == flags[1:]


def test_a_test_without_its_package_is_skipped_with_the_name_of_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(pytest.skip.Exception, match="h5py is missing.*fedjax_lab.hdf5.") as error:
        optional.module("h5py")
    assert error.value.allow_module_level


OTHERS = [*optional.not_of_test(), *optional.WITHOUT_EXTRA]
OF_TEST = [package for package in optional.EXTRAS if package not in OTHERS]


AT_ONCE = [",".join(OF_TEST)]


@pytest.mark.parametrize("packages", exhaustive_but([AT_ONCE], [AT_ONCE, OF_TEST, OTHERS]), ids=len)
def test_all_tests_are_collected_without_packages_of_extras(packages):
    """Without all of them, and without any one; README's tests run without the others."""
    program = Path(__file__).with_name("collect_without.py")
    child = subprocess.run([sys.executable, program, *packages], capture_output=True, text=True)
    assert child.returncode == 0, child.stdout + child.stderr
