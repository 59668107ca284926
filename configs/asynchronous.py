"""Fashion-MNIST with clients of unlike speeds: virtual time, and asynchronous training.

python -m fedjax_lab.main --config=configs/asynchronous.py   # FedBuff, 10 clients at a time
python -m fedjax_lab.main --config=configs/asynchronous.py:fedasync --config.run.cohort=1
python -m fedjax_lab.main --config=configs/asynchronous.py:fedavg --config.clock.concurrency=0 \
    --config.run.cohort=10 --config.clock.over_selection=1.3          # synchronous rounds

100 clients with Dir(0.3) labels. A client's seconds for an example are log-normal with median 0.005
and sigma 1, its bandwidth with median 1 MB/s and sigma 0.6. The images come from Debian's package
dataset-fashion-mnist, or from the folder config.data.folder.
"""


def get_config(method="fedbuff"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {"name": "fashion_mnist"},
        "partition": {"name": "dirichlet", "num_clients": 100, "alpha": 0.3},
        "model": {"name": "mlp"},
        "method": {"name": method},
        "clock": {"name": "log_normal", "sigma": 1.0, "bandwidth": 1e6, "concurrency": 10},
        "local": {"lr": 0.05, "batch_size": 32},
        "run": {"rounds": 400, "cohort": 5, "eval_every": 10},
    }
