"""Times local training of two clients with LEAF's char_lstm beside PyTorch, taking turns.

    python launch/speed/lstm.py --torch=PYTHON [--batch=4,64] [--repeats=7] [--cpu]
                                  [--model=char_lstm]

PYTHON is the Python of an environment with PyTorch. Both train two clients on 80 characters for two
steps each in a round: this package on all cores, and PyTorch in a loop over the clients, with one
thread per core. Prints one line for each batch: examples per second of both, the best of all
rounds, and the median of the ratios of neighboring rounds (above 1: this package is faster).

--cpu  seconds of the processor instead of the clock, and one thread of PyTorch, for a machine that
       does other work too
"""

import argparse
import subprocess
import sys
import time

STEPS, CLIENTS, CLASSES = 2, 2, 80
SIZES = {"char_lstm": (80, 8, 256, 2, 0), "word_lstm": (20, 96, 670, 1, 96)}
# tokens of a text, sizes of an embedding and of the state, number of layers, size of projection


def main() -> None:
    """Print the table, or, as the process of PyTorch, answer each line with the seconds taken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch")
    parser.add_argument("--model", default="char_lstm", choices=SIZES)
    parser.add_argument("--batch", type=lambda s: [*map(int, s.split(","))], default=[4, 64])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--peer", action="store_true", help="be the process of PyTorch")
    args = parser.parse_args()
    clock = time.process_time if args.cpu else time.perf_counter
    if args.peer:
        _answer(_torch_round(args.model, args.batch[0], args.cpu), clock)
    elif not args.torch:
        parser.error("--torch=PYTHON is missing")
    else:
        for batch in args.batch:
            compare(args, batch, clock)


def compare(args, batch: int, clock) -> None:
    """Time both programs in turns, and print their line."""
    play = _our_round(args.model, batch)
    words = [args.torch, __file__, "--peer", f"--model={args.model}", f"--batch={batch}"]
    words += ["--cpu"] * args.cpu
    times = []
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
        for _ in range(args.repeats + 1):
            began = clock()
            play()
            ours = clock() - began
            peer.stdin.write("\n")
            peer.stdin.flush()
            times.append((ours, float(peer.stdout.readline())))
        peer.stdin.close()
    times = times[1:]  # without the warm-up
    count = CLIENTS * STEPS * batch
    best = [count / min(each) for each in zip(*times, strict=True)]
    ratios = sorted(theirs / ours for ours, theirs in times)
    print(
        f"{args.model}, batch {batch}: {best[0]:.0f} examples/s, PyTorch {best[1]:.0f};"
        f" ratio {ratios[len(ratios) // 2]:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
        flush=True,
    )


def _our_round(model, batch):
    import benchmark
    import strategies

    from fedjax_lab.engine.engine import Engine

    engine = Engine(benchmark.build(strategies.workload(model, batch, CLIENTS), "auto"))
    engine.compile()
    return lambda: engine.play(1)


def _torch_round(model, batch, one_thread):
    import torch
    from torch import nn

    if one_thread:
        torch.set_num_threads(1)
    tokens, embedding, width, depth, projection = SIZES[model]

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(CLASSES, embedding)
            self.lstm = nn.LSTM(embedding, width, depth, batch_first=True)
            between = [nn.Linear(width, projection)] if projection else []
            self.head = nn.Sequential(*between, nn.Linear(projection or width, CLASSES))

        def forward(self, x):
            return self.head(self.lstm(self.embed(x))[0][:, -1])

    net = Net()
    x = torch.randint(CLASSES, (CLIENTS, STEPS, batch, tokens))
    y = torch.randint(CLASSES, (CLIENTS, STEPS, batch))

    def play():
        for client in range(CLIENTS):
            for step in range(STEPS):
                nn.functional.cross_entropy(net(x[client, step]), y[client, step]).backward()
                with torch.no_grad():
                    for p in net.parameters():
                        p.add_(p.grad, alpha=-0.01)
                        p.grad = None

    return play


def _answer(play, clock):
    for _ in sys.stdin:
        began = clock()
        play()
        print(clock() - began, flush=True)


if __name__ == "__main__":
    if "--peer" not in sys.argv:
        from fedjax_lab.engine import parallel

        parallel.use_every_core()
    main()
