"""The behavior of all commands: interrupts, closed streams, machine failures, compiled programs."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest
import toys
from absl.testing import flagsaver

from fedjax_lab import command, interrupts, main, parallel, report, sweep
from fedjax_lab.data import safe
from fedjax_lab.engine import Engine
from fedjax_lab.errors import BadInput
from fedjax_lab.running import compilation_cache, metrics, runner

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """A config file whose run takes only a moment."""
    folder = tmp_path_factory.mktemp("toy")
    toys.write_examples(folder / "data.npz")
    return toys.write_config(folder, run={"rounds": 2, "eval_every": 1, "cohort": 3})


@pytest.fixture(scope="module")
def finished(toy, tmp_path_factory):
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert call(f"--config={toy}", f"--workdir={folder}") == 0
    return folder


def call(*arguments):
    """Calls main in this process, restores its flags, and returns the exit code."""
    with flagsaver.flagsaver():
        return main.main(["main", *arguments])


def start(*words, run="-m", **options):
    """Starts a command in a separate process."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        [sys.executable, run, *words], **{"env": ENVIRONMENT, **pipes, **options}
    )


# Interrupts.


@pytest.mark.parametrize("module", ["main", "sweep", "report", "paper", "tensorboard"])
def test_every_command_handles_interrupts_before_its_other_imports(module):
    """The first import of each one is `command`, which needs only the standard library."""
    lines = (ROOT / f"fedjax_lab/{module}.py").read_text().split('"""', 2)[2].strip().splitlines()
    assert lines[0].startswith('if __name__ == "__main__":')
    assert lines[3].strip() == "command.begin()"
    code = "import sys, fedjax_lab.command; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert not {"jax", "numpy", "absl", "tqdm"} & set(loaded.stdout.split())


WAITING = """
import sys, time
from fedjax_lab import command
command.begin()
def main(arguments):
    print("ready", flush=True)
    try:
        {body}
    except BaseException:
        print("swallowed", file=sys.stderr)
command.run(lambda arguments: command.call(main, arguments, "do it again"), [])
"""


@pytest.mark.parametrize("number", interrupts.SIGNALS)
@pytest.mark.parametrize("body", ["time.sleep(60)", "while True: pass", "compiled()"])
def test_an_interrupt_ends_any_command_at_once_with_one_line(body, number):
    """The command sleeps, loops in Python or runs compiled code, and swallows any exception."""
    setup = (
        "import jax; compiled = lambda: jax.jit(lambda: jax.lax.while_loop("
        "lambda i: i < 1 << 30, lambda i: i + jax.random.bits(jax.random.key(i)) % 2, 0))"
        "().block_until_ready()\n"
    )
    code = setup * (body == "compiled()") + WAITING.format(body=body)
    process = start(code, run="-c")
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    process.send_signal(number)
    _, message = process.communicate(timeout=30)
    assert process.returncode == 130
    assert message == "interrupted; do it again\n"


def test_an_interrupt_during_the_exit_has_no_effect():
    """At exit, Python removes signal handlers; SIGINT must not kill the process after that."""
    code = """
import atexit, os, signal
from fedjax_lab import command
atexit.register(os.kill, os.getpid(), signal.SIGINT)
command.begin()
"""
    process = start(code, run="-c")
    _, message = process.communicate(timeout=100)
    assert (process.returncode, message) == (0, "")


def test_a_second_interrupt_prints_nothing_and_leaves_no_child_processes():
    code = """
import os, signal, subprocess, sys, time
from fedjax_lab import command, interrupts
command.begin()
def main(_):
    raise KeyboardInterrupt("interrupted after round 3")
command.call(main, [])
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
interrupts.children.add(child)
print(child.pid, flush=True)
os.kill(os.getpid(), signal.SIGINT)
time.sleep(60)
"""
    process = start(code, run="-c")
    out, message = process.communicate(timeout=100)
    assert (process.returncode, message) == (130, "interrupted after round 3\n")
    with pytest.raises(ProcessLookupError):
        os.kill(int(out), 0)


@pytest.mark.slow
def test_an_interrupt_during_the_rounds_saves_the_state(toy, tmp_path, monkeypatch, capfd):
    before = signal.getsignal(signal.SIGINT)
    play = Engine.play

    def interrupted(self, at_most):
        play(self, 1)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Engine, "play", interrupted)
    folder = tmp_path / "run"
    assert call(f"--config={toy}", f"--workdir={folder}") == 130
    printed = capfd.readouterr()
    assert printed.out.count(interrupts.STOPPING) == 1
    again = f"continue with the same command and --workdir={folder} --resume"
    assert printed.err == f"interrupted after round 1 of 2; {again}\n"
    assert (folder / "checkpoints/1").is_dir()
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_before_anything_is_saved_leaves_no_folder(toy, tmp_path, monkeypatch, capsys):
    """Before config.json is written there is nothing to resume, and a new folder is removed."""

    def interrupted(*_, **options):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "run", interrupted)
    assert call(f"--config={toy}") == 130
    assert capsys.readouterr().err == "interrupted; nothing was saved\n"
    assert not list(tmp_path.glob("runs/*"))


# Streams.


@pytest.mark.slow
def test_a_closed_output_pipe_does_not_end_training(toy, finished, tmp_path):
    """With `main ... | head -1` the run continues, and its files equal those of another run."""
    process = start("fedjax_lab.main", f"--config={toy}", f"--workdir={tmp_path / 'run'}")
    process.stdout.close()
    assert process.wait(200) == 0, process.stderr.read()
    assert process.stderr.read() == ""
    same_run(tmp_path / "run", finished)


def same_run(folder, other):
    """Asserts that both finished with equal numbers, up to rounding since their devices differ."""
    assert (folder / "summary.json").exists() and (folder / "plots/learning_curve.png").exists()
    rows, others = (metrics.read_metrics(path / "metrics.jsonl") for path in (folder, other))
    for row, expected in zip(rows, others, strict=True):
        assert row["round"] == expected["round"]
        assert row["train_loss"] == pytest.approx(expected["train_loss"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_report_fails_if_the_disk_of_its_output_is_full(finished):
    """The output is all that a report produces. If its reader closes it, the report succeeds."""
    with open("/dev/full", "w") as full:
        process = start("fedjax_lab.report", str(finished), stdout=full)
        assert process.wait(100) == 1
    message = process.stderr.read()
    assert "No space left on device" in message and message.count("\n") == 1
    process = start("fedjax_lab.report", str(finished))
    process.stdout.close()
    assert process.wait(100) == 0 and process.stderr.read() == ""


CLOSED = """
import os, sys
{close}
from fedjax_lab import command
command.begin()
def main(arguments):
    with open(arguments[0], "w") as file:
        print("caf\\xe9 \\udcff")
        print("caf\\xe9 \\udcff", file=sys.stderr)
        file.write("mine")
    return 0
command.run(main, sys.argv[1:])
"""


@pytest.mark.parametrize("close", ["os.close(1)", "os.close(2)", "os.closerange(0, 3)", "pass"])
def test_commands_work_with_closed_streams_and_ascii_terminals(close, tmp_path):
    """No file gets the descriptor of a closed stream; an ASCII terminal gets escape sequences."""
    environment = {**ENVIRONMENT, "PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    words = [sys.executable, "-c", CLOSED.format(close=close), str(tmp_path / "file")]
    done = subprocess.run(words, env=environment, capture_output=True)
    assert done.returncode == 0
    assert (tmp_path / "file").read_text() == "mine"
    if close == "pass":
        assert done.stdout.strip() == done.stderr.strip() == b"caf\\xe9 \\udcff"


# Machine failures.


def failing(error):
    def run(*_, **__):
        raise error

    return run


def caused(error, cause):
    error.__cause__ = cause
    return error


XLA = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes.\nat 0x1")
FULL = OSError(errno.ENOSPC, "No space left on device", "metrics.jsonl")
FAILURES = [
    (FULL, "No space left on device: metrics.jsonl"),
    (OSError(errno.EDQUOT, "Disk quota exceeded"), "Disk quota exceeded"),
    (caused(ValueError("INTERNAL: checkpoint"), FULL), "No space left on device: metrics.jsonl"),
    (ValueError("INTERNAL: write [OS error 28: No space left on device]"), "INTERNAL: write"),
    (caused(BadInput("cannot write x"), FULL), "cannot write x"),
    (XLA, "RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes."),
    (MemoryError("Unable to allocate 9 GiB"), "out of memory; Unable to allocate 9 GiB"),
]


@pytest.mark.parametrize("error, message", FAILURES, ids=lambda value: str(value)[:40])
def test_a_machine_failure_is_a_one_line_error_with_exit_code_1(
    error, message, finished, toy, tmp_path, monkeypatch, capsys
):
    """In a run, a report and a sweep. The error of the run adds that nothing was saved."""
    monkeypatch.setattr(runner, "run", failing(error))
    monkeypatch.setattr(report, "report", failing(error))
    arguments = [f"--config={toy}", f"--workdir={tmp_path / 'run'}"]
    assert call(*arguments) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"error: {message}") and err.count("\n") == 1
    assert err.endswith("; nothing was saved\n")
    assert report.main([str(finished)]) == 1
    assert capsys.readouterr().err.startswith(f"error: {message}")
    if not isinstance(error, BadInput):
        assert sweep.main(["sweep", f"--config={toy}", f"--out={tmp_path / 'sweep'}"]) == 1
        assert f"failed: {message}"[:40] in capsys.readouterr().out


def test_a_model_too_large_for_memory_is_a_one_line_error(toy, tmp_path, capsys):
    """The memory of a CPU is overcommitted: without a check, the process would be killed."""
    assert (
        call(f"--config={toy}", "--config.model.width=2000000000", f"--workdir={tmp_path / 'w'}")
        == 1
    )
    message = capsys.readouterr().err
    assert "out of memory; the model and the clients' states need" in message
    assert message.count("\n") == 1


def test_a_round_too_large_for_memory_is_an_error(toy, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(safe, "free_memory", lambda: 10_000)  # enough for the states only
    assert call(f"--config={toy}", f"--workdir={tmp_path / 'run'}") == 1
    assert "out of memory; a round needs 0.0 GiB, and 0.0 GiB are free" in capsys.readouterr().err


def test_bad_data_and_program_bugs_are_not_reported_as_machine_failures(capsys):
    too_large = caused(BadInput("x.npz claims 64 GB"), MemoryError())
    assert command.call(failing(too_large), []) == 2
    assert capsys.readouterr().err == "error: x.npz claims 64 GB\n"
    with pytest.raises(ZeroDivisionError):  # from text: this file would be user code
        command.call(eval("lambda _: 1 // 0"), [])
    with pytest.raises(OSError, match="Bad file descriptor"):
        command.call(eval("lambda _: os.fstat(-1)"), [])


USER_CODE = """
import sys
from fedjax_lab.methods.fedavg import fedavg

def raises(task):
    return task.nothing

def leaves(task):
    sys.exit("bye")

def while_traced(task):
    return fedavg(task, lambda message, client, work: work.trian(message))
"""


@pytest.mark.parametrize(
    "name, message",
    [
        ("raises", "line 6: AttributeError: 'Task' object has no attribute 'nothing'"),
        ("leaves", "line 9: SystemExit: bye"),
        ("while_traced", "line 12: AttributeError: 'Work' object has no attribute 'trian'"),
    ],
)
def test_an_error_in_user_code_is_reported_with_its_file_and_line(
    name, message, toy, tmp_path, monkeypatch, capsys
):
    (tmp_path / "own.py").write_text(USER_CODE)
    method = f"--config.method.name={tmp_path / 'own.py'}:{name}"
    assert call(f"--config={toy}", method, f"--workdir={tmp_path / 'run'}") == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line != "compiling"] == [f"error: own.py, {message}"]


def test_an_unusable_path_is_a_one_line_error(capsys):
    for error in (
        OSError(errno.ENAMETOOLONG, "File name too long", "a" * 300),
        PermissionError(13, "Permission denied", "b"),
    ):
        assert command.call(failing(error), []) == 2
        message = capsys.readouterr().err
        assert error.strerror in message and message.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("limit", [700, 4000])
def test_a_run_is_repeated_or_resumed_after_a_full_disk(limit, toy, finished, tmp_path):
    """A limit on file sizes stands for the disk: config.json or a picture cannot be written."""
    words = ["fedjax_lab.main", f"--config={toy}", f"--workdir={tmp_path / 'run'}"]
    code = f"import resource, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))"
    code += "; runpy.run_module('fedjax_lab.main', run_name='__main__', alter_sys=True)"
    process = start(code, *words[1:], run="-c")
    _, message = process.communicate(timeout=200)
    assert process.returncode == 1, message
    assert (
        message.startswith("error: ") and message.count("\n") == 1 and "File too large" in message
    )
    assert ("--resume" in message) == (tmp_path / "run/config.json").exists()
    assert call(*words[1:], *["--resume"] * ("--resume" in message)) == 0
    same_run(tmp_path / "run", finished)


@pytest.mark.slow
def test_an_unknown_platform_is_a_one_line_error(toy):
    environment = {**ENVIRONMENT, "JAX_PLATFORMS": "abacus"}
    process = start("fedjax_lab.main", f"--config={toy}", env=environment)
    _, message = process.communicate(timeout=100)
    assert process.returncode == 2
    assert message.startswith("error: JAX_PLATFORMS=abacus: ") and message.count("\n") == 1


def test_a_platform_without_its_plugin_is_an_error(monkeypatch):
    def devices():
        raise AssertionError  # as jax does under JAX_PLATFORMS=cuda without its package

    monkeypatch.setattr(jax, "devices", devices)
    with pytest.raises(BadInput, match="no such device"):
        parallel.check_devices()


# Compiled programs.


def test_compiled_programs_are_cached_and_damaged_entries_are_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDJAX_LAB_CACHE", str(tmp_path))
    keys = ("compilation_cache_dir", "compilation_cache_max_size")
    keys = [f"jax_{key}" for key in (*keys, "persistent_cache_min_compile_time_secs")]
    before = {key: getattr(jax.config, key) for key in keys}
    try:
        compilation_cache.enable()
        assert jax.config.jax_compilation_cache_dir == before["jax_compilation_cache_dir"]
        jax.config.update("jax_compilation_cache_dir", None)
        compilation_cache.enable()
        folder = Path(jax.config.jax_compilation_cache_dir)
        assert folder.parent == tmp_path / "programs"
        assert jax.config.jax_compilation_cache_max_size == compilation_cache.MAX_BYTES
        for name in ("whole-cache", "whole-atime", "cut-cache", "lost-atime"):
            (folder / name).write_bytes(b"12345678")
        jax.config.update("jax_compilation_cache_dir", None)
        compilation_cache.enable()
        assert {path.name for path in folder.iterdir()} == {
            ".lockfile",
            "whole-cache",
            "whole-atime",
        }
    finally:
        for key, value in before.items():
            jax.config.update(key, value)


@pytest.mark.parametrize("name", ["file", "not utf-8 \udcff"])
def test_an_unwritable_cache_folder_is_ignored(name, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDJAX_LAB_CACHE", str(tmp_path / name))
    before = jax.config.jax_compilation_cache_dir
    try:
        jax.config.update("jax_compilation_cache_dir", None)
        compilation_cache.enable()
        assert jax.config.jax_compilation_cache_dir is None
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
