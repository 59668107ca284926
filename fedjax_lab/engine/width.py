"""Chooses how many clients a device trains at a time, from the memory that each client needs."""

import math
import sys
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax.extend.core import Var, jaxprs_in_params
from jax.interpreters.partial_eval import dce_jaxpr

from fedjax_lab import losses, tree
from fedjax_lab.models.frozen import Model
from fedjax_lab.types import Batch, Plan

MIB = 2**20
ALL_AT_ONCE = {"cpu": 12 * MIB, "gpu": 16 * 2**10 * MIB, "tpu": 100 * MIB}
CHUNK = {"cpu": 2 * MIB, "gpu": 16 * 2**10 * MIB, "tpu": 100 * MIB}
FEWEST = {"cpu": 1, "gpu": 8, "tpu": 8}  # minimum for clients with unequal steps, if memory allows


def width(
    platform: str, line: int, client_bytes: int, equal_steps: bool = True, memory: int = 0
) -> int:
    """The number of clients that a device trains at a time, if config.engine.chunk is 0.

    platform: "cpu", "gpu" or "tpu".
    line: the number of clients that one device trains in a round.
    client_bytes: the bytes that a step of one client uses.
    equal_steps: whether all clients take the same number of steps.
    memory: bytes of the device, 0 if unknown. The result uses at most a quarter of it.

    If the whole line fits, all clients run at once, because each chunk costs an iteration of a loop
    and a copy of the clients' uploads. Otherwise a chunk has as many clients as its memory limit
    allows. For clients with unequal steps the limit is also about the square root of the line: a
    larger chunk waits for its longest client, a smaller one costs more iterations. If the line has
    a divisor between half of the limit and the limit, the largest such divisor is used, so that the
    last chunk needs no copies to fill it up.

    - CPU, measured on two cores of an AMD EPYC (second-level cache 1 MiB each, third-level 32 MiB
      in all). With an MLP 64-64-10 (48 KiB per client), all clients at once are fastest for lines
      of up to 160, and chunks take up to 1.8 times as long. For lines of 500, 1,600 and 5,000,
      chunks of 20 to 125 are fastest, and all at once takes 1.2 to 1.9 times as long. With an MLP
      784-256-10 (1.6 MiB per client), all at once is fastest for a line of 5, and chunks of 2 are
      fastest for 50 and 500.
    - TPU, from the compiler's estimate for a v5e when the limit was chosen, with pooling by
      `reduce_window` (docs/accelerators.md has the numbers of the current code). A round of
      pfl_cnn with 50 clients of 19 MiB takes 48 ms one by one, 45 in chunks of 2, 36 of 5, 42 of 8
      (with 6 copies) and 61 all at once, with four times the memory. A round of mcmahan_cnn with 10
      clients of 18 MiB takes 73 ms one by one, 38 in chunks of 2, 50 of 5 and 67 all at once.
    - GPU, not measured on a device. According to the compiler for an H100, a round of pfl_cnn has
      274 kernels that access 21 GB all at once, and 1,273 kernels and 39 GB in chunks of 10.
      Therefore only memory limits the number: 16 GiB, a fifth of an H100's memory.
    """
    at_most = memory // 4 or sys.maxsize
    if equal_steps and line * client_bytes <= min(ALL_AT_ONCE[platform], at_most):
        return line
    fit = min(-(-CHUNK[platform] // client_bytes), at_most // client_bytes)
    if not equal_steps:
        fit = min(fit, max(FEWEST[platform], math.isqrt(line)))
    return _even(line, min(max(fit, 1), line))


def _even(line, limit):
    """The largest divisor of the line from limit / 2 to limit, or the limit if there is none."""
    divisors = [d for d in range(-(-limit // 2), limit + 1) if line % d == 0]
    return max(divisors, default=limit)


def client_bytes(model: Model, plan: Plan) -> int:
    """The bytes that a step of one client uses, from shapes; nothing is compiled.

    They are the weights, their gradient, the optimizer's state, a batch of inputs, the values of
    the forward pass that the backward pass needs, and what a larger array of the forward pass needs
    in addition: the patches of a convolution that is a product of matrices, or the logits, of which
    a loss in blocks holds one block. Additional arrays of a method are not counted, nor are frozen
    weights, which the clients share.
    """
    key, task = jax.random.key(0), model.unbound
    label, in_blocks = task.objective.label, task.objective.losses_at is not None
    weights = jax.eval_shape(task.init, key)
    size = plan.batch_size // plan.accumulate
    x = jax.ShapeDtypeStruct((size, *task.input_shape), jnp.float32)

    def backward(base, weights, x):
        def outputs(params):
            w, of_base = weights._replace(params=params), model.bind(base)
            if not in_blocks:
                return of_base.apply(w, x, key).logits
            batch = Batch(x, jnp.zeros((size, *label.shape), label.dtype), jnp.ones(size))
            return losses.risk(of_base)(w, batch, key)[0]

        return jax.vjp(outputs, weights.params)[1]

    program = jax.make_jaxpr(backward)(model.base, weights, x).jaxpr
    of_base = {leaf.shape for leaf in jax.tree.leaves(model.base)}  # in any type
    kept = {a for a in program.outvars if isinstance(a, Var)} - set(program.invars)
    kept = {a for a in kept if getattr(a.aval, "shape", None) not in of_base}
    stacked = jax.tree.map(lambda a: jax.ShapeDtypeStruct((1, *a.shape), a.dtype), (weights, x))
    each = jax.vmap(backward, (None, 0, 0))  # each client has its own kernels
    batched = jax.make_jaxpr(each)(model.base, *stacked).jaxpr
    if in_blocks:  # the logits of the whole batch, which the loss does not use, are traced too
        batched, _ = dce_jaxpr(batched, [True] * len(batched.outvars))
    sizes = [tree.num_bytes(a) for a in (x, *(a.aval for a in kept))]
    patches = max(0, max(_sizes(batched), default=0) - max(sizes))
    moments = jax.eval_shape(plan.optimizer.init, weights.params)
    return tree.num_bytes((weights, weights.params, moments)) + sum(sizes) + patches


def _sizes(jaxpr) -> Iterator[int]:
    """The bytes of each result of the operations of a program."""
    for each in jaxpr.eqns:
        yield from (tree.num_bytes(a.aval) for a in each.outvars)
        for inner in jaxprs_in_params(each.params):
            yield from _sizes(inner)
