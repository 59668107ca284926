"""pfl-research's benchmark: TinyLlama-1.1B on Alpaca, 1,000 rounds of 100 clients, server Adam.

python -m fedjax_lab.main --config=configs/pfl_alpaca.py --config.model.pretrained=FOLDER \
    --config.data.tokenizer=FOLDER --config.data.path=alpaca_data.json

FOLDER has the model in the hub's format. There, a user has Poisson(16) rows; here, the rows are
divided evenly among as many clients. Its server warms up for 50 rounds, then follows a cosine;
its Adam corrects the bias of the first rounds, which `fedopt` does not.
"""


def get_config(method="fedopt"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {
            "name": "instructions",
            "path": "alpaca_data.json",
            "tokenizer": "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
            "template": "alpaca",
            "length": 512,
        },
        "task": {"name": "tokens"},
        "partition": {"name": "iid", "num_clients": 3000},
        "model": {
            "name": "decoder",
            "width": 2048,
            "depth": 22,
            "heads": 32,
            "kv_heads": 4,
            "hidden": 5632,
            "param_dtype": "bfloat16",
            "remat": True,
        },
        "adapter": {"name": "lora", "rank": 8},
        "method": {"name": method, **({"server_lr": 0.01} if method == "fedopt" else {})},
        "local": {"lr": 0.01, "batch_size": 4, "clip": 1.0},
        "run": {
            "rounds": 1000,
            "eval_every": 50,
            "cohort": 100,
            **({"server_schedule": "cosine", "server_warmup": 50} if method == "fedopt" else {}),
        },
        "engine": {"dtype": "bfloat16"},
    }
