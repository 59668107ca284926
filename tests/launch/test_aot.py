"""Tests the compilation of runs for absent accelerators, and its error messages."""

import json
import subprocess

import aot
import aot_program
import jax
import pytest
import targets
import toys

from fedjax_lab.engine.engine import Engine


@pytest.fixture
def every_compiler(monkeypatch):
    monkeypatch.setattr(targets, "installed", lambda target: True)


@pytest.fixture
def config(tmp_path):
    return toys.write_config(tmp_path)


BAD = [
    (["--target=v5:2x2"], "--target: unknown target 'v5:2x2'; did you mean 'v5e:2x2'?"),
    (["--target=v5e:2x"], "the topology must be like v5e:2x2"),
    (["--devices=5"], "--devices=5: v5e:2x2 has 4 devices; 0 uses all"),
    (["--workload=W11"], "--workload: unknown name 'W11'; did you mean 'W1'?"),
    (["--program=round"], "--program: unknown name 'round'; did you mean 'rounds'?"),
    (["--seeds=0,1"], "--seeds requires --config"),
    (["--config.engine.chunks=4"], "did you mean 'engine.chunk'?"),
    (["--config=configs/quickstart.py"], "give either --config=FILE.py[:METHOD] or"),
]


def test_invalid_arguments_are_a_one_line_error(capsys, monkeypatch, every_compiler, config):
    for flags, message in BAD:
        workload = [] if flags[0].startswith("--workload") else ["--workload=W2"]
        assert aot.main([*workload, *flags]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
    assert aot.main([f"--config={config}", "--config.local.lr=fast"]) == 2
    assert "config.local.lr" in capsys.readouterr().err
    monkeypatch.setattr(targets, "installed", lambda target: False)
    for target, extra in (("v5e:2x2", "aot-tpu"), ("h100", "aot-cuda")):
        assert aot.main([f"--target={target}", "--workload=W2"]) == 2
        assert f"pip install 'fedjax_lab[{extra}]'" in capsys.readouterr().err


def test_a_compiler_abort_is_reported_and_the_next_program_is_tried(
    capsys, monkeypatch, every_compiler
):
    """An error that is found while a run is built is one of usage."""
    fatal = "F0000 00:00:1 tiling.cc:12] Check failed: a == b"
    done = subprocess.CompletedProcess([], -6, "", f"I0000 noise\n{fatal}\n*** Begin\n")
    monkeypatch.setattr(aot.subprocess, "run", lambda *args, **options: done)
    assert aot.main(["--workload=W2"]) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["program"] for line in lines] == ["rounds", "evaluation"]
    assert all(line == {**line, "compiled": False, "workload": "W2"} for line in lines)
    assert lines[0]["error"] == f"signal 6: {fatal}"
    done.returncode, done.stderr = 2, "warning\nerror: no PACS here\n"
    assert aot.main(["--workload=W2"]) == 2
    assert capsys.readouterr().err == "error: no PACS here\n"


def engine_of(config, devices, *overrides, seeds=None):
    request = {"config": config, "overrides": overrides, "seeds": seeds, "target": "v5e:2x2"}
    simulation, task, _ = aot_program.make(request, jax.devices()[:devices])
    engine = Engine(simulation, abstract=True)
    engine.lower()
    return engine, task


EQUAL = ("partition.name", "iid"), ("partition.num_clients", "5"), ("engine.strategy", "chunked")


@pytest.mark.parametrize(("devices", "chunk"), [(1, "3"), (4, "2")])
def test_copies_that_fill_a_chunk_or_device_have_the_batches_of_a_client(config, devices, chunk):
    engine, _ = engine_of(config, devices, *EQUAL, ("engine.chunk", chunk))
    (batches,) = set(aot_program.cohort_batches(engine))
    assert aot_program.trips(engine, "rounds") == (1, batches)


@pytest.mark.slow
def test_plain_flops_count_every_seed_of_a_program(config):
    def flops(seeds, way):
        overrides = *EQUAL, ("engine.seeds", way)
        return aot_program.plain_flops(*engine_of(config, 1, *overrides, seeds=seeds))

    of_one = flops([0], "vectorized")
    assert flops([0, 1], "vectorized") == 2 * of_one
    assert flops([0, 1], "sequential") == of_one  # each seed has a separate program


def test_evaluation_trips_average_the_batches_of_its_test_sets(config):
    engine, _ = engine_of(config, 1, *EQUAL)
    engine.plan = engine.plan._replace(eval_batch=4)
    federation = engine.simulation.seeds[0].federation
    assert federation.validation is None and federation.unseen is None
    assert federation.test.shape == (5, 13) and federation.global_test.shape == (60,)
    # Four batches for each of five clients; 15 blocks of one batch of the global test set.
    assert aot_program.trips(engine, "evaluation") == ((5 * 4 + 15) / (5 + 15),)
