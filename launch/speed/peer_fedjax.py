"""Times FedJAX's published `fed_avg` with its jit backend, used as its own examples use it.

    python launch/speed/peer_fedjax.py --workload=W2 [--rounds=9]

Needs the following packages in a separate environment with Python 3.11. They are not dependencies
of this project, which requires newer versions of some of them:

    pip install fedjax==0.0.17 jax==0.4.30 jaxlib==0.4.30 dm-haiku==0.0.13 "numpy<2"

Prints one JSON line: the median over `--rounds` rounds, after 3 rounds of warm-up, without
evaluation. FedJAX fills a client's last short batch with further examples of that client; they
take time, but do not count as examples here.
"""

import argparse

try:
    import fedjax
    import haiku as hk
    import jax
    from fedjax.algorithms import fed_avg
    from workloads import Workload, load, measure, report
except ModuleNotFoundError as error:
    raise SystemExit(f"peer_fedjax.py needs the packages in its docstring: {error}") from error


def mlp() -> list:
    """The layers of a perceptron with 64 inputs, 64 hidden units and 10 classes."""
    return [hk.Flatten(), hk.Linear(64), jax.nn.relu, hk.Linear(10)]


def mcmahan_cnn() -> list:
    """The layers of McMahan's CNN: two 5x5 convolutions with pooling, and two dense layers."""
    layers = []
    for channels in (32, 64):
        layers += [hk.Conv2D(channels, 5), jax.nn.relu, hk.MaxPool(2, 2, "SAME", channel_axis=-1)]
    return [*layers, hk.Flatten(), hk.Linear(512), jax.nn.relu, hk.Linear(10)]


MODELS = {"mlp": mlp, "mcmahan_cnn": mcmahan_cnn}


def model_of(work: Workload) -> fedjax.Model:
    """The workload's network as a FedJAX model."""
    layers = MODELS[work.model]
    return fedjax.create_model_from_haiku(
        transformed_forward_pass=hk.transform(lambda batch: hk.Sequential(layers())(batch["x"])),
        sample_batch={"x": work.x[:1], "y": work.y[:1]},
        train_loss=lambda batch, out: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], out),
    )


def algorithm_of(work: Workload, model: fedjax.Model) -> fedjax.FederatedAlgorithm:
    """FedJAX's federated averaging: local SGD, and the size-weighted mean on the server."""
    batches = fedjax.ShuffleRepeatBatchHParams(work.batch, num_epochs=work.epochs)
    with fedjax.for_each_client_backend("jit"):  # FedJAX's default
        return fed_avg.federated_averaging(
            grad_fn=fedjax.model_grad(model),
            client_optimizer=fedjax.optimizers.sgd(work.lr),
            server_optimizer=fedjax.optimizers.sgd(1.0),
            client_batch_hparams=batches,
        )


def round_of(work: Workload, algorithm: fedjax.FederatedAlgorithm):
    """Make the function that runs one round: ((server, key), ids) -> (server, key)."""
    held = {i: {"x": work.x[rows], "y": work.y[rows]} for i, rows in enumerate(work.rows)}
    data = fedjax.InMemoryFederatedData(held)

    def play_round(state, ids):
        server, key = state
        key, use = jax.random.split(key)
        keys = jax.random.split(use, len(ids))
        sampled = data.get_clients(ids.tolist())
        clients = [(i, held_by, k) for (i, held_by), k in zip(sampled, keys, strict=True)]
        server, diagnostics = algorithm.apply(server, clients)
        jax.block_until_ready((server.params, diagnostics))
        return server, key

    return play_round


def main() -> None:
    """Measure the workload of the command line and print its line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", required=True, choices=["W1", "W2", "W3", "W4"])
    parser.add_argument("--rounds", type=int, default=9)
    flags = parser.parse_args()
    work = load(flags.workload)
    model = model_of(work)
    algorithm = algorithm_of(work, model)
    init_key, key = jax.random.split(jax.random.PRNGKey(0))
    state = algorithm.init(model.init(init_key)), key
    measured = measure(work, round_of(work, algorithm), state, flags.rounds)
    report(flags.workload, "fedjax fed_avg", measured)


if __name__ == "__main__":
    main()
