"""The behavior of all commands: interrupts, closed streams, machine failures, compiled programs."""

import errno
import itertools
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import pytest
import toys
from children import run
from commands import call
from shared_programs import shared_programs  # noqa: F401
from slow_cases import in_ci

import fedjax_lab
from fedjax_lab.commands import command, report, sweep
from fedjax_lab.data import safe
from fedjax_lab.engine import parallel
from fedjax_lab.errors import BadInput
from fedjax_lab.running import compilation_cache, interrupts, plots, runner
from fedjax_lab.running.storage import metric_rows

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}


toy = toys.config_file(run={"rounds": 2, "eval_every": 1, "cohort": 3})


@pytest.fixture(scope="module")
def finished(toy, tmp_path_factory):
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert call(f"--config={toy}", f"--workdir={folder}") == 0
    return folder


def start(*words, run="-m", **options):
    """Starts a command in a separate process, which inherits no ignored signal, as under nohup."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    options = {"env": ENVIRONMENT, **pipes, **options}
    before = {number: signal.signal(number, signal.SIG_DFL) for number in interrupts.SIGNALS}
    try:
        return subprocess.Popen([sys.executable, run, *words], **options)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# Interrupts.


def test_every_command_handles_interrupts_before_its_other_imports():
    """The first import of each one is `command`."""
    for module in ("main", *map("commands/{}".format, ("sweep", "report", "paper", "tensorboard"))):
        code = (ROOT / f"fedjax_lab/{module}.py").read_text().split('"""', 2)[2].strip()
        lines = code.splitlines()
        assert lines[0].startswith('if __name__ == "__main__":')
        assert lines[3].strip() == "command.begin()"


WAITING = """
import sys, time
from fedjax_lab.commands import command
command.begin()
def main(arguments):
    print("ready", flush=True)
    try:
        {body}
    except BaseException:
        print("swallowed", file=sys.stderr)
command.run(lambda arguments: command.call(main, arguments, "do it again"), [])
"""
COMPILED = """
def began():
    import numpy
    print("ready", flush=True)
    return numpy.uint32(0)
def compiled():
    import jax
    def step(i):
        return i + jax.random.bits(jax.random.key(i)) % 2
    def loop():
        first = jax.pure_callback(began, jax.ShapeDtypeStruct((), "uint32"))
        return jax.lax.while_loop(lambda i: i < 1 << 30, step, first)
    jax.jit(loop)().block_until_ready()
"""
BODIES = ["time.sleep(60)", "while True: pass", "compiled()"]
WAYS = [*zip(BODIES, itertools.cycle(interrupts.SIGNALS), strict=False)]


@pytest.mark.parametrize(("body", "number"), WAYS)
def test_an_interrupt_ends_any_command_at_once_with_one_line(body, number):
    """The command sleeps, loops in Python or runs compiled code, and swallows any exception."""
    process = start(COMPILED + WAITING.format(body=body), run="-c")
    for _ in range(1 + (body == "compiled()")):
        assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    _, message = process.communicate(timeout=100)
    assert process.returncode == 130
    assert message == "interrupted; do it again\n"


def test_an_interrupt_during_the_exit_has_no_effect():
    """At exit, Python removes signal handlers; SIGINT must not kill the process after that."""
    code = "import atexit, os, signal; from fedjax_lab.commands import command\n"
    code += "atexit.register(os.kill, os.getpid(), signal.SIGINT); command.begin()"
    process = start(code, run="-c")
    _, message = process.communicate(timeout=100)
    assert (process.returncode, message) == (0, "")


def test_a_second_interrupt_prints_nothing_and_leaves_no_child_processes():
    code = """
import os, signal, subprocess, sys, time
from fedjax_lab.commands import command
from fedjax_lab.running import interrupts
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


def test_an_interrupt_before_anything_is_saved_leaves_no_folder(toy, tmp_path, monkeypatch, capsys):
    """Before config.json is written there is nothing to resume, and a new folder is removed."""

    def interrupted(*_, **options):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "run", interrupted)
    assert call(f"--config={toy}") == 130
    assert capsys.readouterr().err == "interrupted; nothing was saved\n"
    assert not list(tmp_path.glob("runs/*"))


@pytest.mark.slow
def test_a_run_without_a_picture_has_all_other_results(toy, tmp_path, monkeypatch, capsys):
    def broken(*_):
        raise RuntimeError("no fonts")

    monkeypatch.setattr(plots, "learning_curve", broken)
    assert call(f"--config={toy}", f"--workdir={tmp_path / 'run'}") == 0
    assert (tmp_path / "run/summary.json").exists()
    out, err = capsys.readouterr()
    assert err == "warning: the learning curve is not drawn, because of RuntimeError: no fonts\n"
    assert "curve:" not in out


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
    rows, others = (metric_rows.read_metrics(path / "metrics.jsonl") for path in (folder, other))
    assert [row["round"] for row in rows] == [row["round"] for row in others]
    losses = [row["train_loss"] for row in others]
    assert [row["train_loss"] for row in rows] == pytest.approx(losses, rel=1e-5)


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
from fedjax_lab.commands import command
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
DIFFERENT = [FAILURES[i] for i in (2, 4, 5)]  # a cause, bad input with a cause, and one of XLA


@pytest.mark.parametrize(
    "error, message", in_ci(DIFFERENT, FAILURES), ids=lambda value: str(value)[:40]
)
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


def test_too_little_memory_is_a_one_line_error(toy, tmp_path, monkeypatch, capsys):
    """The memory of a CPU is overcommitted: without a check, the process would be killed."""
    words = f"--config={toy}", f"--workdir={tmp_path / 'run'}"
    assert call(*words, "--config.model.width=2000000000") == 1
    message = capsys.readouterr().err
    assert "out of memory; the model and the clients' states need" in message
    assert message.count("\n") == 1
    monkeypatch.setattr(safe, "free_memory", lambda: 10_000)  # enough for the states only
    assert call(*words) == 1
    assert "out of memory; a round needs 0.0 GiB, and 0.0 GiB are free" in capsys.readouterr().err


def test_bad_data_and_program_bugs_are_not_reported_as_machine_failures(capsys):
    for error, said in (
        (caused(BadInput("x.npz claims 64 GB"), MemoryError()), "x.npz claims 64 GB"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "a" * 300), "File name too long"),
        (PermissionError(13, "Permission denied", "b"), "Permission denied"),
    ):
        assert command.call(failing(error), []) == 2
        message = capsys.readouterr().err
        assert said in message and message.startswith("error: ") and message.count("\n") == 1
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


def test_an_error_in_user_code_is_reported_with_its_file_and_line(
    toy, tmp_path, monkeypatch, capsys
):
    (tmp_path / "own.py").write_text(USER_CODE)
    for name, message in {
        "raises": "line 6: AttributeError: 'Task' object has no attribute 'nothing'",
        "leaves": "line 9: SystemExit: bye",
        "while_traced": "line 12: AttributeError: 'Work' object has no attribute 'trian'",
    }.items():
        method = f"--config.method.name={tmp_path / 'own.py'}:{name}"
        assert call(f"--config={toy}", method, f"--workdir={tmp_path / 'run'}") == 2
        lines = capsys.readouterr().err.splitlines()
        assert [line for line in lines if line != "compiling"] == [f"error: own.py, {message}"]


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


@pytest.fixture
def cache_settings():
    """Restores JAX's settings of its compilation cache."""
    keys = (
        "jax_compilation_cache_dir",
        "jax_compilation_cache_max_size",
        "jax_persistent_cache_min_compile_time_secs",
    )
    before = {key: getattr(jax.config, key) for key in keys}
    yield before
    for key, value in before.items():
        jax.config.update(key, value)


def test_compiled_programs_are_cached_and_damaged_entries_are_removed(
    tmp_path, monkeypatch, cache_settings
):
    monkeypatch.setenv("FEDJAX_LAB_CACHE", str(tmp_path))
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "given"))
    compilation_cache.enable()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "given")
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.enable()
    folder = Path(jax.config.jax_compilation_cache_dir)
    assert folder.parent == tmp_path / "programs"
    assert jax.config.jax_compilation_cache_max_size == compilation_cache.MAX_BYTES
    for name in ("whole-cache", "whole-atime", "cut-cache", "lost-atime"):
        (folder / name).write_bytes(b"12345678")
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.enable()
    names = {path.name for path in folder.iterdir()}
    assert names == {".lockfile", "whole-cache", "whole-atime"}


def test_runs_in_python_use_the_cache_unless_jax_has_another(tmp_path, monkeypatch, cache_settings):
    monkeypatch.setenv("FEDJAX_LAB_CACHE", str(tmp_path))
    for given, folder in ((None, tmp_path / "programs"), (str(tmp_path / "own"), tmp_path)):
        for start in (partial(fedjax_lab.run, {"method": 3}), partial(fedjax_lab.load, 3)):
            jax.config.update("jax_compilation_cache_dir", given)
            with pytest.raises(BadInput):
                start()
            assert Path(jax.config.jax_compilation_cache_dir).parent == folder


@pytest.mark.parametrize("name", ["file", "not utf-8 \udcff"])
def test_an_unwritable_cache_folder_is_ignored(name, tmp_path, monkeypatch, cache_settings):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDJAX_LAB_CACHE", str(tmp_path / name))
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.enable()
    assert jax.config.jax_compilation_cache_dir is None


# A closed terminal, which sends SIGHUP, is treated as SIGTERM, unless SIGHUP is ignored.


COMMAND = """
import os, signal, sys, time
from fedjax_lab.commands import command
from fedjax_lab.running import interrupts
signal.signal(signal.SIGHUP, signal.SIG_{before})
command.begin()
def main(_):
    {body}
    return 7
command.run(lambda arguments: command.call(main, arguments, "do it again"), [])
"""
HANG_UP = "os.kill(os.getpid(), signal.SIGHUP)"
TWICE = """
    with interrupts.delayed("saving") as stop:
        for number in (signal.{first}, signal.SIGHUP):
            os.kill(os.getpid(), number)
            assert stop.wait(9)
            time.sleep(0.2)
"""


def ended(body, before="DFL"):
    """Runs the body as a command; returns its exit code, its output and its errors."""
    done = run(COMMAND.format(body=body, before=before))
    return done.returncode, done.stdout, done.stderr


def test_a_hangup_ends_a_command_as_other_signals_do_unless_it_is_ignored():
    assert ended(f"{HANG_UP}; time.sleep(30)") == (130, "", "interrupted; do it again\n")
    assert ended(f"{HANG_UP}; time.sleep(0.2)", before="IGN") == (7, "", "")
    rearmed = f"with interrupts.delayed() as stop: {HANG_UP}; assert not stop.wait(0.2)"
    assert ended(rearmed, before="IGN") == (7, "", "")


@pytest.mark.parametrize("first", ["SIGHUP", "SIGTERM"])
def test_a_hangup_after_another_signal_does_not_end_the_saving(first):
    """A terminal that closes sends it from the shell and from the system."""
    assert ended(TWICE.format(first=first)) == (7, "saving\n", "")


@pytest.mark.parametrize("before", [signal.SIG_DFL, signal.SIG_IGN])
def test_a_program_that_is_not_a_command_handles_hangups_too(before, capfd):
    original = signal.signal(signal.SIGHUP, before)
    try:
        with interrupts.delayed("saving") as stop:
            os.kill(os.getpid(), signal.SIGHUP) if before is signal.SIG_DFL else None
            assert stop.is_set() == (before is signal.SIG_DFL)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGHUP) is before
    finally:
        signal.signal(signal.SIGHUP, original)
