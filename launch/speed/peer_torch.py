"""Times a plain PyTorch loop over the sampled clients, the form of most published code.

    python launch/speed/peer_torch.py --workload=W1 [--rounds=9] [--threads=1] [--device]

Needs torch and numpy (measured with torch 2.13.0 on a CPU). torch is not a dependency of this
project, so run this script in a separate environment. Prints one JSON line: the median over
`--rounds` rounds, after 3 rounds of warm-up, without evaluation. Without `--threads` PyTorch uses
one thread per core; if other programs use the cores too, its threads wait for each other, and small
models are much faster with one thread. With `--device` data and models are on a GPU, and a round
ends when the GPU has finished it.
"""

import argparse
from collections.abc import Iterable, Sequence

try:
    import torch
    from torch import Tensor, nn
    from workloads import WORKLOADS, Workload, load, measure, report, shares
except ModuleNotFoundError as error:
    raise SystemExit(f"peer_torch.py needs `pip install torch numpy`: {error}") from error


def block(channels_in: int, channels_out: int, padding: int | str) -> list[nn.Module]:
    """A 5x5 convolution, ReLU and 2x2 max-pooling."""
    conv = nn.Conv2d(channels_in, channels_out, 5, padding=padding)
    return [conv, nn.ReLU(), nn.MaxPool2d(2)]


def cnn(padding: int | str, features: int) -> nn.Module:
    """McMahan's CNN with "same" or no padding; `features` is the input size of its dense layers."""
    head = [nn.Flatten(), nn.Linear(features, 512), nn.ReLU(), nn.Linear(512, 10)]
    return nn.Sequential(*block(1, 32, padding), *block(32, 64, padding), *head)


def pfl_cnn() -> nn.Module:
    """The CNN of pfl-research's CIFAR-10 benchmark."""
    convs = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)]
    dense = [nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)]
    return nn.Sequential(*convs, nn.Dropout(0.25), nn.Flatten(), *dense)


def mlp() -> nn.Module:
    """A perceptron with 64 inputs, 64 hidden units and 10 classes."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


MODELS = {
    "mcmahan_cnn": lambda: cnn("same", 64 * 7 * 7),
    "mlp": mlp,
    "pfl_cnn": pfl_cnn,
    "pfllib_cnn": lambda: cnn(0, 64 * 4 * 4),
}


def split(work: Workload) -> list[tuple[Tensor, Tensor]]:
    """The images (channels first) and labels of each client."""
    x = torch.as_tensor(work.x, device=torch.get_default_device()).movedim(-1, 1)
    y = torch.as_tensor(work.y, device=torch.get_default_device()).long()
    rows_of = [torch.as_tensor(rows, device=torch.get_default_device()) for rows in work.rows]
    return [(x[rows].contiguous(), y[rows]) for rows in rows_of]


def train(model: nn.Module, x: Tensor, y: Tensor, work: Workload) -> None:
    """Local SGD on one client's data, with a fresh shuffle for each epoch."""
    for _ in range(work.epochs):
        order = torch.randperm(len(y))
        for xb, yb in zip(x[order].split(work.batch), y[order].split(work.batch), strict=True):
            nn.functional.cross_entropy(model(xb), yb).backward()
            step(model.parameters(), work.lr)


@torch.no_grad()
def step(parameters: Iterable[Tensor], lr: float) -> None:
    """One step of plain SGD; with the MLP a round takes a third less time than torch.optim.SGD."""
    for p in parameters:
        p.add_(p.grad, alpha=-lr)
        p.grad = None


def round_of(work: Workload, model: nn.Module):
    """Make the function that trains one round: (global weights, client ids) -> global weights."""
    clients = split(work)
    local = list(model.parameters())

    def play_round(weights: Sequence[Tensor], ids) -> list[Tensor]:
        total = [torch.zeros_like(w) for w in weights]
        for i, share in zip(ids, shares(work, ids).tolist(), strict=True):
            with torch.no_grad():
                for p, w in zip(local, weights, strict=True):
                    p.copy_(w)
            train(model, *clients[i], work)
            with torch.no_grad():
                for t, p in zip(total, local, strict=True):
                    t.add_(p, alpha=share)
        if torch.get_default_device().type == "cuda":
            torch.cuda.synchronize()
        return total

    return play_round


def main() -> None:
    """Measure the workload of the command line and print its line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", required=True, choices=WORKLOADS)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--device", action="store_true", help="use a GPU")
    parser.add_argument("--threads", type=int, help="PyTorch's threads; default: one per core")
    flags = parser.parse_args()
    if flags.threads:
        torch.set_num_threads(flags.threads)
    torch.manual_seed(0)
    if flags.device:
        torch.set_default_device("cuda")
    work = load(flags.workload)
    model = MODELS[work.model]().train()
    weights = [p.detach().clone() for p in model.parameters()]
    report(
        flags.workload,
        "torch loop",
        measure(work, round_of(work, model), weights, flags.rounds),
    )


if __name__ == "__main__":
    main()
