"""Tries readings of Client2Vec's local term (eq. 4) in short runs of FedAvg with that term alone.

    python -m fedjax_lab.papers.client2vec [--index=DIR] [--readings=PATTERN,...] [--rounds=20]
        [--images=40] [--steps=0] [--config=configs/client2vec_digits.py]
        [--config.data.size=16 ...]

A reading is one interpretation of the term; the number in its name is the weight w. The first
reading is plain FedAvg: sampling and aggregation by the index are off in all of them. All readings
share one compiled program, which trains each client on one batch of --images examples; 20 rounds of
a reading take seconds. The table has the test accuracy in percent (on every second test example)
after every fifth round, then cross entropy, mean |z P beta|, KL and the root mean square length of
z at the clients' first step, in the first and in the last round.

--readings  only the readings whose names match one of the patterns
--steps     trains the first client alone for this number of steps, instead of rounds. The table has
            the initial lengths of the weighted gradients of cross entropy, products and KL, and the
            length of z before each step
--index     workdir of a client2vec run whose index gives B^f. Without it B^f is computed by an
            untrained DSA-IGN from 16 stand-in embeddings of 128 numbers for each client. In both
            cases its vectors are scaled to a mean length of 1
"""

if __name__ == "__main__":  # before the slow imports, so that an interrupt during them is handled
    from fedjax_lab.commands import command

    command.begin()

import argparse
import fnmatch
import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_lab import losses, tree
from fedjax_lab.analysis import formats
from fedjax_lab.commands import command
from fedjax_lab.commands.arguments import split_overrides
from fedjax_lab.errors import parse
from fedjax_lab.experiment import experiment
from fedjax_lab.experiment.config import resolve
from fedjax_lab.experiment.config_files import load_config
from fedjax_lab.models.embeddings.stand_in import stand_in
from fedjax_lab.models.task import with_side_head
from fedjax_lab.papers.client2vec.network import Network
from fedjax_lab.papers.client2vec.saved_index import kept
from fedjax_lab.types import Batch, Task, Weights

# orth: weight of mean |z P B^f|. p_q, q_p: weights of KL(softmax o || softmax o_P) and of its
# reverse. o, side: shares of KL's gradient that reach o and o_P (0: none). clip: largest norm of
# a step's gradient. orthogonal: 1 if P starts with orthogonal rows. full_rank: 1 if B^f is random.
FEDAVG = {"orth": 0.0, "p_q": 0.0, "q_p": 0.0, "o": 1.0, "side": 1.0, "clip": 1e9}
READINGS: dict[str, dict[str, float]] = {
    "FedAvg": {},
    **{f"both {x}": {"orth": x, "p_q": x} for x in (0.1, 1, 5)},
    **{f"products {x}": {"orth": x} for x in (1, 5)},
    **{f"KL {x}": {"p_q": x} for x in (1, 5)},
    "both 5 with beta^f of length 5": {"orth": 25, "p_q": 5},
    "KL 5 reversed": {"q_p": 5},
    "KL 5 without a gradient to o": {"p_q": 5, "o": 0},
    "KL 5 without a gradient to o_P": {"p_q": 5, "side": 0},
    "both 1 without KL's gradient to o": {"orth": 1, "p_q": 1, "o": 0},
    "both 5 without KL's gradient to o": {"orth": 5, "p_q": 5, "o": 0},
    "products 0.3, KL 5 without a gradient to o": {"orth": 0.3, "p_q": 5, "o": 0},
    "both 5 with an orthogonal P": {"orth": 5, "p_q": 5, "orthogonal": 1},
    "both 5 with gradients clipped to 1": {"orth": 5, "p_q": 5, "clip": 1},
    "both 5 with B^f of full rank": {"orth": 5, "p_q": 5, "full_rank": 1},
}
EVERY = 5  # rounds between two evaluations
SIZES = "CE", "|z P beta|", "KL", "z"  # names of the sizes that `objective` returns
SHOWN = 16  # images of each client from which `untrained` computes an index


def main(argv: list[str]) -> int:
    """Run the command with the arguments `argv`, without its name; returns the exit code."""
    return command.call(_main, argv, "nothing was kept", __doc__)


def _main(argv):
    argv, overrides = split_overrides(argv)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--index", default="")
    parser.add_argument("--config", default="configs/client2vec_digits.py")
    parser.add_argument("--readings", default="*")
    for flag, default in (("--rounds", 20), ("--images", 40), ("--steps", 0)):
        parser.add_argument(flag, type=int, default=default)
    args = parse(parser, argv)
    config = resolve(load_config(f"{args.config}:fedavg"), overrides)
    data = data_of(config, args.images)
    B_f = trained_index(args.index) if args.index else untrained(data)
    print(described(B_f), flush=True)
    B_f = B_f / np.linalg.norm(B_f, axis=1).mean()
    if args.steps:
        header, play = first_steps(config, data, args.steps, B_f)
    else:
        header, play = player(config, data, args.rounds, B_f)
    rows = []
    for name, reading in READINGS.items():
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in args.readings.split(",")):
            rows.append([name, *play(complete(reading))])
            print(*rows[-1], flush=True)
    print(formats.markdown(formats.Table("", ["", *header], rows)))
    return 0


def complete(reading: dict[str, float]) -> dict[str, float]:
    """The reading with defaults for missing numbers; all are floats, to compile only once."""
    return {key: float(value) for key, value in {**FEDAVG, **reading}.items()}


def trained_index(workdir: str) -> np.ndarray:
    """B^f [C, F] of the first seed of the run in `workdir`."""
    feature = kept(workdir)[0]["feature"]
    return feature.reshape(-1, *feature.shape[-2:])[0]


def untrained(data) -> np.ndarray:
    """B^f [C, 128] from a DSA-IGN with its initial weights."""
    rows = [of_client[:SHOWN] for of_client in data["train"]]
    pool = np.concatenate(rows)
    few = data["dataset"]
    few = few._replace(
        x=np.asarray(few.x)[pool],
        y=few.y[pool],
        domain=few.domain[pool],
        test=np.zeros(len(pool), bool),
    )
    network = Network()
    embedded = stand_in(few, size=128).examples
    psi = network.init(jax.random.key(0), jnp.zeros((1, 128)))
    u = np.asarray(network.apply(psi, embedded)[1])
    return np.stack([part.mean(0) for part in np.split(u, np.cumsum([len(r) for r in rows])[:-1])])


def described(B_f: np.ndarray) -> str:
    """A line with the shape, mean length and effective rank of B^f [C, F]."""
    s = np.linalg.svd(B_f, compute_uv=False)
    s = s[s > 0]
    one, two = (np.exp(-np.sum(p * np.log(p))) for p in (s / s.sum(), s**2 / np.sum(s**2)))
    return (
        f"B^f {len(B_f)} x {B_f.shape[1]}, mean length {np.linalg.norm(B_f, axis=1).mean():.2f},"
        f" effective rank {one:.1f} (of the squares {two:.1f}),"
        f" {np.sum(s > 0.01 * s[0])} singular values above 1 % of the largest"
    )


def data_of(config, images: int) -> dict[str, Any]:
    """The data set and task, normalized examples x, labels y, and the rows to train and test on.

    `train` has at most `images` rows for each client; `test` has every second test example.
    """
    dataset = experiment.load_data(config.data)
    federation = experiment.deal_dataset(config, dataset, [0])[0]
    task = experiment.make_model(config, dataset, "cpu").unbound
    x = np.asarray(dataset.x, np.float32).reshape(len(dataset.x), *task.input_shape)
    x = (x - np.asarray(federation.center)) * np.asarray(federation.scale)
    train = [rows[rows >= 0][:images] for rows in np.asarray(federation.train)]
    test = np.flatnonzero(dataset.test)[::2]
    y = np.asarray(dataset.y)
    return {"x": x.astype(np.float32), "y": y, "train": train, "test": test, "task": task} | {
        "dataset": dataset
    }


def player(config, data, rounds: int, B_f: np.ndarray):
    """The names of the columns, and a function from a reading to their values."""
    task = with_side_head(data["task"], B_f.shape[1])
    one_round = jax.jit(partial(averaged, task, config.local))
    predict = jax.jit(lambda w, x: task.apply(w, x).logits)
    x, y, test, train = (data[key] for key in ("x", "y", "test", "train"))

    def play(reading):
        w, B = task.init(jax.random.key(0)), jnp.asarray(B_f)
        if reading.pop("orthogonal", 0):
            w = with_orthogonal_rows(w)
        if reading.pop("full_rank", 0):
            B = losses.unit(jnp.asarray(np.random.default_rng(0).normal(size=B.shape), jnp.float32))
        draw, accuracy, sizes = np.random.default_rng(1), [], []
        for t in range(1, rounds + 1):
            rows = np.stack([train[i] for i in draw.choice(len(train), config.run.cohort, False)])
            w, of_round = one_round(w, x[rows], y[rows], reading, B)
            sizes.append(of_round)
            if t % EVERY == 0:
                right = np.argmax(np.asarray(predict(w, x[test])), 1) == y[test]
                accuracy.append(f"{100 * right.mean():.1f}")
        return [*accuracy, *(f"{value:.2g}" for t in (0, -1) for value in np.asarray(sizes[t]))]

    rounds_shown = map(str, range(EVERY, rounds + 1, EVERY))
    columns = [f"{what}, {when}" for when in ("first", "last") for what in SIZES]
    return [*rounds_shown, *columns], lambda reading: play(dict(reading))


def first_steps(config, data, steps: int, B_f: np.ndarray):
    """The names of the columns of --steps, and a function from a reading to their values."""
    task, rows = with_side_head(data["task"], B_f.shape[1]), data["train"][0]
    w, B = task.init(jax.random.key(0)), jnp.asarray(B_f)
    batch = Batch(jnp.asarray(data["x"][rows]), jnp.asarray(data["y"][rows]), jnp.ones(len(rows)))

    def term(reading, w, batch, params):
        return objective(task, w.stats, batch, reading, B, params)[0]

    @jax.jit
    def gradient(reading, w, batch):
        return jax.grad(partial(term, reading, w, batch))(w.params)

    @jax.jit
    def sizes(reading, w, batch):
        return trained(task, config.local, w, batch.x, batch.y, reading, B, steps)[1]

    def play(reading):
        without = gradient(FEDAVG, w, batch)
        each = [gradient({**FEDAVG, key: reading[key]}, w, batch) for key in ("orth", "p_q")]
        parts = [optax.tree.sub(g, without) for g in each]
        lengths = [float(jnp.sqrt(tree.sq_norm(g))) for g in (without, *parts)]
        of_z = np.asarray(sizes(reading, w, batch))[:, -1]
        return [f"{value:.2g}" for value in [*lengths, *of_z]]

    names = [f"gradient of {part}" for part in SIZES[:3]]
    return [*names, *(f"z, {t}" for t in range(steps))], play


def averaged(task: Task, settings, w: Weights, xs, ys, reading, B_f):
    """The cohort's means of the trained weights, and of the terms' sizes at the first step."""

    def one(total, client):
        after, sizes = trained(task, settings, w, *client, reading, B_f, settings.epochs)
        return tree.add(total, (after, sizes[0]), 1 / len(ys)), ()

    return jax.lax.scan(one, tree.zeros((w, jnp.zeros(4))), (xs, ys))[0]


def trained(task: Task, settings, w: Weights, x, y, reading, B_f, steps: int):
    """SGD on full batches; returns the weights and the terms' sizes [steps, 4] before each step."""
    optimizer = optax.chain(
        optax.stateless(lambda g, _: clipped(g, reading["clip"])),
        optax.add_decayed_weights(settings.weight_decay),
        optax.sgd(settings.lr, settings.momentum),
    )

    def step(carry, _):
        w, state = carry
        loss = partial(objective, task, w.stats, Batch(x, y, jnp.ones(len(y))), reading, B_f)
        g, (stats, sizes) = jax.grad(loss, has_aux=True)(w.params)
        updates, state = optimizer.update(g, state, w.params)
        return (Weights(optax.apply_updates(w.params, updates), stats), state), sizes

    (w, _), sizes = jax.lax.scan(step, (w, optimizer.init(w.params)), None, steps)
    return w, sizes


def objective(task: Task, stats, batch: Batch, reading, B_f, params):
    """The loss, cross entropy plus the reading's terms, and (new statistics, terms' sizes [4])."""
    out = task.apply(Weights(params, stats), batch.x, jax.random.key(0), batch.mask)
    z_P, o_P = out.extra
    log_p = jax.nn.log_softmax(let_through(reading["o"], out.logits))
    log_q = jax.nn.log_softmax(let_through(reading["side"], o_P))
    CE, products = losses.cross_entropy(out.logits, batch), jnp.mean(jnp.abs(z_P @ B_f.T))
    terms = reading["p_q"] * KL(log_p, log_q) + reading["q_p"] * KL(log_q, log_p)
    length = jnp.sqrt(jnp.mean(jnp.sum(out.features**2, 1)))
    sizes = jnp.stack([CE, products, KL(log_p, log_q), length])
    return CE + terms + reading["orth"] * products, (out.stats, sizes)


def KL(log_p, log_q):
    """The KL divergence of q from p, sum p log(p / q), averaged over examples."""
    return jnp.mean(jnp.sum(jnp.exp(log_p) * (log_p - log_q), 1))


def let_through(share, value):
    """The value, whose gradient is multiplied by `share`."""
    return share * value + (1 - share) * jax.lax.stop_gradient(value)


def clipped(g, largest):
    """The gradient, scaled down to the norm `largest` if it is longer."""
    length = jnp.sqrt(tree.sq_norm(g))
    return optax.tree.scale(jnp.minimum(1, largest / jnp.maximum(length, 1e-9)), g)


def with_orthogonal_rows(w: Weights) -> Weights:
    """The weights with orthogonal rows in P [d, F], whose norm stays the same."""
    side = w.params["side"]
    Q = jax.nn.initializers.orthogonal()(jax.random.key(3), side["P"].shape)
    P = Q * jnp.linalg.norm(side["P"]) / jnp.linalg.norm(Q)
    return w._replace(params={**w.params, "side": {**side, "P": P}})


if __name__ == "__main__":
    command.run(main, sys.argv[1:])
