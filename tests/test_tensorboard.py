"""Writes TensorBoard event files of made-up runs and reads them back by the published format."""

import errno
import json
import os
import shutil
import struct
import sys
from contextlib import nullcontext

import numpy as np
import optional
import pytest
from PIL import Image

from fedjax_lab.commands import tensorboard
from fedjax_lab.running.loggers import Facts, to_tensorboard
from fedjax_lab.running.storage import metric_rows

event_pb2 = optional.module("tensorboardX.proto.event_pb2")
ROUNDS = (5, 10, 15)


def row(seed, after, mean, seeds=2):
    return {
        **{"round": after, "seed": seed, "stage": "train", "train_loss": 1.5 / after},
        "accuracy": {"mean": mean, "worst10": mean - 10, "per_client": [mean - 10, None, mean]},
        "domains": {"north": mean - 1, "sød v.2/a": mean + 1},
        **{"global": mean / 2, "id": mean + 0.25, "id_per_client": [mean, mean]},
        "loss": {"mean": mean / 90, "per_client": [mean / 90, None]},
        "domains_loss": {"north": mean / 80, "sød v.2/a": None},
        **{"global_loss": mean / 70, "bytes_up": 1000 * after, "bytes_down": 3000 * after},
        "seconds": 2.0 * after * seeds,
    }


def write(folder, rows, seeds=(0, 1), at=1e9):
    folder.mkdir(parents=True)
    parts = {"data": {"name": "toy"}, "partition": {"name": "iid"}, "method": {"name": "fedavg"}}
    config = {**parts, "run": {"rounds": 15}, "seeds": list(seeds)}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    os.utime(folder / "config.json", (at, at))
    metric_rows.append(folder / "metrics.jsonl", rows)
    return folder


def evaluations(rounds=ROUNDS, shift=0.0):
    return [row(seed, after, 50 + after + seed + shift) for after in rounds for seed in (0, 1)]


def draw(path, width, height, color="red", mode="RGB"):
    path.parent.mkdir(exist_ok=True)
    Image.new(mode, (width, height), color).save(path)


@pytest.fixture
def sweep(tmp_path):
    write(tmp_path / "sweep/fedavg,mu=0.1", evaluations())
    write(tmp_path / "sweep/deep/fédprox ü [x]*", evaluations(shift=1))
    return tmp_path / "sweep"


@pytest.fixture
def logdir(tmp_path):
    return tmp_path / "log"


def call(capsys, logdir, *arguments):
    code = tensorboard.main([*map(str, arguments), f"--logdir={logdir}"])
    out, err = capsys.readouterr()
    assert code == 0 and not err, err
    return out


def error_line(capsys, *arguments):
    assert tensorboard.main([*map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert not out and err.startswith("error: ") and err.count("\n") == 1
    return err


def records(data):
    """Yields the contents of records: length u64, checksum u32, content, checksum u32."""
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        yield data[12 : 12 + length]
        data = data[16 + length :]


def events(folder):
    """The events of the only event file in `folder`, except for the version event."""
    (file,) = folder.glob("events.out.tfevents.*")
    version, *others = map(event_pb2.Event.FromString, records(file.read_bytes()))
    assert version.file_version == "brain.Event:2"
    return others


def points(folder):
    """{tag: [(step, wall time, value)]}"""
    by_tag = {}
    for event in events(folder):
        for value in event.summary.value:
            at = (event.step, event.wall_time, getattr(value, value.WhichOneof("value")))
            by_tag.setdefault(value.tag, []).append(at)
    return by_tag


def everything(logdir):
    files = logdir.rglob("events*")
    return {file.parent.relative_to(logdir).as_posix(): points(file.parent) for file in files}


def curve(folder, tag="accuracy/mean"):
    return [(step, value) for step, _, value in points(folder).get(tag, [])]


def expected_curve(rows, seed=0):
    of_seed = [r for r in rows if r["seed"] == seed]
    return [(r["round"], np.float32(r["accuracy"]["mean"])) for r in of_seed]


def test_every_value_is_written_at_its_round(sweep, logdir, capsys):
    assert call(capsys, logdir, sweep).startswith(f"2 runs in {logdir}")
    names = {"fedavg,mu=0.1": 0, "deep/fédprox ü [x]*": 1}
    by_run = everything(logdir)
    assert by_run.keys() == {f"{n}{end}" for n in names for end in ("", "/seed-0", "/seed-1")}
    for name, shift in names.items():
        for seed in (0, 1):
            rows = [r for r in evaluations(shift=shift) if r["seed"] == seed]
            got = by_run[f"{name}/seed-{seed}"]
            expected = {
                "accuracy/mean": [r["accuracy"]["mean"] for r in rows],
                "accuracy/worst10": [r["accuracy"]["worst10"] for r in rows],
                "accuracy/global": [r["global"] for r in rows],
                "accuracy/id": [r["id"] for r in rows],
                "domains/north": [r["domains"]["north"] for r in rows],
                "domains/sød v.2/a": [r["domains"]["sød v.2/a"] for r in rows],
                "loss/mean": [r["loss"]["mean"] for r in rows],
                "loss/global": [r["global_loss"] for r in rows],
                "domains_loss/north": [r["domains_loss"]["north"] for r in rows],
                "train/loss": [r["train_loss"] for r in rows],
                "bytes/up": [r["bytes_up"] for r in rows],
                "bytes/down": [r["bytes_down"] for r in rows],
            }
            assert got.keys() == expected.keys() | {"accuracy/per_client", "loss/per_client"}
            for tag, values in expected.items():
                steps, times, written = zip(*got[tag], strict=True)
                assert steps == ROUNDS and written == tuple(map(np.float32, values))
                assert times == tuple(1e9 + 2.0 * after for after in ROUNDS)  # one seed's share
    histograms = by_run["fedavg,mu=0.1/seed-1"]["accuracy/per_client"]
    assert [step for step, *_ in histograms] == list(ROUNDS)
    for (_, _, bars), mean in zip(histograms, (56, 61, 66), strict=True):
        assert (bars.num, bars.min, bars.max, bars.sum) == (2, mean - 10, mean, 2 * mean - 10)
        filled = [i for i, count in enumerate(bars.bucket) if count]
        assert sum(bars.bucket) == 2 and bars.bucket_limit[filled[-1]] >= mean
        assert bars.bucket_limit[filled[0]] < mean == bars.bucket_limit[-1]
    of_new = {"new": 80.0, "new_tuned": 90.0, "new_loss": 0.5, "new_tuned_loss": 0.25}
    tags = ("accuracy/new", "accuracy/new_tuned", "loss/new", "loss/new_tuned")
    tagged = metric_rows.tagged({**of_new, "new_per_client": [80.0]})
    assert tagged == dict(zip(tags, of_new.values(), strict=True))


def test_images_and_the_config_of_a_run_are_written(sweep, logdir, capsys):
    run = sweep / "fedavg,mu=0.1"
    draw(run / "plots/learning_curve.png", 30, 20)
    draw(run / "plots/clé 2.png", 7, 9, (1, 2, 3, 40), "RGBA")
    draw(run / "partition.png", 5, 4, 7, "L")
    cut = run / "plots/cut.png"
    draw(cut, 200, 200)
    cut.write_bytes(cut.read_bytes()[:-30])
    assert tensorboard.main([str(sweep), f"--logdir={logdir}"]) == 0
    assert capsys.readouterr().err == f"skipped {cut}, which is not a complete image file\n"
    by_tag = points(logdir / "fedavg,mu=0.1")
    sizes = {"plots/learning_curve": (30, 20, 3), "plots/clé 2": (7, 9, 4), "partition": (5, 4, 1)}
    assert by_tag.keys() == {*sizes, "config/text_summary"}
    for tag, size in sizes.items():
        ((step, at, image),) = by_tag[tag]
        file = run / f"{tag}.png"
        assert step == 15 and at == pytest.approx(file.stat().st_mtime, abs=1e-3)
        assert (image.width, image.height, image.colorspace) == size
        assert image.encoded_image_string == file.read_bytes()
    ((step, at, text),) = by_tag["config/text_summary"]
    lines = text.string_val[0].decode().splitlines()
    assert (step, at) == (0, 1e9) and all(line.startswith("    ") for line in lines)
    assert json.loads("\n".join(lines)) == json.loads((run / "config.json").read_text())


def test_writing_again_gives_the_same_events(sweep, logdir, capsys):
    """Files of others are kept; those of a seed that was removed are deleted."""
    run, name = sweep / "fedavg,mu=0.1", "fedavg,mu=0.1"
    draw(run / "plots/curve.png", 3, 2)
    call(capsys, logdir, sweep)
    once = everything(logdir)
    other = logdir / name / "seed-0/notes.txt"
    other.write_text("not ours")
    call(capsys, logdir, sweep)
    assert everything(logdir) == once and other.exists()
    call(capsys, logdir, sweep, sweep / "deep")  # the second folder is in the first
    assert everything(logdir) == once
    shutil.rmtree(run)
    write(run, [row(0, 5, 60, seeds=1)], seeds=[0])
    call(capsys, logdir, sweep)
    assert {n for n in everything(logdir) if "mu" in n} == {name, f"{name}/seed-0"}
    theirs = logdir / name / "seed-0/events.out.tfevents.1.host"  # of another program
    theirs.write_bytes(b"")
    call(capsys, logdir, sweep)
    assert theirs.exists() and len([*theirs.parent.iterdir()]) == 3


def test_run_names_are_relative_to_the_given_folders(sweep, tmp_path, capsys, monkeypatch):
    """A run need not have rows, nor a row scores, as in a stage that is not scored."""

    def names(*folders):
        logdir = tmp_path / f"log{len([*tmp_path.iterdir()])}"
        call(capsys, logdir, *folders)
        return sorted(name for name in everything(logdir) if "seed" not in name)

    assert names(sweep / "fedavg,mu=0.1") == ["fedavg,mu=0.1"]
    kept = ("round", "seed", "stage", "train_loss", "bytes_up", "bytes_down", "seconds")
    bare = {key: value for key, value in row(0, 5, 60).items() if key in kept} | {"stage": "index"}
    write(tmp_path / "other/fedavg,mu=0.1", [bare, row(0, 10, 60)], seeds=[0])
    both = ["other/fedavg,mu=0.1", "sweep/fedavg,mu=0.1"]
    assert names(sweep / "fedavg,mu=0.1", tmp_path / "other") == both
    (log,) = tmp_path.glob("log*/other")
    of_seed = log / "fedavg,mu=0.1/seed-0"
    assert [s for s, _ in curve(of_seed, "train/loss")] == [5, 10] and curve(of_seed) == [(10, 60)]
    write(tmp_path / "none", [], seeds=[3])
    assert names(tmp_path / "none") == ["none"]
    monkeypatch.chdir(sweep / "fedavg,mu=0.1")
    assert names(".") == ["fedavg,mu=0.1"]


def follow(monkeypatch, capsys, sweep, logdir, *steps):
    """Runs --follow and calls one of `steps` before each look at the folders; Ctrl-C ends it."""
    waiting = iter(steps)

    class Stop:
        def wait(self, seconds):
            step = next(waiting, None)
            return step is None or step()

    monkeypatch.setattr(tensorboard.interrupts, "delayed", lambda said: nullcontext(Stop()))
    call(capsys, logdir, sweep, "--follow")


def test_follow_appends_new_rows_images_and_runs(tmp_path, logdir, capsys, monkeypatch):
    run = write(tmp_path / "runs/a", evaluations((5,)))
    names = []

    def note():
        names.append([*(logdir / "a/seed-0").iterdir()])
        assert curve(logdir / "a/seed-0") == expected_curve(evaluations((5,)))

    def half():  # the evaluation of one seed, and a truncated line
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(evaluations((10,))[0]) + '\n{"round": 10, "se')

    def complete():
        note()
        metric_rows.keep_until(run / "metrics.jsonl", 5)
        metric_rows.append(run / "metrics.jsonl", evaluations((10,)))

    def more():
        assert curve(logdir / "a/seed-1") == expected_curve(evaluations((5, 10)), 1)
        write(tmp_path / "runs/b", evaluations((5,), shift=2))
        draw(run / "plots/curve.png", 4, 3)

    def again():
        draw(run / "plots/curve.png", 300, 3)

    follow(monkeypatch, capsys, tmp_path / "runs", logdir, note, half, complete, more, again)
    assert names[0] == names[1] == [*(logdir / "a/seed-0").iterdir()]  # never rewritten
    assert curve(logdir / "b/seed-0") == expected_curve(evaluations((5,), shift=2))
    widths = [image.width for *_, image in points(logdir / "a")["plots/curve"]]
    assert widths == [4, 300] and len(points(logdir / "a")["config/text_summary"]) == 1
    followed = everything(logdir)
    followed["a"]["plots/curve"] = followed["a"]["plots/curve"][1:]
    call(capsys, logdir, tmp_path / "runs")
    assert everything(logdir) == followed


def test_follow_rewrites_a_run_whose_metrics_were_truncated(sweep, logdir, capsys, monkeypatch):
    path = sweep / "fedavg,mu=0.1/metrics.jsonl"
    ours, other = logdir / "fedavg,mu=0.1/seed-1", logdir / "deep/fédprox ü [x]*/seed-1"
    files = []

    def cut():
        files.append([*other.iterdir()])
        metric_rows.keep_until(path, 5)

    def resumed():
        assert curve(ours) == expected_curve(evaluations((5,)), 1)
        metric_rows.append(path, evaluations((10,), shift=3))

    def cut_and_resumed():  # between two looks at the folder
        metric_rows.keep_until(path, 5)
        metric_rows.append(path, evaluations((10, 15), shift=4))

    follow(monkeypatch, capsys, sweep, logdir, cut, resumed, cut_and_resumed)
    assert curve(ours) == expected_curve(evaluations((5,)) + evaluations((10, 15), shift=4), 1)
    assert files == [[*other.iterdir()]]


def test_closed_files_of_a_run_that_goes_on_are_written_anew(tmp_path, logdir):
    run = write(tmp_path / "a", evaluations((5,)))
    written = tensorboard.update([run], logdir, {})
    metric_rows.append(run / "metrics.jsonl", evaluations((10,)))
    tensorboard.update([run], logdir, written)
    assert curve(logdir / "a/seed-0") == expected_curve(evaluations((5, 10)))


def test_bad_input_is_a_one_line_error(sweep, tmp_path, logdir, capsys):
    (tmp_path / "file").write_text("")
    run = sweep / "fedavg,mu=0.1"
    (tmp_path / "link").symlink_to(run)
    for arguments, message in (
        ([], "no folder is given"),
        ([tmp_path / "nowhere"], "does not exist"),
        ([sweep, "--lodgir=x"], "--lodgir"),
        ([sweep, f"--logdir={tmp_path / 'file'}"], "Not a directory"),
        ([sweep, f"--logdir={run}"], "in the folder of a run"),
        ([sweep, f"--logdir={sweep}"], "in the folder of a run"),
        ([sweep, f"--logdir={tmp_path / 'link'}"], "of a run"),
    ):
        assert message in error_line(capsys, *arguments)
    (run / "metrics.jsonl").write_text('{"round": 1, "seed": 0}\n')
    assert "lacks bytes_down" in error_line(capsys, run, f"--logdir={logdir}")


def test_write_errors_and_interrupts_are_reported_in_one_line(sweep, logdir, capsys, monkeypatch):
    def fail(*_):
        raise errors.pop()

    monkeypatch.setattr(tensorboard.EventFiles, "add_rows", fail)
    errors = [PermissionError(errno.EACCES, os.strerror(errno.EACCES))]
    line = error_line(capsys, sweep / "fedavg,mu=0.1", f"--logdir={logdir}")
    assert f"cannot write {logdir / 'fedavg,mu=0.1'} from " in line and "Permission denied" in line
    for error, code, said in (
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), 1, "No space left"),  # no bad input
        (KeyboardInterrupt(), 130, "interrupted"),
    ):
        errors.append(error)
        assert tensorboard.main([str(sweep), f"--logdir={logdir}"]) == code
        line = capsys.readouterr().err
        assert said in line and line.count("\n") == 1


def test_a_full_disk_leaves_the_earlier_files(sweep, logdir, capsys, monkeypatch):
    def no_room(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    call(capsys, logdir, sweep)
    once, paths = everything(logdir), sorted(logdir.rglob("*"))
    metric_rows.append(sweep / "fedavg,mu=0.1/metrics.jsonl", evaluations((20,)))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_room)
        assert tensorboard.main([str(sweep), f"--logdir={logdir}"]) == 1
    line = capsys.readouterr().err
    assert "No space left" in line and line.count("\n") == 1
    assert everything(logdir) == once and sorted(logdir.rglob("*")) == paths
    killed = logdir / "fedavg,mu=0.1/seed-0/events.0123abcd.tmp"
    killed.write_bytes(b"cut off")
    call(capsys, logdir, sweep)
    assert curve(killed.parent) == expected_curve(evaluations((*ROUNDS, 20)))
    assert not killed.exists()


def test_a_resumed_run_replaces_its_event_files_when_all_earlier_rows_are_in_the_new_ones(tmp_path):
    folder, facts = write(tmp_path / "a", []), {"name": "a", "group": None}
    facts = Facts(**facts, folder=folder, config={"seeds": [0, 1]}, round=10)
    of_seed = folder / "tensorboard/seed-0"
    for earlier in ([], expected_curve(evaluations((5, 10)))):
        logger = to_tensorboard.begin(facts)
        logger.log(evaluations((5,)))
        assert (curve(of_seed) if [*of_seed.glob("*tfevents*")] else []) == earlier
        logger.log(evaluations((10,)))
        assert curve(of_seed) == expected_curve(evaluations((5, 10)))
        logger.end(None)


def test_tensorboardx_is_optional(sweep, logdir, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    error = error_line(capsys, sweep, f"--logdir={logdir}")
    assert "tensorboardX" in error and "pip install 'fedjax_lab[tensorboard]'" in error
    assert not logdir.exists()
