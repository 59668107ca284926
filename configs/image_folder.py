"""Images of your own in folders: CLASS/IMAGE, DOMAIN/CLASS/IMAGE, or with train and test above.

python -m fedjax_lab.main --config=configs/image_folder.py --config.data.folder=FOLDER
python -m fedjax_lab.main --config=configs/image_folder.py:fedbn --config.data.folder=FOLDER \
    --config.partition.name=by_domain --config.partition.num_clients=3
"""


def get_config(method="fedavg"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {"name": "image_folders", "folder": "", "size": 32},
        "partition": {"name": "iid", "num_clients": 10},
        "model": {"name": "simple_cnn"},
        "method": {"name": method},
        "local": {"lr": 0.01, "momentum": 0.9, "batch_size": 32, "epochs": 1},
        "run": {"rounds": 50, "eval_every": 5},
    }
