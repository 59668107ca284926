"""Fashion-MNIST on 100 clients, 10 a round, for comparing compressed uploads.

python -m fedjax_lab.main --config=configs/fashion_mnist_compressed.py \
    --config.compression.name=top_k --config.compression.share=0.01
python launch/measure.py compression     # the table of docs/transforms.md

The images come from Debian's package dataset-fashion-mnist, or from the folder config.data.folder.
"""


def get_config(method="fedavg"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {"name": "fashion_mnist"},
        "partition": {"name": "dirichlet", "num_clients": 100, "alpha": 0.5},
        "model": {"name": "mlp"},
        "method": {"name": method},
        "local": {"lr": 0.1, "batch_size": 32, "epochs": 1},
        "run": {"cohort": 10, "rounds": 300, "eval_every": 10},
    }
