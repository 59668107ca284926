"""Embeddings of clients by an autoencoder."""

import jax
import jax.numpy as jnp
import naive
import numpy as np
import optax
import pytest
import toys
from hypernetworks import KEY, adam_step, setting
from inputs import complaint

from fedjax_lab import tree
from fedjax_lab.engine import parallel
from fedjax_lab.errors import BadInput
from fedjax_lab.models import nets
from fedjax_lab.models.task import make_task
from fedjax_lab.papers.hfedf import client_embeddings as embeddings
from fedjax_lab.papers.hfedf.autoencoder import Autoencoder
from fedjax_lab.simulation import simulate
from fedjax_lab.types import State


def test_autoencoder_embeddings_are_computed_once_before_training(four_domains):
    hyper = {"name": "hfedf", "embedding": "autoencoder", "embedding_dim": 2}
    stages = setting(four_domains, hyper).simulation.stages
    assert [(stage.name, stage.rounds) for stage in stages] == [("embed", 1), ("train", 3)]
    for kind in ("autoencoder", "autoencoder_learned"):
        with pytest.raises(BadInput, match=f"{kind} needs config.method.embedding_dim"):
            setting(four_domains, {"name": "hfedf", "embedding": kind})
    with pytest.raises(BadInput, match="height and width are multiples of 4"):
        toys.make("hfedf", embedding="autoencoder", embedding_dim=2)(3)


IMAGE_TASK = make_task(nets.mlp(toys.K, width=4), (8, 8, 1), toys.K)


def image_federation():
    """The toy federation with images instead of its examples."""
    x = np.random.default_rng(5).uniform(0, 1, (600, 8, 8, 1))
    x *= np.linspace(0.2, 1, 600)[:, None, None, None]
    return toys.FEDERATION._replace(x=jnp.asarray(x, jnp.float32))


@pytest.mark.exhaustive
def test_the_embedding_of_a_client_is_the_mean_latent_of_its_images(monkeypatch):
    """The autoencoders make three steps of Adam on all images of a client, from one start."""
    monkeypatch.setattr(embeddings, "EPOCHS", 3)
    monkeypatch.setattr(embeddings, "BATCH", 40)  # more than a client has, in any order
    federation, lr = image_federation(), embeddings.LR
    embed, _ = toys.make("hfedf", IMAGE_TASK, embedding="autoencoder", embedding_dim=2)(5)
    start, _ = simulate.init(embed.method, naive.KEYS, toys.C).server
    reordered = parallel.chunked(3)  # the client with most work comes first
    state, _ = toys.player(embed.method, reordered, federation=federation)(naive.KEYS, 0, 1)
    net = Autoencoder(2)

    @jax.jit
    def gradient(params, x, mask):
        def error(params):
            each = jnp.mean((net.apply(params, x)[0] - x) ** 2, (1, 2, 3))
            return jnp.sum(mask * each) / jnp.sum(mask)

        return jax.grad(error)(params), net.apply(params, x)[1]

    expected = []
    for i in range(toys.C):
        x, _ = naive.data_of(i, federation)
        mask = np.arange(40) < len(x)
        x = np.pad(x, ((0, 40 - len(x)), (0, 0), (0, 0), (0, 0)))
        w, unravel = jax.flatten_util.ravel_pytree(start)
        w, m, v = np.asarray(w, float), 0.0, 0.0
        for count in range(1, 4):
            g, _ = gradient(unravel(jnp.asarray(w, jnp.float32)), x, mask)
            g = np.asarray(jax.flatten_util.ravel_pytree(g)[0], float)
            w, m, v = adam_step(g, w, m, v, count, lr, 0.0)
        _, latent = gradient(unravel(jnp.asarray(w, jnp.float32)), x, mask)
        expected.append(np.asarray(latent)[mask].mean(0))
    np.testing.assert_allclose(state.server[1], expected, rtol=1e-3, atol=1e-4)
    assert np.std(expected, 0).min() > 1e-3


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "kind, mode", [("autoencoder", "shadow"), ("autoencoder_learned", "feedback")]
)
def test_training_starts_from_the_computed_embeddings(kind, mode):
    """They and their moments change only if they are learned."""
    how = {"embedding": kind, "embedding_dim": 2, "ema_mode": mode, "server_lr": 0.01}
    _, stage = toys.make("hfedf", IMAGE_TASK, **how)(5)
    nu = jax.random.normal(KEY, (toys.C, 2))
    state = stage.start(naive.KEYS.init, toys.C, State(((), nu), ()), {})
    toys.same(state.server.x.nu, nu)
    assert mode == "feedback" or np.array_equal(state.server.average.nu, nu)
    delta = jax.tree.map(lambda a: jnp.ones((toys.C, *a.shape)), IMAGE_TASK.init(KEY))
    after = jax.jit(stage.method.round[0].aggregate)(state.server, delta, toys.POPULATION)
    (moments,) = [s for s in after.moments if hasattr(s, "mu")]
    moved = np.asarray(after.x.nu != nu)
    assert moved.all() if kind == "autoencoder_learned" else not moved.any()
    assert np.any(moments.mu.nu) == (kind == "autoencoder_learned")
    assert float(tree.sq_norm(optax.tree.sub(after.x.theta, state.server.x.theta))) > 0


@pytest.mark.parametrize("normalize, span", [("half", "-1 to 1"), ("imagenet", "-2.12 to 2.64")])
def test_the_autoencoder_rejects_inputs_outside_0_to_1(normalize, span, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (80, 8, 8, 3), dtype=np.uint8)
    domain = np.array(list("abcd"))[np.arange(80) % 4]
    np.savez(tmp_path / "data.npz", x=x, y=np.arange(80) // 4 % 2, domain=domain)
    how = {"name": "hfedf", "embedding": "autoencoder", "embedding_dim": 2}
    message = complaint(setting, tmp_path / "data.npz", how, normalize=normalize)
    assert f"needs inputs from 0 to 1, not {span}; config.data.normalize=unit" in message
    assert len(setting(tmp_path / "data.npz", how, normalize="unit").simulation.stages) == 2
