"""Gradient inversion: the examples of clients from what they send.

The attacker looks for examples x with which the client would send what it has sent:

  x = argmin  D(sent(x), observed) + tv TV(x)     with each number of x in its range

`sent` is the method's own work of a client, with all its local steps. D is 1 - the cosine, as in
Inverting Gradients (Geiping et al., NeurIPS 2020, arXiv:2003.14053), which is the default together
with Adam on the signs of the gradient; or the squared distance, divided by that of no update at
all, as in DLG (Zhu et al., NeurIPS 2019, arXiv:1906.08935), which is usual with optimizer=lbfgs and
tv=0. TV is the mean absolute difference of neighboring pixels. Labels that the attacker does not
know are inferred before (`labels`) and then kept. If the server only learns one update of the whole
cohort, such as a secure or noisy sum, the examples of all its clients are looked for together.

The settings say what the attacker knows; by default it knows what every server knows: the method,
the model, the message, the number of examples, and how they are scaled.
"""

import time
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_lab.auditing import image_quality, labels, uploads
from fedjax_lab.auditing.findings import Findings
from fedjax_lab.auditing.target import Target
from fedjax_lab.auditing.uploads import Knowledge, Observed
from fedjax_lab.data import lazy, normalize
from fedjax_lab.engine import parallel
from fedjax_lab.errors import BadInput, reason_of
from fedjax_lab.ranges import NotNegative, Positive, checked
from fedjax_lab.types import Array, Client, PyTree

MOST_DRAWN = 16  # images in a picture


class Search(NamedTuple):
    """How the examples are searched."""

    distance: str
    optimizer: str
    lr: float
    iterations: int
    tv: float


class Ends(NamedTuple):
    """What the model can be given: [] each, in the raw numbers of the examples."""

    low: float
    high: float


@checked("attack")
def inversion(
    target: Target,
    *,
    examples: NotNegative[int] = 4,
    clients: Positive[int] = 1,
    knows: tuple[Knowledge, ...] = (),
    distance: Literal["cosine", "l2"] = "cosine",
    optimizer: Literal["signed_adam", "adam", "lbfgs"] = "signed_adam",
    lr: Positive[float] = 0.05,
    iterations: Positive[int] = 600,
    tv: NotNegative[float] = 1e-3,
    restarts: Positive[int] = 2,
    at_once: NotNegative[int] = 0,
    threshold: NotNegative[float] = 20.0,
) -> Findings:
    """Measures how much of clients' examples the server can compute from the next round.

    examples: each client trains with so many of its examples, the first ones, or with as many as
        the client with the fewest has; 0: with those.
    clients: how many clients of the cohort are attacked, one after another.
    knows: what the attacker knows besides: labels of the examples; order, in which a client takes
        them; keys, all random numbers of a client, and so also the order; statistics, the running
        statistics that clients send; private, the private state of clients.
    distance: cosine or l2.
    optimizer: signed_adam, adam or lbfgs.
    lr: the learning rate, for numbers scaled to 0..1; after 3/8, 5/8 and 7/8 of the iterations it
        is divided by 10. L-BFGS searches its steps itself.
    iterations: of the optimizer.
    tv: the weight of the total variation, of images.
    restarts: the number of random starts; the result with the smallest objective is kept.
    at_once: how many of the starts are computed together; 0: all. Fewer need less memory.
    threshold: the PSNR in dB from which an image counts as recovered.
    """
    search = Search(distance, optimizer, lr, iterations, tv)
    ends = _ends(target)
    with uploads.naming(target):
        observed = uploads.observe(target, examples, knows)
        rows, pictures = [], []
        for number, one in enumerate(_attacked(observed, clients)):
            begin = time.monotonic()
            key = jax.random.fold_in(jax.random.key(0), number)
            given = _given(target, one, knows, key)
            y, right = _labels(target, one, knows, given, key)
            given = given._replace(y=y)
            made, noise, cost = _search(
                target, one, knows, given, search, ends, key, restarts, at_once
            )
            row, picture = _measured(target, one, made, noise, ends, threshold)
            seconds = round(time.monotonic() - begin, 1)
            rows.append(row | {"labels": right, "objective": cost, "seconds": seconds})
            pictures.append(picture)
    arrays = {k: np.concatenate([p[k] for p in pictures])[:MOST_DRAWN] for k in pictures[0]}
    return Findings(rows, arrays, list(uploads.remarks(target, observed, examples, knows)))


def pictures(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """The true images above those that were made for them."""
    from matplotlib.figure import Figure  # only for pictures

    if arrays["true"].ndim < 3:
        return {}
    rows = ("true", "made")
    number = len(arrays["true"])
    figure = Figure((0.9 * number + 0.5, 2.2), layout="constrained")
    for k, axes in enumerate(figure.subplots(2, number, squeeze=False).flat):
        row, i = rows[k // number], k % number
        image = arrays[row][i]
        axes.imshow(image[..., 0] if image.shape[-1] == 1 else image, "gray", vmin=0, vmax=1)
        axes.set_xticks([]), axes.set_yticks([])
        if i == 0:
            axes.set_ylabel(row)
        if row == "made":
            axes.set_xlabel(f"{arrays['psnr'][i]:.1f} dB", fontsize="small")
    return {"images": figure}


# What is attacked.


def _attacked(observed: Observed, clients: int) -> list[Observed]:
    """The observations of single clients, or of all together if only their sum is seen."""
    if observed.is_sum:
        return [observed]

    def one(i):
        here = slice(i, i + 1)
        sent = [a[here] for a in observed.sent]
        client, keys, x, y = jax.tree.map(
            lambda a: a[here], (observed.clients, observed.keys, observed.x, observed.y)
        )
        return observed._replace(sent=sent, clients=client, keys=keys, x=x, y=y)

    return [one(i) for i in range(min(clients, len(observed.x)))]


def _ends(target):
    """The range of an example's numbers. Raises BadInput for token ids."""
    x = target.run.experiment.dataset.x
    if uploads.is_text(target):
        raise BadInput("the examples are tokens; use --attack=token_recovery")
    return Ends(*((0.0, 255.0) if normalize.is_pixels(x) else lazy.limits(x)))


# The search.


class Given(NamedTuple):
    """What the attacker has, as arguments of the programs, so that attacks share them."""

    server: PyTree
    clients: Client  # [M], as the attacker imagines them
    keys: Array  # [M]
    y: Array  # [M, N]
    seen: list[Array]  # what the server has learned
    masks: list[Array]  # of the same shapes: which numbers were sent


def _given(target, observed, knows, key):
    clients, keys = uploads.guessed(target, observed, knows, key)
    seen = [a[0].astype(jnp.float32) for a in observed.sent]
    sparse = target.run.config.compression.name in ("top_k", "random_k")
    masks = [a != 0 if sparse else jnp.ones_like(a, bool) for a in seen]
    return Given(observed.server, clients, keys, observed.y, seen, masks)


def _model(target, observed, knows):
    """The function (x [M, N, D], `Given`) -> the arrays that the server would learn."""
    send = uploads.make_sender(target, observed.x.shape[1], knows)

    def sent(x, given):
        axes = (None, 0, 0, 0, 0)
        each = jax.vmap(send, axes)(given.server, given.clients, given.keys, x, given.y)
        share = given.clients.weight / jnp.sum(given.clients.weight)
        return [jnp.tensordot(share, a, 1) for a in each]

    return sent


def _labels(target, observed, knows, given, key):
    """The labels [M, N] that the attacker uses, and the share of right ones in percent."""
    y = observed.y
    if "labels" in knows:
        return y, 100.0
    if not target.task.objective.has_classes:
        raise BadInput("labels can only be inferred if they are classes; add --attack.knows=labels")
    classes, sent = target.task.num_classes, _model(target, observed, knows)
    noise = jax.random.uniform(key, observed.x.shape) * 255
    head = partial(labels.head_update, observed.names, head=target.task.head)

    @jax.jit
    def head_updates(given):
        def update(c):
            return head(sent=sent(noise, given._replace(y=jnp.full_like(y, c))))

        return jax.lax.map(update, jnp.arange(classes))

    guess = labels.inferred(*map(np.asarray, (head(sent=given.seen), head_updates(given))), y.size)
    counts = [np.bincount(np.asarray(each).ravel(), minlength=classes) for each in (guess, y)]
    right = 100 * np.minimum(*counts).sum() / y.size
    return jnp.asarray(guess, y.dtype).reshape(y.shape), float(right)


def _search(target, observed, knows, given, search, ends, key, restarts, at_once):
    """The best examples [M * N, ...] in 0..1, a random start, and the objective."""
    sent, shape = _model(target, observed, knows), target.task.input_shape

    def objective(given, z):
        made = sent(ends.low + z * (ends.high - ends.low), given)
        made = [m * a for m, a in zip(given.masks, made, strict=True)]
        variation = _variation(z.reshape(-1, *shape)) if len(shape) > 1 else 0.0
        return _distance(search.distance, made, given.seen) + search.tv * variation

    starts = jax.random.uniform(key, (restarts, *observed.x.shape))
    _check(partial(objective, given), starts[0])

    @jax.jit
    def run(starts, given):
        one = partial(_minimize, partial(objective, given), search)
        return jax.lax.map(one, starts, batch_size=at_once or restarts)

    compiled = run.lower(starts, given).compile()
    parallel.check_memory(
        compiled.memory_analysis().temp_size_in_bytes,
        "use a lower --attack.at_once or --attack.examples: the attack needs",
    )
    made, costs, moved = compiled(starts, given)
    if not bool(jnp.all(moved)):
        raise BadInput("its uploads do not change with the examples: their gradient is 0")
    best = int(jnp.nanargmin(costs))
    flat = [np.asarray(a).reshape(-1, *shape) for a in (made[best], starts[0])]
    return *flat, float(costs[best])


def _distance(kind, made, seen):
    norm = partial(optax.tree.norm, squared=True)
    if kind == "l2":
        return norm(optax.tree.sub(made, seen)) / jnp.maximum(norm(seen), 1e-30)
    return 1 - optax.tree.vdot(made, seen) / jnp.sqrt(jnp.maximum(norm(made) * norm(seen), 1e-30))


def _variation(images):
    return sum(jnp.abs(jnp.diff(images, axis=axis)).mean() for axis in (1, 2))


def _check(cost, z):
    """Raises BadInput, with the reason, unless the objective has a gradient."""
    try:
        jax.eval_shape(jax.grad(cost), z)
    except BadInput:
        raise
    except (ValueError, TypeError, NotImplementedError) as error:
        reason = reason_of(error)
        if "while_loop" in reason or "fori_loop" in reason:
            reason = "its clients have a loop whose length depends on their data"
        raise BadInput(f"its uploads cannot be differentiated: {reason}") from error


def _minimize(cost, search, z):
    """The end of a search from z, its objective, and whether the first gradient is not 0."""
    steps = [search.iterations * part // 8 for part in (3, 5, 7)]
    rate = optax.piecewise_constant_schedule(search.lr, dict.fromkeys(steps, 0.1))
    make = optax.lbfgs if search.optimizer == "lbfgs" else partial(optax.adam, rate)
    opt = optax.with_extra_args_support(make())

    def step(carry, _):
        z, state, best, lowest = carry
        value, grad = jax.value_and_grad(cost)(z)
        best = jnp.where(value < lowest, z, best)
        used = jnp.sign(grad) if search.optimizer == "signed_adam" else grad
        update, state = opt.update(used, state, z, value=value, grad=grad, value_fn=cost)
        moved = jnp.clip(z + update, 0, 1)
        return (moved, state, best, jnp.fmin(value, lowest)), jnp.any(grad != 0)

    first = z, opt.init(z), z, jnp.float32(jnp.inf)
    (_, _, best, lowest), moved = jax.lax.scan(step, first, None, length=search.iterations)
    return best, lowest, moved[0]


# The results.


def _measured(target, observed, made, noise, ends, threshold):
    """The measures of one attack, and its images beside the true ones."""
    true = np.asarray((observed.x - ends.low) / (ends.high - ends.low))
    true = true.reshape(-1, *target.task.input_shape)
    of_noise = image_quality.compare(true, noise)
    flat = [a.reshape(len(a), -1) for a in (true, made)]
    made = made[image_quality.matched(*flat)]
    alike = image_quality.compare(true, made)
    row = {
        "clients": [int(i) for i in observed.clients.id],
        "client": int(observed.clients.id[0]) if len(observed.x) == 1 else None,
        "sees": "one update of the cohort" if observed.is_sum else "the upload",
        "examples": len(true),
        "psnr": float(alike.psnr.mean()),
        "psnr_of_noise": float(of_noise.psnr.mean()),
        "recovered": float(100 * (alike.psnr >= threshold).mean()),
    }
    if alike.ssim is not None and of_noise.ssim is not None:
        row |= {"ssim": float(alike.ssim.mean()), "ssim_of_noise": float(of_noise.ssim.mean())}
    return row, {"true": true, "made": made, "psnr": alike.psnr}
