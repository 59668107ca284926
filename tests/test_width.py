"""Checks how many clients a device trains at a time, and the memory that a client needs."""

import jax.numpy as jnp
import toys

from fedjax_lab import optim
from fedjax_lab.engine.width import MIB, client_bytes, width
from fedjax_lab.models import nets
from fedjax_lab.models.task import make_task

SMALL = 49_360  # bytes of a client of workloads W2 and W5: an MLP 64-64-10, batches of 10
A1 = 19_758_000  # bytes of a client of workload A1


def test_a_cpu_trains_as_many_clients_at_once_as_fit_in_its_caches():
    def widths(client_bytes, *lines, **options):
        return [width("cpu", line, client_bytes, **options) for line in lines]

    assert widths(SMALL, 5, 160, 500, 1600, 5000) == [5, 160, 25, 40, 40]
    assert widths(1_714_000, 5, 50, 500) == [5, 2, 2]  # an MLP 784-256-10 with batches of 10
    # With unequal steps, chunks are about the square root.
    unequal = widths(SMALL, 5, 16, 50, 160, 500, equal_steps=False)
    assert unequal == [1, 4, 5, 10, 20]


def test_accelerators_train_more_clients_at_once():
    assert width("tpu", 50, A1) == 5
    assert width("gpu", 50, A1) == 50
    assert width("gpu", 20, A1, equal_steps=False) == 5  # the largest divisor of 20 up to 8


def test_clients_never_use_more_than_a_quarter_of_the_memory():
    for platform in ("cpu", "gpu", "tpu"):
        for line in (7, 50, 1000):
            many = width(platform, line, 3 * MIB, memory=60 * MIB)
            assert 1 <= many * 3 <= 15
    assert width("gpu", 7, 2**40) == 1


def test_the_chunk_size_divides_the_number_of_clients_if_a_divisor_is_near():
    for line in range(1, 2000):
        chunk = width("cpu", line, SMALL)
        divisors = [d for d in range(22, 44) if line % d == 0]
        assert chunk == line or (line % chunk == 0 if divisors else chunk == 43)


def test_bytes_of_a_client():
    """Logistic regression 6 -> 4 on 8 examples; its backward pass keeps only the inputs."""
    task = make_task(nets.mlp(toys.K, depth=0), (toys.D,), toys.K)
    weights, batch = 4 * (6 * 4 + 4), 4 * 8 * 6
    plan = toys.PLAN._replace(optimizer=optim.sgd(0.1))
    assert client_bytes(task, plan) == 2 * weights + batch
    momentum = plan._replace(optimizer=optim.sgd(0.1, 0.9))
    assert client_bytes(task, momentum) == 3 * weights + batch


def test_activations_grow_with_the_batch_and_shrink_in_bfloat16():
    def activations(batch, dtype=jnp.float32):
        task = make_task(nets.simple_cnn(4), (28, 28, 1), 4, compute_dtype=dtype)
        return client_bytes(task, toys.PLAN._replace(batch_size=batch))

    one, two, three = (activations(b) for b in (8, 16, 24))
    assert three - two == two - one > 8 * 4 * 24 * 24 * 6
    assert activations(64, jnp.bfloat16) < 0.7 * activations(64)
