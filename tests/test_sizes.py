"""Checks what `auto` chooses from sizes, and which settings are rejected."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from inputs import complaint

from fedjax_lab import optim
from fedjax_lab.engine import sizes
from fedjax_lab.engine.width import client_bytes, width
from fedjax_lab.methods.fedavg import fedavg
from fedjax_lab.methods.scaffold import scaffold
from fedjax_lab.models import kernels, nets, transformer
from fedjax_lab.models.frozen import model_of
from fedjax_lab.models.task import make_task
from fedjax_lab.tasks import Labels
from fedjax_lab.tasks.tokens import tokens

MIB, GIB = 2**20, 2**30
EIGHT = sizes.Devices(8, 16 * GIB)


def test_auto_chooses_the_placement_from_sizes():
    of_host, one, unknown = (
        sizes.Devices(*of) for of in ((8, 16 * GIB, True), (1, 16 * GIB), (1, 0))
    )
    for size, devices, where in (
        (1024 * MIB, EIGHT, "replicated"),  # a sixteenth of a device's memory
        (1025 * MIB, EIGHT, "sharded"),
        (64 * MIB, of_host, "replicated"),
        (65 * MIB, of_host, "sharded"),
        (64 * GIB, EIGHT, "sharded"),
        (65 * GIB, EIGHT, "host"),
        (8 * GIB, one, "replicated"),
        (9 * GIB, one, "host"),
        (900 * GIB, unknown, "replicated"),  # its memory is not known
        (900 * GIB, unknown._replace(number=8), "sharded"),
    ):
        choice = sizes.choose("state", "auto", size, devices, "host")
        assert choice.where == where and "iB" in choice.reason
    for where in ("replicated", "sharded", "host"):
        asked = sizes.choose("state", where, MIB, EIGHT, "host")
        assert asked == (where, "requested by the config")


def test_a_placement_that_does_not_fit_is_an_error_with_a_remedy():
    for asked, size, remedy in (("replicated", 9, "sharded"), ("replicated", 65, "host")):
        message = complaint(sizes.choose, "state", asked, size * GIB, EIGHT, "host")
        assert f"state={asked} needs " in message
        assert message.endswith(f"use config.engine.state={remedy}")


def test_sizes_are_those_of_the_arrays():
    """The state is rows, the population and, for SCAFFOLD, a model for each client."""
    federation = jax.device_get(toys.FEDERATION)
    rows = federation.train.list.size + federation.test.list.size + 4 * toys.C
    plain = 4 * (rows + toys.C * (toys.K + 5))
    assert sizes.state_bytes(fedavg(toys.TASK), federation, toys.K) == plain
    weights = jax.eval_shape(toys.TASK.init, jax.random.key(0)).params
    model = 4 * sum(a.size for a in jax.tree.leaves(weights))
    assert sizes.state_bytes(scaffold(toys.TASK), federation, toys.K) == plain + toys.C * model
    assert sizes.pool_bytes(federation) == 600 * (4 * toys.D + 8)


def divide(**asked):
    federations = [jax.device_get(toys.FEDERATION)]
    return sizes.divide([fedavg(toys.TASK)], federations, toys.K, sizes.Devices(4, GIB), **asked)


def test_what_each_placement_divides_among_the_devices():
    assert divide(state="host").divided == {"by_client": True, "by_row": False}
    assert divide(data="stream").divided == {"by_client": True, "by_row": True}
    both = divide(state="host", data="sharded")
    assert both.data.where == "sharded" and both.divided["by_row"]


def test_a_model_larger_than_a_device_is_an_error_with_a_remedy():
    method = fedavg(toys.TASK)
    small = sizes.Devices(4, 100)  # bytes
    assert "use at least config.engine.fsdp=8" in complaint(sizes.check_model, method, 1, small)
    sizes.check_model(method, 8, small)
    sizes.check_model(method, 1, sizes.Devices(4, 100, of_host=True))


def test_a_run_says_how_much_memory_a_step_needs_and_what_to_change():
    words = sizes.step_words(10, 300 * MIB, 4 * GIB)
    assert words == "a step of 10 clients: about 2.9 GiB"
    words = sizes.step_words(10, 300 * MIB, 2 * GIB)
    assert "which may not fit in 2.0 GiB: lower config.engine.chunk, config.local.batch" in words
    assert "chunk" not in sizes.step_words(1, 3 * GIB, 2 * GIB)


# How many clients a device trains at a time, and the memory that a client needs.


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


def test_accelerators_train_more_clients_at_once_in_a_quarter_of_the_memory():
    assert width("tpu", 50, A1) == 5
    assert width("gpu", 50, A1) == 50
    assert width("gpu", 20, A1, equal_steps=False) == 5  # the largest divisor of 20 up to 8
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


@pytest.mark.slow
def test_bytes_of_a_client_by_batch_and_type():
    """Logistic regression 6 -> 4 on 8 examples; its backward pass keeps only the inputs."""
    task = make_task(nets.mlp(toys.K, depth=0), (toys.D,), toys.K)
    weights, batch = 4 * (6 * 4 + 4), 4 * 8 * 6
    plan = toys.PLAN._replace(optimizer=optim.sgd(0.1))
    assert client_bytes(model_of(task), plan) == 2 * weights + batch
    momentum = plan._replace(optimizer=optim.sgd(0.1, 0.9))
    assert client_bytes(model_of(task), momentum) == 3 * weights + batch

    def activations(batch, dtype=jnp.float32):
        task = make_task(nets.simple_cnn(4), (28, 28, 1), 4, compute_dtype=dtype)
        return client_bytes(model_of(task), toys.PLAN._replace(batch_size=batch))

    one, two, three = (activations(b) for b in (8, 16, 24))
    assert three - two == two - one > 8 * 4 * 24 * 24 * 6
    assert activations(64, jnp.bfloat16) < 0.7 * activations(64)


def test_bytes_of_a_client_count_one_block_of_logits():
    """Rows of 16 tokens of 500 classes, all of them or 4 at a time."""
    y = np.zeros((8, 16), np.int32)
    net = transformer.causal_transformer(500, width=4, depth=1, heads=1, vocabulary=500)

    def size_of(block):
        made = tokens(Labels(y, tuple(map(str, range(500)))), block=block)
        return client_bytes(model_of(make_task(net, (16,), made)), toys.PLAN)

    logits = toys.PLAN.batch_size * 16 * 500 * 4
    assert 0.7 * logits < size_of(0) - size_of(4) < logits


def test_bytes_of_a_client_count_the_patches_of_a_convolution_by_products():
    def size_of(convolution):
        net = nets.simple_cnn(4).clone(kernels=kernels.choose("gpu", convolution))
        return client_bytes(model_of(make_task(net, (32, 32, 3), 4)), toys.PLAN)

    patches, activations = (toys.PLAN.batch_size * 28 * 28 * n * 4 for n in (5 * 5 * 3, 6))
    assert size_of("by_shape") - size_of("grouped") >= patches - activations
