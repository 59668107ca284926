"""Writes small files in the formats of LEAF's preprocess.sh and of TensorFlow Federated."""

import json
from pathlib import Path

import numpy as np


def write_leaf(file: Path, users: dict) -> Path:
    """Writes a JSON file with the lists x and y of these users."""
    content = {
        "users": list(users),
        "num_samples": [len(data["y"]) for data in users.values()],
        "user_data": users,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))
    return file


def characters(count: int, labels: list[int], seed: int = 0) -> dict:
    """A user's images of FEMNIST: 784 gray levels, multiples of 1/255 as LEAF writes them."""
    levels = np.random.default_rng(seed).integers(0, 256, (count, 784))
    return {"x": (levels / 255).tolist(), "y": labels}


def write_femnist(folder: Path, highest: int = 61) -> Path:
    """Writes two users, split by example; a third has too few examples for LEAF's list of users."""
    for name, count in (("train", 3), ("test", 1)):
        users = {
            "f0001_02": characters(count, [highest, 3, 5][:count], count),
            "f0000_14": characters(count, [0, 1, 2][:count], 10 + count),
        }
        file = write_leaf(folder / name / f"all_data_0_{name}_9.json", users)
        content = json.loads(file.read_text())
        content["user_data"]["f0003_01"] = {"x": [], "y": []}
        file.write_text(json.dumps(content))
    return folder / "train" / "all_data_0_train_9.json"


COMMENTS = {  # sequences of 4 words, as LEAF's preprocess.py cuts and pads them
    "1": [[["<BOS>", "the", "cat", "the"], ["dog", "<EOS>", "<PAD>", "<PAD>"]]],
    "2": [[["<BOS>", "the", "bird", "<EOS>"]], [["<BOS>", "<EOS>", "<PAD>", "<PAD>"]]],
}


def write_reddit(folder: Path) -> Path:
    """Writes comments of two users; the second user's test file has a new word."""
    extra = {"subreddit": "a", "created_utc": "1", "score": 1, "count_tokens": []}
    train = {user: {"x": x, "y": [extra] * len(x)} for user, x in COMMENTS.items()}
    test = {"2": {"x": [[["<BOS>", "the", "whale", "<EOS>"]]], "y": [extra]}}
    write_leaf(folder / "test" / "reddit_0_test.json", test)
    return write_leaf(folder / "train" / "reddit_0_train.json", train)


def write_tweets(folder: Path) -> Path:
    """Writes rows of Sent140: number, date, query, user, text."""

    def row(user, text):
        return ["1467810369", "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", user, text]

    users = {
        "ann": {"x": [row("ann", "a good day"), row("ann", "a bad day")], "y": [1, 0]},
        "bob": {"x": [row("bob", "good good good")], "y": [1]},
    }
    return write_leaf(folder / "all_data" / "all_data.json", users)


def write_celeba(folder: Path) -> Path:
    """Writes images, and their names with the label of smiling as LEAF writes it: 0.0 or 1.0."""
    from PIL import Image

    pictures = folder / "raw" / "img_align_celeba"
    pictures.mkdir(parents=True)
    for number in range(1, 5):
        image = Image.new("RGB", (18, 22), (50 * number, 0, 0))
        image.save(pictures / f"{number:06}.png")
    write_leaf(folder / "test" / "t.json", {"7": {"x": ["000004.png"], "y": [1.0]}})
    users = {
        "9": {"x": ["000003.png"], "y": [0.0]},
        "7": {"x": ["000001.png", "000002.png"], "y": [1.0, 0.0]},
    }
    return write_leaf(folder / "train" / "t.json", users)


def write_hdf5(folder: Path, prefix: str, **splits: dict) -> Path:
    """Writes PREFIX_train.h5 and PREFIX_test.h5 with these users, {user: {field: values}}."""
    import h5py

    for split, users in splits.items():
        with h5py.File(folder / f"{prefix}_{split}.h5", "w") as file:
            for user, fields in users.items():
                for field, values in fields.items():
                    texts = isinstance(values[0], str)
                    kind = h5py.string_dtype() if texts else None
                    file.create_dataset(f"examples/{user}/{field}", data=values, dtype=kind)
    return folder / f"{prefix}_train.h5"


def write_fed_emnist(folder: Path) -> Path:
    """Writes two users of Federated EMNIST, each in both files."""

    def fields(count, seed):
        levels = np.random.default_rng(seed).integers(0, 256, (count, 28, 28))
        pixels = (levels / 255).astype(np.float32)
        return {"pixels": pixels, "label": np.arange(count, dtype=np.int32) + 9}

    train = {"f0001_02": fields(3, 1), "f0000_14": fields(2, 2)}
    test = {"f0001_02": fields(1, 3), "f0000_14": fields(1, 4)}
    return write_hdf5(folder, "fed_emnist", train=train, test=test)
