"""One run by several processes: the numbers of one process, also interrupted and resumed."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest
import toys
from processes_beside import another_process

from fedjax_lab import experiment, lost_process, parallel, processes
from fedjax_lab.config import resolve
from fedjax_lab.config_files import load_config
from fedjax_lab.errors import BadInput
from fedjax_lab.running import metrics, runner

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """A config file that trains in a moment: six clients, two for some of the four devices."""
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
    except OSError as error:
        pytest.skip(f"no loopback interface: {error}")
    folder = tmp_path_factory.mktemp("toy")
    toys.write_examples(folder / "data.npz")
    run = {"rounds": 3, "eval_every": 1}
    return toys.write_config(folder, run=run, engine={"strategy": "sequential"})


@contextlib.contextmanager
def launched(*arguments, devices=2):
    """launch/processes.py: two processes with so many devices each."""
    quick = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    script = [sys.executable, str(ROOT / "launch/processes.py")]
    process = subprocess.Popen(
        [*script, "--processes=2", f"--devices={devices}", "--", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **quick},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        while process.poll() is None:  # twice: at once
            process.terminate()
            time.sleep(0.1)


@contextlib.contextmanager
def two(*arguments, folders=(None, None)):
    """Two processes with two devices each, which nobody watches, in their current folders."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    quick = {"JAX_NUM_CPU_DEVICES": "2", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    command = [sys.executable, "-m", "fedjax_lab.main", *arguments]
    both = [
        subprocess.Popen(
            [*command, f"--distributed={i}/2@{address}"],
            env={**os.environ, "PYTHONPATH": str(ROOT), **quick},
            cwd=folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for i, folder in enumerate(folders)
    ]
    try:
        yield both
    finally:
        for process in both:
            process.kill()
            process.communicate()


def finish(process, code):
    """What it printed."""
    out, error = process.communicate(timeout=300)
    assert process.returncode == code, error
    return out


def by_one(config, seeds, overrides=()):
    """The same run in this process, on four devices."""
    config = resolve(load_config(config), overrides)
    four = parallel.on_mesh(parallel.make_mesh(4), parallel.sequential())
    job = toys.changed(experiment.build(config, seeds), strategy=four)
    return runner.run(job, quiet=True).metrics


def close(rows, others):
    """Rows of metrics, but for the clock, up to the order of sums."""
    assert [(r["round"], r["seed"]) for r in rows] == [(r["round"], r["seed"]) for r in others]
    for row, other in zip(rows, others, strict=True):
        row, other = ({k: v for k, v in r.items() if k != "seconds"} for r in (row, other))
        assert jax.tree.structure(row) == jax.tree.structure(other)
        for a, b in zip(jax.tree.leaves(row), jax.tree.leaves(other), strict=True):
            assert a == b if isinstance(a, str) else a == pytest.approx(b, rel=1e-4)


@pytest.mark.slow
def test_two_processes_give_the_numbers_of_one(toy, tmp_path):
    with launched(f"--config={toy}", f"--workdir={tmp_path / 'run'}", "--seeds=0,1") as process:
        out = finish(process, 0)
    assert out.count("round 3/3") == 1 and "on 4 x cpu" in out  # one of the two speaks
    close(metrics.read_metrics(tmp_path / "run/metrics.jsonl"), by_one(toy, [0, 1]))


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_processes_lose_the_uploads_that_one_loses(toy, tmp_path, devices):
    lossy = [("run.dropout", "0.4"), ("local.epochs", "3"), ("run.straggler", "0.5")]
    flags = [f"--config.{key}={value}" for key, value in lossy]
    workdir = f"--workdir={tmp_path / 'run'}"
    with launched(f"--config={toy}", workdir, *flags, devices=devices) as process:
        finish(process, 0)
    rows = metrics.read_metrics(tmp_path / "run/metrics.jsonl")
    close(rows, by_one(toy, [0], lossy))
    assert 0 < rows[-1]["bytes_up"] < rows[-1]["bytes_down"]


@pytest.mark.slow
def test_processes_with_one_device_each(toy, tmp_path):
    """Checkpoints right after evaluations, when the sums are new: JAX cannot read these there."""
    arguments = f"--config={toy}", f"--workdir={tmp_path / 'run'}"
    with launched(*arguments, devices=1) as process:
        assert "on 2 x cpu" in finish(process, 0)
    close(metrics.read_metrics(tmp_path / "run/metrics.jsonl"), by_one(toy, [0]))


@pytest.mark.slow
def test_interrupted_in_the_second_stage_and_resumed(toy, tmp_path):
    """The clock, the signal and what was found between the stages are agreed on."""
    path, toy = tmp_path / "run", f"{toy}:fedconcat"
    stages = {"num_clusters": 2, "encoder_rounds": 1, "classifier_rounds": 25}
    overrides = [(f"method.{key}", str(value)) for key, value in stages.items()]
    arguments = [f"--config={toy}", f"--workdir={path}"]
    arguments += [f"--config.{key}={value}" for key, value in overrides]
    with launched(*arguments) as process:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline and process.poll() is None:
            if any(row["round"] > 1 for row in metrics.read_metrics(path / "metrics.jsonl")):
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        finish(process, 130)
    saved = max(int(p.name) for p in (path / "checkpoints").iterdir())
    assert 1 < saved < 26
    with launched(*arguments, "--resume") as process:
        finish(process, 0)
    close(metrics.read_metrics(path / "metrics.jsonl"), by_one(toy, [0], overrides))


@pytest.mark.slow
def test_resumed_by_another_number_of_processes(toy, tmp_path):
    """SCAFFOLD keeps private state, of six clients on four devices, on one, or on six."""
    rounds = [("run.rounds", "30")]
    arguments = [f"--config={toy}:scaffold", f"--workdir={tmp_path / 'run'}"]
    with two(*arguments, "--config.run.rounds=30") as both:
        wait_for_checkpoint(tmp_path / "run", both)
        for process in both:
            process.send_signal(signal.SIGINT)
        for process in both:
            process.communicate(timeout=100)
            assert process.returncode == 130
    job = experiment.build(resolve(load_config(f"{toy}:scaffold"), rounds), [0])
    whole = runner.run(job, quiet=True).metrics
    for devices, by_client in ((1, False), (4, True), (6, False)):
        mesh = parallel.make_mesh(devices)
        strategy = parallel.on_mesh(mesh, parallel.sequential(), by_client)
        of_devices = toys.changed(job, strategy=strategy)
        folder = shutil.copytree(tmp_path / "run", tmp_path / str(devices))
        close(runner.run(of_devices, folder, resume=True, quiet=True).metrics, whole)


@pytest.mark.slow
def test_what_is_on_the_hosts_is_resumed_by_one_process(toy, tmp_path):
    """Two processes keep the state of three clients each, and read the examples of those alone."""
    folder, config = tmp_path / "run", f"{toy}:scaffold"
    beyond = [("run.rounds", "30"), ("engine.state", "host"), ("engine.data", "stream")]
    flags = [f"--config.{key}={value}" for key, value in beyond]
    with two(f"--config={config}", f"--workdir={folder}", *flags) as both:
        wait_for_checkpoint(folder, both)
        for process in both:
            process.send_signal(signal.SIGINT)
        for process in both:
            process.communicate(timeout=100)
            assert process.returncode == 130
    newest = max((folder / "kept").iterdir(), key=lambda path: int(path.name))
    assert sorted(path.name for path in newest.iterdir()) == ["0-0", "0-3"]
    job = experiment.build(resolve(load_config(config), beyond), [0])
    resumed = runner.run(job, folder, resume=True, quiet=True)
    whole = by_one(config, [0], beyond[:1])
    close(resumed.metrics, whole)


def wait_for_checkpoint(folder, running):
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and all(process.poll() is None for process in running):
        if any(path.name.isdigit() for path in folder.glob("checkpoints/*")):
            return
        time.sleep(0.01)


@pytest.mark.slow
def test_the_end_of_a_process_ends_the_others_with_one_line(toy, tmp_path):
    """The first one's. Another's takes 20 s to be noticed; `launch/kill_stress.py` tries it."""
    folder = tmp_path / "run"
    with two(f"--config={toy}", f"--workdir={folder}", "--config.run.rounds=1000000") as both:
        wait_for_checkpoint(folder, both)
        both[0].kill()
        _, said = both[1].communicate(timeout=100)
        assert both[1].returncode == 1
    assert said.count("\n") == 1
    assert "error: another process of the run has ended: number 0/2; the state" in said
    assert f"is saved; continue with the same command and --workdir={folder} --resume" in said


def test_the_runtime_tells_which_processes_have_ended():
    """As the coordination service of jaxlib 0.10.2 prints it."""
    one = "tasks are unhealthy (stopped sending heartbeats):\n{}\nThe tasks have crashed. Check 3"
    assert lost_process.what_ended(one.format("1"), 4).endswith("has ended: number 1/4")
    assert lost_process.what_ended(one.format("3, 1"), 4).endswith("number 1/4, 3/4")
    lost = "UNAVAILABLE: Failed to send RPC to coordination service. Either the leader task was"
    assert lost_process.what_ended(lost, 4).endswith("number 0/4")


@pytest.mark.slow
def test_processes_that_do_not_share_the_folder_are_refused(toy, tmp_path):
    """As on two hosts without a common file system."""
    folders = tmp_path / "a", tmp_path / "b"
    for folder in folders:
        (folder / "run").mkdir(parents=True)
    with two(f"--config={toy}", "--workdir=run", folders=folders) as both:
        for process in both:
            _, said = process.communicate(timeout=100)
            assert process.returncode == 2
            assert said.count("\n") == 1
            assert "error: run is not the same folder for all processes of the run" in said
    assert not [path for folder in folders for path in (folder / "run").glob("[!.]*")]


@pytest.mark.slow
def test_all_processes_learn_that_the_folder_is_in_use(toy, tmp_path):
    with another_process(tmp_path / ".lock"):
        with launched(f"--config={toy}", f"--workdir={tmp_path}") as process:
            finish(process, 2)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_places_are_read():
    assert processes.parse("auto") == {}
    told = processes.parse("1/2@[::1]:7000")
    assert (told["process_id"], told["num_processes"]) == (1, 2)
    assert told["coordinator_address"] == "[::1]:7000"
    for wrong in ("2/2@host:7000", "0/2@host", "0/2", ""):
        with pytest.raises(BadInput, match="neither auto nor I/N@HOST:PORT"):
            processes.parse(wrong)


def test_a_cohort_smaller_than_the_devices_of_several_processes_takes_them_all():
    """No process stands idle. Of one process only as many are taken as there are clients."""

    class Device:
        def __init__(self, process_index):
            self.process_index = process_index

    one, two = ([Device(i // count) for i in range(4)] for count in (4, 2))
    assert parallel.choose_devices(2, devices=one) == one[:2]
    assert parallel.choose_devices(2, devices=two) == two
