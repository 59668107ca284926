"""How many clients a device trains at a time, from the memory that each of them works on."""

import math
import sys

import jax
import jax.numpy as jnp
from jax.extend.core import Var

from fedjax_lab import tree
from fedjax_lab.types import Plan, Task

MIB = 2**20
ALL_AT_ONCE = {"cpu": 12 * MIB, "gpu": 16 * 2**10 * MIB, "tpu": 100 * MIB}
CHUNK = {"cpu": 2 * MIB, "gpu": 16 * 2**10 * MIB, "tpu": 100 * MIB}
FEWEST = {"cpu": 1, "gpu": 8, "tpu": 8}  # in a chunk of unequal clients, where memory allows it


def width(
    platform: str, line: int, client_bytes: int, equal_steps: bool = True, memory: int = 0
) -> int:
    """How many clients a device trains at a time; what `auto` and `chunked` do without a number.

    platform: "cpu", "gpu" or "tpu".
    line: the clients that one device trains in a round.
    client_bytes: what a step of one client works on.
    equal_steps: whether all clients take as many steps.
    memory: bytes of the device, 0 where that is not known. A quarter of it is never exceeded.

    All at once where the whole line fits, since a chunk costs a turn of a loop and a copy of what
    its clients upload; else as many as fill the limit of a chunk. Of clients with unequal steps
    about the square root of the line: a wider chunk waits for its longest client, a narrower one
    costs more turns. Where the line has a divisor between half of that number and all of it, no
    copies fill the last chunk.

    - CPU, measured on two cores of an AMD EPYC (second-level cache 1 MiB each, third-level 32 MiB
      in all). An MLP 64-64-10 has 48 KiB a client: up to a line of 160 all at once is fastest, and
      chunks take up to 1.8 times as long; of 500, 1,600 and 5,000 chunks of 20 to 125 are, and all
      at once takes 1.2 to 1.9 times as long. An MLP 784-256-10 has 1.6 MiB a client: a line of 5
      is fastest all at once, of 50 and 500 chunks of 2 are.
    - TPU, by its compiler's estimate for a v5e, pooling by `reduce_window`. A round of pfl_cnn, 50
      clients of 19 MiB, takes 48 ms one by one, 45 by 2, 36 by 5, 42 by 8 (with 6 copies) and 61
      all at once, with four times the memory; one of mcmahan_cnn, 10 clients of 18 MiB, 73 ms one
      by one, 38 by 2, 50 by 5 and 67 all at once.
    - GPU, undecided by a device. By its compiler for an H100 pfl_cnn's round has 274 kernels that
      touch 21 GB all at once, 1,273 and 39 GB in chunks of 10. So only memory bounds the width:
      16 GiB, a fifth of an H100's.
    """
    at_most = memory // 4 or sys.maxsize
    if equal_steps and line * client_bytes <= min(ALL_AT_ONCE[platform], at_most):
        return line
    fit = min(-(-CHUNK[platform] // client_bytes), at_most // client_bytes)
    if not equal_steps:
        fit = min(fit, max(FEWEST[platform], math.isqrt(line)))
    return _even(line, min(max(fit, 1), line))


def _even(line, limit):
    """The largest divisor of the line from limit / 2 to limit, the limit if there is none."""
    divisors = [d for d in range(-(-limit // 2), limit + 1) if line % d == 0]
    return max(divisors, default=limit)


def client_bytes(task: Task, plan: Plan) -> int:
    """Bytes that a step of one client works on. From shapes alone: nothing is compiled.

    The weights, their gradient, the optimizer's state, a batch of inputs, and what the backward
    pass keeps of the forward pass. Of the plain model: what a method adds is not counted.
    """
    key = jax.random.key(0)
    weights = jax.eval_shape(task.init, key)
    x = jax.ShapeDtypeStruct((plan.batch_size, *task.input_shape), jnp.float32)

    def backward(weights, x):
        def logits(params):
            return task.apply(weights._replace(params=params), x, key).logits

        return jax.vjp(logits, weights.params)[1]

    program = jax.make_jaxpr(backward)(weights, x).jaxpr
    kept = {a for a in program.outvars if isinstance(a, Var)} - set(program.invars)
    moments = jax.eval_shape(plan.optimizer.init, weights.params)
    return tree.num_bytes((weights, weights.params, moments, x, [a.aval for a in kept]))
