"""Run folders with made-up numbers, and calls of the command `report` on them."""

import json

from fedjax_lab.commands import report

ROUNDS = (5, 10, 15)
SCORES = {  # accuracy.mean after each of ROUNDS, by seed
    "fedavg": {0: (50, 60, 70), 1: (52, 63, 71), 2: (49, 66, 75)},
    "fedprox": {0: (55, 69, 72), 1: (50, 70, 74.5), 2: (54, 71, 77)},
}


def config(method="fedavg", seeds=(0,), data=None, partition=None, **settings):
    return {
        "data": {"name": "toy", "size": 8, "cache": "/here", "augment": "none", **(data or {})},
        "partition": {"name": "iid", "num_clients": 3, **(partition or {})},
        "method": {"name": method, **settings},
        "local": {"lr": 0.1},
        "run": {"rounds": ROUNDS[-1], "seed": 7},
        "seeds": list(seeds),
    }


def evaluation(seed, after, mean, seeds, stage="train"):
    """An evaluation of three clients, mean - 10 to mean + 10, with 1e6 bytes a round."""
    each = [mean - 10, mean, mean + 10]
    return {
        "round": after,
        "seed": seed,
        "stage": stage,
        "train_loss": 1.0,
        "accuracy": {"mean": mean, "worst10": mean - 10, "per_client": each},
        "domains": {"north": mean - 1, "south": mean + 1},
        "global": mean / 2,
        "bytes_up": int(0.75e6 * after),
        "bytes_down": int(0.25e6 * after),
        "seconds": 2.0 * after * seeds,
    }


def write(folder, scores, done=True, cut="", **settings):
    """Writes a run folder. scores: {seed: accuracy after each of ROUNDS}."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config(seeds=list(scores), **settings)))
    rows = [
        json.dumps(evaluation(seed, after, values[i], len(scores)))
        for i, after in enumerate(ROUNDS)
        for seed, values in scores.items()
        if i < len(values)
    ]
    (folder / "metrics.jsonl").write_text("\n".join(rows) + "\n" + cut)
    if done:
        (folder / "summary.json").write_text(json.dumps({"device": "1 x <cpu>"}))
    return folder


def rows_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def write_rows(folder, rows):
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def call(capsys, *arguments):
    """The output of a report that succeeds."""
    code = report.main([*map(str, arguments)])
    out, err = capsys.readouterr()
    assert code == 0 and not err, err
    return out


def refusal(capsys, *arguments):
    """The one-line error of a report that is rejected."""
    assert report.main([*map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert not out and err.startswith("error: ") and err.count("\n") == 1
    return err
