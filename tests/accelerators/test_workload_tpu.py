"""Rounds of benchmark workloads compiled for TPU chips: memory, operations and communication.

The tests need libtpu (the extra aot-tpu), but no device.
"""

from typing import NamedTuple

import aot_program
import benchmark
import hlo
import pytest
import targets
import workloads

from fedjax_lab import tree
from fedjax_lab.engine import Engine

pytestmark = [
    pytest.mark.compilers,
    pytest.mark.skipif(not targets.installed("v5e:2x4"), reason="libtpu is not installed"),
]


class Round(NamedTuple):
    """The bytes that a chip holds, and those that it sends in a round."""

    held: int
    sent: float


def compiled_round(work, **settings):
    """The round of a workload on eight chips."""
    devices = targets.topology("v5e:2x4", 8)
    engine = Engine(benchmark.build(work, devices=devices, **settings), abstract=True)
    (programs,) = engine.lower().values()
    compiled = programs.play.compile()
    turns = aot_program.trips(engine, "rounds")
    cost = hlo.cost(compiled.as_text(), lambda depth: turns[min(depth, 1)])
    return Round(compiled.memory_analysis().argument_size_in_bytes, sum(cost.collectives.values()))


CARRIERS = hlo.FREE | {"while", "conditional", "call"}  # they pass on existing arrays


@pytest.mark.parametrize("chips", [1, 8])
def test_a_round_costs_little_more_than_its_training(as_users_compile, chips):
    work = workloads.load("A1")
    memory = targets.chip("v5e:2x4").memory
    simulation = benchmark.build(work, devices=targets.topology("v5e:2x4", chips), memory=memory)
    engine = Engine(simulation, abstract=True)
    (programs,) = engine.lower().values()
    compiled = programs.play.compile()
    text = compiled.as_text()
    turns = aot_program.trips(engine, "rounds")
    cost = hlo.cost(text, lambda depth: turns[min(depth, 1)])

    assert compiled.memory_analysis().temp_size_in_bytes <= 10**9
    plain = aot_program.plain_flops(engine, benchmark.make_model(work))
    copies = 56 / 50 if chips == 8 else 1  # eight chips have seven places each for 50 clients
    assert 0.9 * plain <= cost.flops <= 1.15 * copies * plain
    model = tree.num_bytes(engine.states[0].server)
    assert sum(cost.collectives.values()) <= (1.1 * model if chips > 1 else 0)
    pool = work.x.nbytes
    for instructions in hlo.parse(text)[0].values():
        for each in instructions:
            assert each.opcode in CARRIERS or hlo.num_bytes(each.shape) < pool, each


def test_a_group_of_chips_gathers_a_layer_when_it_is_used(as_users_compile):
    """A step gathers the weights twice and sums the gradients once, in bfloat16, and no more.

    Eight chips form two groups of four; each chip works on a fraction of the model.
    """
    work = workloads.load("VIT")
    small = {**work.settings, "width": 512, "depth": 8, "heads": 4, "patch": 4}
    work = work._replace(settings=small, cohort=2)
    devices = targets.topology("v5e:2x4", 8)
    simulation = benchmark.build(work, dtype="bfloat16", fsdp=4, devices=devices)
    engine = Engine(simulation, abstract=True)
    (programs,) = engine.lower().values()
    compiled = programs.play.compile()
    turns = aot_program.trips(engine, "rounds")
    cost = hlo.cost(compiled.as_text(), lambda depth: turns[min(depth, 1)])

    sizes, model = compiled.memory_analysis(), tree.num_bytes(engine.states[0].server)
    steps, sent, examples = 2, cost.collectives, work.x.nbytes // 16  # 2 of 32 clients
    assert sizes.argument_size_in_bytes < 0.3 * model + work.x.nbytes
    assert sizes.temp_size_in_bytes < 4 * model
    assert sent["all-gather"] <= 1.1 * steps * model
    summed = sent["all-reduce"] + sent["reduce-scatter"]  # and the uploads of two groups
    assert summed <= 1.1 * (steps / 2 + 1 / 4) * model + examples
    assert sent["collective-permute"] < 0.1 * model


def test_state_and_examples_of_clients_are_divided_among_the_chips(as_users_compile):
    """SCAFFOLD with 100,000 clients: a chip holds an eighth and sends the cohort's state and data.

    If each chip draws its own clients, little more than the model is sent.
    """
    work = workloads.load("P5")
    whole, exact = compiled_round(work, state="replicated", data="replicated"), compiled_round(work)
    by_device = compiled_round(work, sampling="device")
    assert exact.held <= whole.held / 7.5 and by_device.held <= whole.held / 7.5
    model = 4 * 4810
    cohort = work.cohort * (model + 20 * (64 + 4 + 4))
    assert exact.sent <= 2.2 * cohort
    assert by_device.sent <= 4 * model
