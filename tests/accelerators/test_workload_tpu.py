"""Rounds of benchmark workloads compiled for TPU chips: memory, operations and communication."""

import aot_program
import benchmark
import hlo
import pytest
import targets
import workloads

from fedjax_lab import tree
from fedjax_lab.engine.engine import Engine

pytestmark = [
    pytest.mark.compilers,
    pytest.mark.usefixtures("as_users_compile"),
    pytest.mark.skipif(not targets.installed("v5e:2x4"), reason="libtpu is not installed"),
]


def compiled_round(work, chips=8, **settings):
    """The engine of a workload, its compiled round, and the cost of the round."""
    devices = targets.topology("v5e:2x4", chips)
    engine = Engine(benchmark.build(work, devices=devices, **settings), abstract=True)
    (programs,) = engine.lower().values()
    compiled = programs.play.compile()
    turns = aot_program.trips(engine, "rounds")
    return engine, compiled, hlo.cost(compiled.as_text(), lambda depth: turns[min(depth, 1)])


CARRIERS = hlo.FREE | {"while", "conditional", "call"}  # they pass on existing arrays


@pytest.mark.exhaustive
@pytest.mark.parametrize("chips", [1, 8])
def test_a_round_costs_little_more_than_its_training(chips):
    work = workloads.load("A1")
    engine, compiled, cost = compiled_round(work, chips, memory=targets.chip("v5e:2x4").memory)
    assert compiled.memory_analysis().temp_size_in_bytes <= 10**9
    plain = aot_program.plain_flops(engine, benchmark.make_model(work))
    copies = 56 / 50 if chips == 8 else 1  # eight chips have seven places each for 50 clients
    assert 0.9 * plain <= cost.flops <= 1.15 * copies * plain
    model = tree.num_bytes(engine.states[0].server)
    assert sum(cost.collectives.values()) <= (1.1 * model if chips > 1 else 0)
    pool = work.x.nbytes
    for instructions in hlo.parse(compiled.as_text())[0].values():
        for each in instructions:
            assert each.opcode in CARRIERS or hlo.num_bytes(each.shape) < pool, each


@pytest.mark.exhaustive
def test_a_group_of_chips_gathers_a_layer_when_it_is_used():
    """A step gathers the weights twice and sums the gradients once, in bfloat16, and no more.

    Eight chips form two groups of four; each chip works on a fraction of the model.
    """
    work = workloads.load("VIT")
    small = {**work.settings, "width": 512, "depth": 8, "heads": 4, "patch": 4}
    work = work._replace(settings=small, cohort=2)
    engine, compiled, cost = compiled_round(work, dtype="bfloat16", fsdp=4)
    sizes, model = compiled.memory_analysis(), tree.num_bytes(engine.states[0].server)
    steps, sent, examples = 2, cost.collectives, work.x.nbytes // 16  # 2 of 32 clients
    assert sizes.argument_size_in_bytes < 0.3 * model + work.x.nbytes
    assert sizes.temp_size_in_bytes < 4 * model
    assert sent["all-gather"] <= 1.1 * steps * model
    summed = sent["all-reduce"] + sent["reduce-scatter"]  # and the uploads of two groups
    assert summed <= 1.1 * (steps / 2 + 1 / 4) * model + examples
    assert sent["collective-permute"] < 0.1 * model


def held_and_sent(work, **settings):
    """The bytes that a chip holds, and those that it sends in a round."""
    _, compiled, cost = compiled_round(work, **settings)
    return compiled.memory_analysis().argument_size_in_bytes, sum(cost.collectives.values())


def test_state_and_examples_of_clients_are_divided_among_the_chips():
    """SCAFFOLD with 100,000 clients: a chip holds an eighth and sends the data of a cohort."""
    work = workloads.load("P5")
    whole, _ = held_and_sent(work, state="replicated", data="replicated")
    held, sent = held_and_sent(work)
    assert held <= whole / 7.5
    model = 4 * 4810
    assert sent <= 2.2 * work.cohort * (model + 20 * (64 + 4 + 4))
