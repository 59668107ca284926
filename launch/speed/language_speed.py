"""Times rounds of LoRA on a random decoder of a published size; prints a JSON line per strategy.

    python launch/speed/language_speed.py [--model=smollm2] [--strategy=vectorized,sequential]
                                          [--rounds=3] [--overrides=adapter.bits=4,task.block=128]

A round has ten clients that take ten steps of AdamW on 4 rows of 512 random tokens, with adapters
of rank 16 on all matrices of the blocks and a base in bfloat16, as in docs/language_models.md.
`seconds_per_round` is the smallest of --rounds rounds after two. Needs the extra `llm`.
"""

import argparse
import json

from fedjax_lab.engine import parallel

if __name__ == "__main__":
    parallel.use_every_core()

import jax
import random_texts

from fedjax_lab.engine.engine import Engine
from fedjax_lab.experiment import experiment
from fedjax_lab.experiment.config import resolve
from fedjax_lab.running.runner import peak_memory

KEYS = "width", "depth", "heads", "kv_heads", "hidden"
SIZES = {  # KEYS, and the number of token ids
    "smollm2": (576, 30, 9, 3, 1536, 49_152),
    "tinyllama": (2048, 22, 32, 4, 5632, 32_000),
    "mistral": (4096, 32, 32, 8, 14_336, 32_768),
}
CLIENTS, STEPS, BATCH, LENGTH = 10, 10, 4, 512


def make_config(model: str, strategy: str) -> dict:
    """The config of a run whose clients have 48 rows each, 40 of them for training or more."""
    *sizes, vocabulary = SIZES[model]
    rows = {"rows": 48 * CLIENTS, "length": LENGTH, "vocabulary": vocabulary}
    net = dict(zip(KEYS, sizes, strict=True)) | {"param_dtype": "bfloat16", "remat": True}
    return {
        "data": {"name": f"{random_texts.__file__}:random_texts", **rows},
        "task": {"name": "tokens", "block": 64},
        "partition": {"name": "iid", "num_clients": CLIENTS},
        "model": {"name": "decoder", **net},
        "adapter": {"name": "lora", "rank": 16},
        "method": {"name": "fedit"},
        "local": {"optimizer": "adamw", "lr": 1e-4, "steps": STEPS, "batch_size": BATCH},
        "run": {"rounds": 1000, "eval_every": 1000, "cohort": CLIENTS},
        "engine": {"dtype": "bfloat16", "strategy": strategy},
    }


def time_rounds(config: dict, overrides: list[tuple[str, str]], rounds: int) -> dict:
    """The values of the JSON line."""
    simulation = experiment.build(resolve(config, overrides), [0]).simulation
    engine = Engine(simulation)
    engine.compile()
    paces = []
    for _ in range(2 + rounds):
        before = engine.session.seconds
        engine.play(1)
        paces.append(engine.session.seconds - before)
    seconds = min(paces[2:])
    return {
        "strategy": simulation.strategy.name,
        "seconds_per_round": seconds,
        "tokens_per_second": CLIENTS * STEPS * BATCH * LENGTH / seconds,
        "compile_seconds": engine.compile_seconds,
        "peak_memory_gib": peak_memory() / 2**30,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2", choices=SIZES)
    parser.add_argument("--strategy", default="vectorized,sequential")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--overrides", default="", help="keys of the config, separated by commas")
    args = parser.parse_args()
    overrides = [tuple(each.split("=", 1)) for each in args.overrides.split(",") if each]
    for strategy in args.strategy.split(","):
        timed = time_rounds(make_config(args.model, strategy), overrides, args.rounds)
        line = {"model": args.model, "overrides": args.overrides, **timed}
        print(json.dumps(line | {"device": jax.devices()[0].device_kind}), flush=True)


if __name__ == "__main__":
    main()
