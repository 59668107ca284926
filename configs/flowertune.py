"""FlowerTune's leaderboard, general NLP: Mistral-7B-v0.3 in 4 bits on Alpaca-GPT4, 200 rounds.

python -m fedjax_lab.main --config=configs/flowertune.py --config.model.pretrained=FOLDER \
    --config.data.tokenizer=FOLDER --config.data.path=alpaca_gpt4_data.json

FOLDER has the model in the hub's format. The 20 clients are IID, and two of them train in a round.
"""


def get_config(method="fedit"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {
            "name": "instructions",
            "path": "alpaca_gpt4_data.json",
            "tokenizer": "mistralai/Mistral-7B-v0.3",
            "template": "alpaca",
            "join_input": True,
            "length": 512,
        },
        "task": {"name": "tokens"},
        "partition": {"name": "iid", "num_clients": 20},
        "model": {
            "name": "decoder",
            "width": 4096,
            "depth": 32,
            "heads": 32,
            "kv_heads": 8,
            "hidden": 14336,
            "rope_base": 1e6,
            "param_dtype": "bfloat16",
            "remat": True,
        },
        "adapter": {
            "name": "lora",
            "rank": 32,
            "alpha": 64.0,
            "targets": "q,v",
            "dropout": 0.075,
            "bits": 4,
        },
        "method": {"name": method},
        "local": {
            "optimizer": "adamw",
            "lr": 5e-5,
            "schedule": "cosine",
            "lr_end": 0.02,
            "steps": 10,
            "batch_size": 16,
            "accumulate": 4,
        },
        "run": {"rounds": 200, "eval_every": 20, "cohort": 2},
        "engine": {"dtype": "bfloat16"},
    }
