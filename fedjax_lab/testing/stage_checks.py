"""The check of a method with stages, which uses the engine of a run."""

from functools import partial

import jax

from fedjax_lab import tree
from fedjax_lab.engine import parallel
from fedjax_lab.engine.engine import Engine
from fedjax_lab.engine.input import Seed, Simulation
from fedjax_lab.experiment.stages import lay_out
from fedjax_lab.simulation import evaluate
from fedjax_lab.testing.failure import check, check_same
from fedjax_lab.testing.padding import DEPENDS, padded
from fedjax_lab.testing.toy import K, toy_embeddings, toy_federation
from fedjax_lab.testing.trial import pooled
from fedjax_lab.types import Stages

ROUNDS = 40


def check_stages(method: Stages) -> None:
    """Raises CheckFailed unless the stages learn, independently of strategy and length of blocks.

    Raises BadInput, as a run does, if the rounds do not fit the stages.
    """
    whole = _play(method, parallel.vectorized(), at_most=ROUNDS)
    check(bool(tree.finite(whole[0])), "the state is not finite after the last round")
    accuracy = whole[1]["accuracy"]["mean"]
    check(
        accuracy > 60,
        f"the clients' own models classify {accuracy:.1f} % of their test examples correctly, but"
        f" must exceed 60 %, as FedAvg does; chance is {100 / K:.0f} %",
    )
    cut = _play(method, parallel.vectorized(), at_most=3)
    check_same(cut[0], whole[0], "blocks of three rounds give other numbers than longer blocks")
    chunked = _play(method, parallel.chunked(2), at_most=ROUNDS)
    what = "two clients at a time give other numbers than all at once"
    check_same(chunked[0], whole[0], what, rtol=5e-3, atol=5e-4)
    few, many = (_play(method, parallel.vectorized(), ROUNDS, times)[0] for times in (1, 2))
    check_same(many, few, DEPENDS, rtol=5e-3, atol=5e-4)


def _play(method, strategy, at_most, times=0):
    """The final state and the scores of a run; times: see `padding.padded`, 0: no change."""
    engine = Engine(_simulation(method, strategy, times))
    engine.compile()
    while engine.played < engine.ends[-1]:
        end = engine.ends[engine.stage_number]
        engine.play(min(at_most, end - engine.played))
        if engine.stage_is_over:
            engine.next_stage()
            engine.compile()
    (scores,), (state,) = engine.evaluate(), engine.final_states()
    return state, evaluate.summarize(scores, ("only",))


def _simulation(method, strategy, times):
    federation = jax.device_get(padded(times) if times else toy_federation())
    embedded = partial(toy_embeddings, federation)
    stages = tuple(
        stage._replace(embeddings=stage.embeddings and embedded)
        for stage in lay_out(method, ROUNDS)
    )
    training, _, plan = pooled(stages[0].method, federation)
    if times:
        plan = plan._replace(batch_size=times * training.train.longest)
    return Simulation(
        seeds=[Seed(0, federation, jax.device_get(training))],
        num_classes=K,
        stages=stages,
        plan=plan._replace(rounds=sum(stage.rounds for stage in stages)),
        strategy=strategy,
    )
