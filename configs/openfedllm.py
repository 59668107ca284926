"""OpenFedLLM: Llama-2-7B in 8 bits on 20,000 rows of Alpaca-GPT4, 200 rounds of two clients.

python -m fedjax_lab.main --config=configs/openfedllm.py --config.model.pretrained=FOLDER \
    --config.data.tokenizer=FOLDER --config.data.path=alpaca_gpt4_20k.json

FOLDER has the model in the hub's format. The 20 clients are IID.
"""


def get_config(method="fedit"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {
            "name": "instructions",
            "path": "alpaca_gpt4_20k.json",
            "tokenizer": "meta-llama/Llama-2-7b-hf",
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
            "hidden": 11008,
            "param_dtype": "bfloat16",
            "remat": True,
        },
        "adapter": {
            "name": "lora",
            "rank": 32,
            "alpha": 64.0,
            "targets": "q,v",
            "dropout": 0.05,
            "bits": 8,
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
