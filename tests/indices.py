"""Toy indices of clients, and the stages that compute and use them."""

import jax
import jax.numpy as jnp
import numpy as np
import toys

from fedjax_lab import streams
from fedjax_lab.experiment import registry
from fedjax_lab.models.embeddings import Embeddings
from fedjax_lab.papers.client2vec.index import Index
from fedjax_lab.simulation.population import make_population

E, C, K = 64, toys.C, toys.K


RNG = np.random.default_rng(0)


T = RNG.normal(size=(K, E)).astype(np.float32)


TASK = toys.NORM._replace(embeddings=lambda: Embeddings(np.zeros((1, E), np.float32), T))


KEYS = streams.make_keys(jax.random.key(0))


INDEX = Index(*RNG.normal(size=(2, C, E)).astype(np.float32))


POPULATION = make_population(toys.SKEWED, K)._replace(arrived=jnp.ones(C, bool))


def stages(**settings):
    return registry.make_method("client2vec", TASK, **settings)(7)
