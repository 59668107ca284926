"""How far apart the digit domains are: a net trained on each, tested on all.

    python launch/domain_gap.py [--epochs=30] [--seed=0]

Five clients with one domain each and the method `local`; prints accuracy in percent as Markdown,
rows trained on, columns tested on.
"""

import argparse

from fedjax_lab import experiment
from fedjax_lab.config import resolve
from fedjax_lab.engine import Engine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    config = {
        "data": {"name": "digit_domains"},
        "partition": {"name": "by_domain", "num_clients": 5},
        "model": {"name": "digit_cnn"},
        "method": {"name": "local"},
        "local": {"optimizer": "adam", "lr": 1e-3},
        "run": {"rounds": args.epochs},
    }
    built = experiment.build(resolve(config), [args.seed])
    engine = Engine(built.simulation)
    engine.compile()
    while engine.played < args.epochs:
        engine.play(args.epochs - engine.played)
    correct, total = engine.evaluate()[0].global_test  # clients x domains
    domains = built.dataset.domains
    print("| | " + " | ".join(domains) + " |")
    print("|---" * (len(domains) + 1) + "|")
    for name, row in zip(domains, 100 * correct / total, strict=True):
        print(f"| {name} | " + " | ".join(f"{cell:.1f}" for cell in row) + " |")


if __name__ == "__main__":
    main()
