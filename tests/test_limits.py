"""Limits of the process's memory, under which jax crashes or waits forever."""

import mmap
import os
import resource
from pathlib import Path

import pytest
from children import run

from fedjax_lab.commands import command
from fedjax_lab.data import limits, safe
from fedjax_lab.engine import parallel

CODE = """
import resource
resource.setrlimit(resource.{kind}, ({bytes}, {bytes}))
from fedjax_lab.commands import command
command.begin()
print("begun")
"""


def limited(monkeypatch, size):
    kinds = {resource.RLIMIT_AS: size, resource.RLIMIT_DATA: resource.RLIM_INFINITY}
    monkeypatch.setattr(limits.resource, "getrlimit", lambda kind: (kinds[kind], size))


@pytest.mark.parametrize("kind", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_a_command_that_cannot_import_its_libraries_ends_with_one_line(kind):
    for size, code in ((300 << 20, 1), (4 << 30, 0)):
        done = run(CODE.format(kind=kind, bytes=size))
        flag = {"RLIMIT_AS": "-v", "RLIMIT_DATA": "-d"}[kind]
        assert done.returncode == code
        if code:
            assert done.stderr.startswith(f"error: out of memory; ulimit {flag} is 0.29 GiB")
        assert done.stderr.count("\n") == code


def test_devices_are_not_started_under_a_low_limit(monkeypatch, capsys):
    limited(monkeypatch, 1 << 30)
    assert command.call(lambda _: parallel.check_devices(), []) == 1
    message = capsys.readouterr().err
    assert message.startswith("error: out of memory; ulimit -v is 1.00 GiB, but about 2.")
    assert message.count("\n") == 1
    limited(monkeypatch, resource.RLIM_INFINITY)
    parallel.check_devices()
    assert limits.memory() == {} and limits.too_low(1 << 60) == ""


def test_the_free_memory_is_within_the_limit(monkeypatch):
    before = safe.free_memory()
    limited(monkeypatch, 1)
    assert safe.free_memory() == 0 < before


@pytest.mark.parametrize(
    "text", ["can't start new thread", "x.so: failed to map segment from shared object"]
)
def test_errors_of_exhausted_memory_are_failures_of_the_machine(text):
    assert command.machine_failure(ImportError(text)) == text


def flags(monkeypatch, given, version):
    monkeypatch.setattr(parallel.jaxlib, "__version__", version)
    monkeypatch.setenv("XLA_FLAGS", given)
    parallel._wait_for_slow_devices()
    return os.environ["XLA_FLAGS"].split()


def test_devices_of_a_cpu_wait_for_each_other_if_jaxlib_knows_the_flags(monkeypatch):
    """An unknown flag in XLA_FLAGS would end the process."""
    warn, end = parallel.WAITS
    waits = [f"--{flag}={parallel.LONGEST_WAIT}" for flag in parallel.WAITS]
    assert flags(monkeypatch, "", "0.10.2") == waits
    assert flags(monkeypatch, "--a=1", "0.12.0.1") == ["--a=1", *waits]
    assert flags(monkeypatch, f"--{warn}=3", "0.11") == [f"--{warn}=3", waits[1]]
    assert flags(monkeypatch, "--a=1", "0.13.0") == flags(monkeypatch, "--a=1", "1.10") == ["--a=1"]
    if parallel.jaxlib.__version__.split(".")[1] in parallel.JAXLIB_WAITS:  # this one knows them
        library = Path(parallel.jaxlib.__file__).with_name("libjax_common.so")
        with library.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        assert all(content.find(flag.encode()) > 0 for flag in parallel.WAITS)
