"""A pretrained vision model, of which only the head and the last two blocks are trained.

python -m fedjax_lab.main --config=configs/fine_tune.py --config.model.pretrained=FILE.safetensors
python -m fedjax_lab.main --config=configs/fine_tune.py --config.model.name=vit \
    --config.adapter.name=lora --config.adapter.targets=qkv --config.adapter.rank=4

Without a file the frozen part is random. FILE.safetensors has the weights of torchvision or timm.
"""


def get_config(method="fedavg"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {"name": "digit_domains", "normalize": "imagenet"},
        "partition": {"name": "by_domain", "num_clients": 10},
        "model": {"name": "resnet18"},
        "adapter": {"name": "frozen", "layers": "BasicBlock_6,BasicBlock_7,head"},
        "method": {"name": method},
        "local": {"lr": 0.01, "momentum": 0.9, "head_factor": 10.0, "batch_size": 32},
        "run": {"rounds": 20, "eval_every": 5},
    }
