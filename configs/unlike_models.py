"""Clients with eight unlike nets, in the manner of HtFLlib's group HtFE8 (arXiv:2506.03954).

python -m fedjax_lab.main --config=configs/unlike_models.py
python -m fedjax_lab.main --config=configs/unlike_models.py:fedproto --seeds=0,1,2
python -m fedjax_lab.main --config=configs/unlike_models.py:local \
    --config.data.name=digit_domains --config.model.kinds=mlp,simple_cnn       # minutes on a CPU

The nets are pfllib_cnn, vgg9 (in the place of GoogLeNet, which this package does not have),
mobilenet_v2, and ResNets with 18, 34, 50, 101 and 152 layers. Their features are pooled to 512
numbers. Equally many clients have each net. FML's shared model is pfllib_cnn. A run with all eight
was stopped after 40 minutes on a busy CPU with two cores, before its rounds were compiled
(docs/unlike_clients.md). configs/unlike_digits.py is a small sister.
"""

from fedjax_lab.models.resnet import BasicBlock, Bottleneck, ResNet, cifar_stem


def resnet34(num_classes):
    """ResNet-34 for small images."""
    return ResNet(num_classes, cifar_stem, BasicBlock, (3, 4, 6, 3), name="resnet34")


def resnet101(num_classes):
    """ResNet-101 for small images."""
    return ResNet(num_classes, cifar_stem, Bottleneck, (3, 4, 23, 3), name="resnet101")


def resnet152(num_classes):
    """ResNet-152 for small images."""
    return ResNet(num_classes, cifar_stem, Bottleneck, (3, 8, 36, 3), name="resnet152")


OTHERS = ("vgg9", "mobilenet_v2", "resnet18", resnet34, "resnet50", resnet101, resnet152)


def get_config(method="lg_fedavg"):
    """fedjax_lab/experiment/keys.py has all keys and their defaults."""
    return {
        "data": {"name": "cifar10"},
        "partition": {"name": "dirichlet", "num_clients": 24, "alpha": 0.1},
        "model": {"name": "pfllib_cnn", "kinds": OTHERS},
        "method": {"name": method},
        "local": {"lr": 0.01, "batch_size": 10, "epochs": 1},
        "run": {"rounds": 100, "eval_every": 10},
        "engine": {"strategy": "sequential", "seeds": "sequential"},
    }
