"""The scripts that start runs and sweeps on clusters, with stand-ins for gcloud and srun."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

LAUNCH = Path(__file__).parents[2] / "launch"
GCLOUD = """#!/bin/bash
printf '%s\\n' "$*" >> "$LOG"
case $4 in
    ssh) if [[ -e $FAILURES/wait ]]; then sleep 60; fi
         if [[ $* == *fedjax-lab* && -s $FAILURES/$5 ]]; then
             read -r code < "$FAILURES/$5" && sed -i 1d "$FAILURES/$5" && exit "$code"
         fi ;;
    describe) echo "${STATE:-READY}" ;;
    create) if [[ -e $FAILURES/full ]]; then rm "$FAILURES/full"; exit 1; fi ;;
esac
"""


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """launched(script, *arguments, **environment) -> (exit code, calls of gcloud or srun)."""
    (tmp_path / "gcloud").write_text(GCLOUD)
    (tmp_path / "srun").write_text('#!/bin/bash\nprintf "%s\\n" "$*" >> "$LOG"\n')
    for name in ("gcloud", "srun"):
        (tmp_path / name).chmod(0o755)
    shared = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "LOG": str(tmp_path / "log")}
    shared |= {"FAILURES": str(tmp_path), "PAUSE": "0"}
    # A script ignores Ctrl-C if the tests do, as they do if a shell starts them in the background.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def launch(script, *arguments, interrupted_after=0, **environment):
        words, log = ["bash", str(LAUNCH / script), *arguments], tmp_path / "log"
        log.touch()
        process = subprocess.Popen(words, env={**os.environ, **shared, **environment})
        while interrupted_after and len(log.read_text().splitlines()) < interrupted_after:
            time.sleep(0.01)
        if interrupted_after:
            process.send_signal(signal.SIGINT)
        return process.wait(300), log.read_text().splitlines()

    yield launch
    signal.signal(signal.SIGINT, before)


SSH = "compute tpus tpu-vm ssh {} --worker={} --command cd fedjax_lab && exec .venv/bin/fedjax-lab "
RUN = f"{SSH.format('pod', 'all')}run --distributed=auto --config=x --workdir=w"
AGAIN = {"CREATE": "--accelerator-type=v4-32 --spot", "SETUP": "set up", "STATE": "PREEMPTED"}
REPLACED = [
    "compute tpus tpu-vm describe pod --format=value(state) --zone=z",
    "compute tpus tpu-vm delete pod --quiet --zone=z",
    "compute tpus tpu-vm create pod --accelerator-type=v4-32 --spot --zone=z",
    "compute tpus tpu-vm ssh pod --worker=all --command set up --zone=z",
]


@pytest.mark.parametrize("path", sorted(LAUNCH.glob("*.sh")), ids=lambda path: path.name)
def test_a_script_is_valid_bash_and_listed_in_the_readme(path):
    assert subprocess.run(["bash", "-n", path]).returncode == 0
    assert f"**`{path.name}`**" in (LAUNCH / "README.md").read_text()
    assert "slurm" not in path.name or "\n#SBATCH --output=slurm-%" in path.read_text()


@pytest.mark.parametrize("command", [[], ["run"]])
def test_a_run_is_started_on_all_hosts_of_a_slice(command, launched):
    assert launched("tpu_pod.sh", "pod")[0] != 0  # a zone is missing
    code, calls = launched("tpu_pod.sh", "pod", "z", *command, "--config=x", "--workdir=a b")
    run = RUN.replace("workdir=w", "workdir=a\\ b")
    assert (code, calls) == (0, [f"{run}  --zone=z"])


def test_each_slice_runs_its_share_of_a_sweep(launched):
    code, calls = launched("tpu_pod.sh", "a,b,c", "z", "sweep", "--config=x", "--out=o")
    assert code == 0
    assert sorted(calls) == [
        f"{SSH.format(name, 0)}sweep --share={i}/3 --config=x --out=o  --zone=z"
        for i, name in enumerate("abc")
    ]


def test_a_preempted_slice_is_requested_until_created_and_the_run_resumes(launched, tmp_path):
    (tmp_path / "pod").write_text("255\n255\n")
    (tmp_path / "full").touch()  # the first request fails for lack of capacity
    code, calls = launched("tpu_pod.sh", "pod", "z", "--config=x", "--workdir=w", **AGAIN)
    resumed = f"{RUN} --resume_or_start  --zone=z"
    requested_twice = [*REPLACED[:3], REPLACED[2], REPLACED[3]]
    assert code == 0
    assert calls == [f"{RUN}  --zone=z", *requested_twice, resumed, *REPLACED, resumed]


@pytest.mark.parametrize("environment", [{**AGAIN, "STATE": "READY"}, {"STATE": "PREEMPTED"}])
def test_a_failure_ends_the_command_with_its_exit_code(environment, launched, tmp_path):
    """A preemption is a failure, too, unless CREATE tells how to replace the slice."""
    (tmp_path / "pod").write_text("3\n")
    code, calls = launched("tpu_pod.sh", "pod", "z", "--config=x", "--workdir=w", **environment)
    assert (code, calls) == (3, [f"{RUN}  --zone=z", REPLACED[0]])
    (tmp_path / "pod").write_text("1\n")
    assert launched("tpu_pod.sh", "pod,other", "z", "sweep", **environment)[0] == 1


def test_an_interrupt_stops_the_commands_on_every_slice(launched, tmp_path):
    (tmp_path / "wait").touch()
    code, _ = launched("tpu_pod.sh", "a,b", "z", "sweep", interrupted_after=2)
    assert code == 130
    search = ["pgrep", "-f", f"{tmp_path}/gcloud"]
    since = time.monotonic()
    while subprocess.run(search, capture_output=True).returncode == 0:
        assert time.monotonic() - since < 50  # they would take 60 s
        time.sleep(0.05)


def test_slurm_scripts_start_a_run_and_the_share_of_an_array_task(launched):
    tasks = {"SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_COUNT": "8"}
    _, calls = launched("slurm_run.sh", "--config=x", "--workdir=a b")
    _, calls = launched("slurm_sweep.sh", "--config=x", "--out=o", **tasks)
    run = "--kill-on-bad-exit=1 python -m fedjax_lab.main --distributed=auto"
    assert calls == [
        f"{run} --config=x --workdir=a b",
        "--ntasks=1 python -m fedjax_lab.sweep --share=2/8 --config=x --out=o",
    ]
