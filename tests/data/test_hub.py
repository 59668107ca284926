"""Data sets of Hugging Face's library, in the files that the library writes."""

import json

import numpy as np
import optional
import pytest
from inputs import complaint

from fedjax_lab.data.sources.hub import huggingface

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 5, 4, 3)).astype(np.uint8)
LABELS = [2, 0, 1, 1, 0, 2]
WRITERS = ["w7", "w3", "w7", "w3", "w9", "w7"]


@pytest.fixture(autouse=True)
def library(tmp_path, monkeypatch):
    """The library without a network, and with an empty cache."""
    made = optional.module("datasets")
    monkeypatch.setattr(made.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(made.config, "HF_HUB_OFFLINE", True)
    made.disable_progress_bars()
    return made


def table(library, rows=slice(None), pixels=PIXELS, **columns):
    from PIL import Image

    content = {
        "img": [Image.fromarray(image) for image in pixels][rows],
        "fine": LABELS[rows],
        "writer": WRITERS[rows],
        "file": [f"{row}.png" for row in range(6)][rows],
    }
    kinds = {
        "img": library.Image(),
        "fine": library.ClassLabel(names=["bee", "ant", "cat"]),
        "writer": library.Value("string"),
        "file": library.Value("string"),
    }
    return library.Dataset.from_dict(content | columns, features=library.Features(kinds))


def saved(library, folder, **splits):
    library.DatasetDict(splits).save_to_disk(folder)
    return str(folder)


def test_images_of_a_saved_data_set(library, tmp_path):
    parts = {"train": table(library, slice(4)), "test": table(library, slice(4, 6))}
    folder = saved(library, tmp_path / "toy", **parts)
    data = huggingface(dataset=folder, client="writer")
    assert np.array_equal(data.x, PIXELS) and data.x.dtype == np.uint8
    assert data.y.tolist() == LABELS and data.classes == ("bee", "ant", "cat")
    assert data.test.tolist() == [False] * 4 + [True] * 2
    assert [data.users[user] for user in data.client] == WRITERS
    assert data.client.dtype == data.y.dtype == data.domain.dtype == np.int32
    assert data.domains == ("toy",)
    listed = huggingface.listing(dataset=folder, domain="writer", size=8, color="gray")
    assert listed.x.shape == (6, 8, 8, 1) and listed.client is None
    assert [listed.domains[domain] for domain in listed.domain] == WRITERS
    assert listed.domains == ("w3", "w7", "w9")
    some = saved(library, tmp_path / "some", train=table(library).select([0, 5, 2]))
    data = huggingface(dataset=some, label="writer", domain="fine")
    assert data.domains == ("ant", "cat")  # those without examples are left out
    assert [data.domains[domain] for domain in data.domain] == ["cat", "cat", "ant"]


def test_data_sets_saved_without_splits_or_with_other_splits(library, tmp_path):
    whole = table(library)
    whole.save_to_disk(tmp_path / "one")
    one = huggingface(dataset=str(tmp_path / "one"), label="fine")
    assert np.array_equal(one.x, PIXELS) and not one.test.any()
    message = complaint(huggingface, dataset=str(tmp_path / "one"), subset="small")
    assert "has no configurations (config.data.subset='small')" in message
    folder = saved(library, tmp_path / "two", a=whole.select([5]), b=whole.select([0, 3]))
    two = huggingface(dataset=folder, train_split="b+a")
    assert np.array_equal(two.x, PIXELS[[0, 3, 5]]) and not two.test.any()
    by_writer = huggingface(dataset=folder, train_split="b", test_split="a", label="writer")
    assert by_writer.classes == ("w3", "w7") and by_writer.y.tolist() == [1, 0, 1]


@pytest.mark.parametrize("name", ["../outside.arrow", "/etc/hostname", "..", "a/../../b"])
def test_saved_data_sets_name_no_files_outside_of_their_folder(library, tmp_path, name):
    folder = saved(library, tmp_path / "toy", train=table(library))
    state = tmp_path / "toy" / "train" / "state.json"
    content = state.read_text()
    state.write_text(json.dumps({**json.loads(content), "_data_files": [{"filename": name}]}))
    said = complaint(huggingface, dataset=folder)
    assert f"(train/state.json names {name!r}, outside of it)" in said
    state.write_text(content)
    (tmp_path / "toy" / "dataset_dict.json").write_text(json.dumps({"splits": [name]}))
    assert f"(dataset_dict.json names {name!r}, outside of it)" in complaint(
        huggingface, dataset=folder
    )


def test_folders_of_parquet_and_image_files(library, tmp_path):
    from PIL import Image

    (tmp_path / "set" / "data").mkdir(parents=True)
    for split, rows in (("train", slice(4)), ("test", slice(4, 6))):
        table(library, rows).to_parquet(tmp_path / f"set/data/{split}-00000-of-00001.parquet")
    data = huggingface(dataset=str(tmp_path / "set"), client="writer")
    assert np.array_equal(data.x, PIXELS) and data.y.tolist() == LABELS
    assert data.test.tolist() == [False] * 4 + [True] * 2
    for row, label in enumerate(LABELS):
        folder = tmp_path / "images" / ("train" if row < 4 else "test") / f"class{label}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(PIXELS[row]).save(folder / f"{row}.png")
    data = huggingface(dataset=str(tmp_path / "images"))
    assert data.classes == ("class0", "class1", "class2") and data.test.sum() == 2
    for image, label in zip(data.x, data.y, strict=True):
        assert any(np.array_equal(image, PIXELS[row]) for row in np.flatnonzero(LABELS == label))


def test_texts_of_csv_files(tmp_path):
    """Integers and names are used as labels, although the file does not declare classes."""
    (tmp_path / "train.csv").write_text('text,label,by\n"One, two",4,a\ntwo three,0,b\n')
    (tmp_path / "test.csv").write_text("text,label,by\nthree,4,b\n")
    data = huggingface(dataset=str(tmp_path), client="by", text="text", tokenizer="words", length=3)
    assert data.x.shape == (3, 3) and data.x.dtype.kind == "i" and data.x[2].tolist()[:2] == [0, 0]
    assert data.x[2, 2] == data.x[1, 2] > 1
    assert data.y.tolist() == [1, 0, 1] and data.classes == ("0", "4")
    assert [data.users[user] for user in data.client] == ["a", "b", "b"]


def test_names_in_csv_files_are_the_text_of_their_cells(tmp_path):
    names = ["07", "7", "1.1", "1.10", "12345678901234567890", "12345678901234567891", "NA", "7 "]
    rows = "".join(f"good film,{i % 2},{name},0{i // 2}\n" for i, name in enumerate(names))
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.csv").write_text(f"text,label,by,patient\n{rows}")
    columns = {"client": "by", "group": "patient", "text": "text"}
    data = huggingface(dataset=str(tmp_path / "set"), **columns)
    assert [data.users[user] for user in data.client] == [name.strip() for name in names]
    assert len(data.users) == 7 and data.origin.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_each_word_is_an_example_of_next_word_prediction(library, tmp_path):
    rows = {"said": ["to be", "be or not", "not to be"], "role": ["king", "fool", "king"]}
    folder = saved(library, tmp_path / "toy", train=library.Dataset.from_dict(rows))
    settings = {"text": "said", "client": "role", "tokenizer": "words", "length": 4}
    data = huggingface(dataset=folder, task="next_word", **settings)
    words = " ".join(rows["said"]).split(" ")
    assert data.x.shape == (8, 4) and [data.classes[y] for y in data.y] == words
    assert [data.users[user] for user in data.client] == ["king"] * 2 + ["fool"] * 3 + ["king"] * 3
    unlabeled = "no column that is clearly the label"
    assert unlabeled in complaint(huggingface, dataset=folder, **settings)
    message = complaint(huggingface, dataset=folder, task="next_word")
    assert "which maps several words to one token" in message


def test_a_data_set_given_by_name_is_read_from_the_cache(library, tmp_path, monkeypatch):
    """The network is not used, even if it is enabled."""
    table(library).to_parquet(tmp_path / "toy" / "train.parquet")
    library.load_dataset(str(tmp_path / "toy"))
    (tmp_path / "cache" / "toy").rename(tmp_path / "cache" / "lab___toy")
    monkeypatch.setattr(library.config, "HF_HUB_OFFLINE", False)
    data = huggingface(dataset="lab/toy")
    assert np.array_equal(data.x, PIXELS) and data.domains == ("toy",)
    assert library.config.HF_HUB_OFFLINE is False


def test_an_unavailable_name_is_an_error():
    message = complaint(huggingface, dataset="lab/toy")
    assert "lab/toy cannot be read" in message and "a folder written by save_to_disk" in message
    assert "nor a possible name on the hub" in complaint(huggingface, dataset="/nowhere/at/all")
    assert "config.data.dataset is empty" in complaint(huggingface)
    assert "it is the name of a file format" in complaint(huggingface, dataset="csv")


WRONG = [  # (settings, words of the error)
    ({"train_split": "trian"}, "no split 'trian' (config.data.train_split); did you mean"),
    ({"test_split": "train"}, "split 'train' occur twice in config.data.train_split and"),
    ({"client": "writers"}, "no column 'writers' (config.data.client); did you mean 'writer'"),
    ({"image": "fine"}, "column fine (config.data.image) is not of type image"),
    ({"label": "img"}, "row 0, but needs only integers or only names"),
    ({"image": "img", "text": "file"}, "config.data.text are both set; set only one of them"),
    ({"color": "grey"}, "config.data.color cannot be 'grey'; did you mean 'gray'?"),
]


def test_settings_that_do_not_fit_the_data_are_errors(library, tmp_path):
    folder = saved(library, tmp_path / "toy", train=table(library))
    for settings, wanted in WRONG:
        assert wanted in complaint(huggingface, dataset=folder, **settings)


def test_an_ambiguous_or_missing_label_column_is_an_error(library, tmp_path):
    twice = table(library).map(lambda row: {"coarse": row["fine"]})
    twice = twice.cast_column("coarse", library.ClassLabel(names=["a", "b", "c"]))
    folder = saved(library, tmp_path / "toy", train=twice)
    message = complaint(huggingface, dataset=folder)
    assert "2 columns that could be the label" in message and "one of fine, coarse" in message
    assert huggingface(dataset=folder, label="coarse").classes == ("a", "b", "c")
    without = saved(library, tmp_path / "none", train=table(library).remove_columns("fine"))
    message = complaint(huggingface, dataset=without)
    assert "no column that is clearly the label" in message and "img, writer, file" in message


INVALID = [  # (column, its values, words of the error)
    (
        "fine",
        [0, -1, 1, 1, 1, 1],
        "label -1 in row 1 is not in 0 .. 2: if this split",
    ),
    ("fine", [0, None, 1, 1, 1, 1], "column fine is empty in row 1"),
    ("writer", ["a", "b", None, "c", "d", "e"], "column writer is empty in row 2"),
    ("img", [{"bytes": b"none", "path": None}] * 6, "image 0 is damaged or not an image"),
]


@pytest.mark.parametrize("column, values, wanted", INVALID, ids=range(len(INVALID)))
def test_rows_with_missing_or_invalid_values_are_errors(column, values, wanted, library, tmp_path):
    folder = saved(library, tmp_path / "toy", train=table(library, **{column: values}))
    assert wanted in complaint(huggingface, dataset=folder, client="writer")


def test_images_of_different_sizes_and_modes_must_be_converted(library, tmp_path):
    from PIL import Image

    def written(name, *images):
        rows = [*images] * (6 // len(images))
        return saved(library, tmp_path / name, train=table(library, img=rows))

    color, gray, small = PIXELS[0], PIXELS[1, :, :, 0], PIXELS[2, :3]
    color, gray, small = map(Image.fromarray, (color, gray, small))
    folder = written("sizes", color, gray, small)
    message = complaint(huggingface, dataset=folder)
    assert "image 2 has 4x3 pixels, but the first one has 4x5; resize all" in message
    assert huggingface(dataset=folder, size=8).x.shape == (6, 8, 8, 3)
    folder = written("modes", gray, color)
    mixed = "image 1 is in color, but the first one is gray"
    assert mixed in complaint(huggingface, dataset=folder, size=8)
    assert huggingface(dataset=folder, size=8, color="gray").x.shape == (6, 8, 8, 1)
    folder = written("deep", Image.fromarray(PIXELS[0, :, :, 0].astype(np.uint16)))
    assert "mode I;16, which is not supported" in complaint(huggingface, dataset=folder)
