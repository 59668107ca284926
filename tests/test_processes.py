"""Checks that a run of several processes has the numbers of one, also if it is resumed."""

import contextlib
import shutil
import signal
import socket
import time
from types import SimpleNamespace

import jax
import pytest
import toys
from children import ROOT, finish, start
from commands import without_clock
from inputs import complaint
from processes_beside import another_process

from fedjax_lab.commands import lost_process
from fedjax_lab.engine import parallel, processes
from fedjax_lab.experiment import experiment
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.running import runner
from fedjax_lab.running.storage import metric_rows


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """A config file of a short run with six clients, of which some of four devices have two."""
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
    except OSError as error:
        pytest.skip(f"no loopback interface: {error}")
    run, engine = {"rounds": 3, "eval_every": 1}, {"strategy": "sequential"}
    return toys.write_config(tmp_path_factory.mktemp("toy"), run=run, engine=engine)


@contextlib.contextmanager
def launched(*arguments):
    """Starts launch/processes.py with two processes that have two devices each."""
    flags = "launch/processes.py", "--processes=2", "--devices=2", "--"
    process = start(*flags, *arguments, cwd=ROOT)
    try:
        yield process
    finally:
        while process.poll() is None:  # a second signal ends it at once
            process.terminate()
            time.sleep(0.1)


@contextlib.contextmanager
def two_processes(*arguments, folders=(None, None)):
    """Starts two processes with two devices each in these folders, without launch/processes.py."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = "-m", "fedjax_lab.main", *arguments
    both = [
        start(*command, f"--distributed={i}/2@{address}", devices=2, cwd=folder)
        for i, folder in enumerate(folders)
    ]
    try:
        yield both
    finally:
        for process in both:
            process.kill()
            process.communicate()


def interrupt(folder, *arguments):
    """Interrupts two processes after the first checkpoint; they save their state."""
    with two_processes(*arguments, f"--workdir={folder}") as both:
        wait_for_checkpoint(folder, both)
        for process in both:
            process.send_signal(signal.SIGINT)
        for process in both:
            finish(process, 130)


def in_one_process(config, seeds, overrides=()):
    """The metrics of the same run in this process, on four devices."""
    config = resolve(load_config(config), overrides)
    four = parallel.on_mesh(parallel.make_mesh(4), parallel.sequential())
    job = toys.changed(experiment.build(config, seeds), strategy=four)
    return runner.run(job, quiet=True).metrics


def assert_close(rows, others):
    """Asserts that rows of metrics are equal, except for the clock and the order of sums."""
    assert [(r["round"], r["seed"]) for r in rows] == [(r["round"], r["seed"]) for r in others]
    for row, other in zip(without_clock(rows), without_clock(others), strict=True):
        assert jax.tree.structure(row) == jax.tree.structure(other)
        for a, b in zip(jax.tree.leaves(row), jax.tree.leaves(other), strict=True):
            assert a == b if isinstance(a, str) else a == pytest.approx(b, rel=1e-4)


@pytest.mark.slow
def test_two_processes_give_the_numbers_of_one(toy, tmp_path):
    """They lose the same uploads. Checkpoints come right after evaluations, when the sums are new
    and JAX cannot read them."""
    lossy = [("run.dropout", "0.4"), ("local.epochs", "3"), ("run.straggler", "0.5")]
    flags = [f"--config.{key}={value}" for key, value in lossy]
    flags += [f"--workdir={tmp_path / 'run'}", "--seeds=0,1"]
    with launched(f"--config={toy}", *flags) as process:
        out, _ = finish(process)
    assert out.count("round 3/3") == 1  # only one of the two prints
    assert "on 4 x cpu" in out
    rows = metric_rows.read_metrics(tmp_path / "run/metrics.jsonl")
    assert_close(rows, in_one_process(toy, [0, 1], lossy))
    assert 0 < rows[-1]["bytes_up"] < rows[-1]["bytes_down"]


@pytest.mark.exhaustive
def test_a_run_interrupted_in_its_second_stage_resumes(toy, tmp_path):
    """The processes agree on the clock, the signal and the facts found between the stages."""
    path, toy = tmp_path / "run", f"{toy}:fedconcat"
    stages = {"num_clusters": 2, "encoder_rounds": 1, "classifier_rounds": 25}
    overrides = [(f"method.{key}", str(value)) for key, value in stages.items()]
    arguments = [f"--config={toy}", f"--workdir={path}"]
    arguments += [f"--config.{key}={value}" for key, value in overrides]
    with launched(*arguments) as process:
        while process.poll() is None:
            if any(row["round"] > 1 for row in metric_rows.read_metrics(path / "metrics.jsonl")):
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        finish(process, 130)
    saved = max(int(p.name) for p in (path / "checkpoints").iterdir())
    assert 1 < saved < 26
    with launched(*arguments, "--resume") as process:
        finish(process)
    assert_close(
        metric_rows.read_metrics(path / "metrics.jsonl"), in_one_process(toy, [0], overrides)
    )


@pytest.mark.exhaustive
def test_a_run_resumes_with_another_number_of_processes(toy, tmp_path):
    """The private state of six clients of SCAFFOLD moves from four devices to one, four or six."""
    config, rounds = f"{toy}:scaffold", [("run.rounds", "30")]
    interrupt(tmp_path / "run", f"--config={config}", "--config.run.rounds=30")
    job = experiment.build(resolve(load_config(config), rounds), [0])
    whole = runner.run(job, quiet=True).metrics
    for devices, by_client in ((1, False), (4, True), (6, False)):
        mesh = parallel.make_mesh(devices)
        strategy = parallel.on_mesh(mesh, parallel.sequential(), by_client)
        of_devices = toys.changed(job, strategy=strategy)
        folder = shutil.copytree(tmp_path / "run", tmp_path / str(devices))
        assert_close(runner.run(of_devices, folder, resume=True, quiet=True).metrics, whole)


@pytest.mark.exhaustive
def test_state_on_the_hosts_of_two_processes_is_resumed_by_one(toy, tmp_path):
    folder, config = tmp_path / "run", f"{toy}:scaffold"
    overrides = [("run.rounds", "30"), ("engine.state", "host"), ("engine.data", "stream")]
    flags = [f"--config.{key}={value}" for key, value in overrides]
    interrupt(folder, f"--config={config}", *flags)
    newest = max((folder / "kept").iterdir(), key=lambda path: int(path.name))
    assert sorted(path.name for path in newest.iterdir()) == ["0-0", "0-3"]
    job = experiment.build(resolve(load_config(config), overrides), [0])
    resumed = runner.run(job, folder, resume=True, quiet=True)
    whole = in_one_process(config, [0], overrides[:1])
    assert_close(resumed.metrics, whole)


def wait_for_checkpoint(folder, running):
    while all(process.poll() is None for process in running):
        if any(path.name.isdigit() for path in folder.glob("checkpoints/*")):
            return
        time.sleep(0.01)


# The runtime notices the end within 20 s, later on an overloaded machine; kills of other processes
# are in launch/kill_stress.py.
@pytest.mark.exhaustive
def test_the_end_of_a_process_ends_the_others_with_a_one_line_error(toy, tmp_path):
    folder = tmp_path / "run"
    with two_processes(
        f"--config={toy}", f"--workdir={folder}", "--config.run.rounds=1000000"
    ) as both:
        wait_for_checkpoint(folder, both)
        both[0].kill()
        _, error = finish(both[1], 1)
    assert error.count("\n") == 1
    assert "error: another process of the run has ended: number 0/2; the state" in error
    assert f"is saved; continue with the same command and --workdir={folder} --resume" in error


def test_ended_processes_are_read_from_the_message_of_the_runtime():
    """The messages are those of the coordination service of jaxlib 0.10.2."""
    one = "tasks are unhealthy (stopped sending heartbeats):\n{}\nThe tasks have crashed. Check 3"
    assert lost_process.what_ended(one.format("1"), 4).endswith("has ended: number 1/4")
    assert lost_process.what_ended(one.format("3, 1"), 4).endswith("number 1/4, 3/4")
    lost = "UNAVAILABLE: Failed to send RPC to coordination service. Either the leader task was"
    assert lost_process.what_ended(lost, 4).endswith("number 0/4")


@pytest.mark.exhaustive
def test_processes_that_do_not_share_the_folder_are_rejected(toy, tmp_path):
    """This happens on two hosts without a common file system. A folder in use is rejected, too."""
    folders = tmp_path / "a", tmp_path / "b"
    for folder in folders:
        (folder / "run").mkdir(parents=True)
    with two_processes(f"--config={toy}", "--workdir=run", folders=folders) as both:
        for process in both:
            _, error = finish(process, 2)
            assert error.count("\n") == 1
            assert "error: run is not the same folder for all processes of the run" in error
    assert not [path for folder in folders for path in (folder / "run").glob("[!.]*")]
    with another_process(folders[0] / "run/.lock"):
        with launched(f"--config={toy}", f"--workdir={folders[0] / 'run'}") as process:
            finish(process, 2)
    assert [path.name for path in (folders[0] / "run").iterdir()] == [".lock"]


def test_the_distributed_flag_is_parsed():
    assert processes.parse("auto") == {}
    parsed = processes.parse("1/2@[::1]:7000")
    assert (parsed["process_id"], parsed["num_processes"]) == (1, 2)
    assert parsed["coordinator_address"] == "[::1]:7000"
    for wrong in ("2/2@host:7000", "0/2@host", "0/2", ""):
        assert "neither auto nor I/N@HOST:PORT" in complaint(processes.parse, wrong)
    # No process is idle; one process uses only as many devices as there are clients.
    one, two = ([SimpleNamespace(process_index=i // n) for i in range(4)] for n in (4, 2))
    assert parallel.choose_devices(2, devices=one) == one[:2]
    assert parallel.choose_devices(2, devices=two) == two
