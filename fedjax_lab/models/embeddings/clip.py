"""Embeddings of images, texts and prompts by a frozen CLIP, as in Client2Vec, cached on disk.

Needs the extra `clip`, whose tokenizer and image processor work without PyTorch, and weights that
are already on this machine: nothing is downloaded.
"""

import hashlib
import os
from collections.abc import Callable
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from tqdm import tqdm

from fedjax_lab.data.cache import cache_folder, checksum, load, save
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.formats.images import read, rgb, truncated_allowed, versions
from fedjax_lab.errors import BadInput
from fedjax_lab.models.clip_towers import (
    LEGACY_EOS,
    Settings,
    image_tower,
    read_settings,
    read_weights,
    text_tower,
)
from fedjax_lab.models.embeddings import Embeddings
from fedjax_lab.models.embeddings._prompts import example_prompts, is_text, label_prompts
from fedjax_lab.ranges import Positive, checked

VERSION = 1  # of the embeddings; increment it with every change that alters one
SHARD = 2048  # examples in a cache file; an interruption loses at most this many
NEEDED = ("config.json", "model.safetensors", "preprocessor_config.json")
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt")
REMEDY = "CLIP reads the original images of the data set; restore them"


@checked("embedding")
def clip(
    dataset: Dataset,
    *,
    folder: str = "",
    model: str = "openai/clip-vit-base-patch32@refs/pr/15",
    batch_size: Positive[int] = 64,
    normalize: bool = False,
) -> Embeddings:
    """Embeddings of the training examples, and of a prompt for each class, by CLIP.

    Images are preprocessed as the model requires, from their original files if the dataset has
    them. Texts (truncated to the context length) and prompts are embedded by the text tower. The
    embeddings are the features after the projection.

    folder: a folder with a model in the hub's format; empty: `model` is used.
    model: NAME or NAME@REVISION in the hub's cache ($HF_HUB_CACHE, $HF_HOME). The default has a
        revision because the main revision of that model has no model.safetensors.
    batch_size: the number of examples that are embedded at a time.
    normalize: scale the embeddings to norm 1.

    Embeddings are cached in $FEDJAX_LAB_CACHE, else in ~/.cache/fedjax_lab, under embeddings/,
    until the model or the examples change (for original files: their paths, sizes and times). An
    interrupted call is continued. Raises BadInput if anything is missing or damaged, or if the
    examples are neither images nor texts.
    """
    if not is_text(dataset) and not dataset.files:
        check_images(dataset.x)
    check_packages()
    where = find_model(folder, model)
    settings = read_settings(where)
    rows = np.flatnonzero(~dataset.test)
    of_model = model_digest(where)
    tokens = tokenizer(where, settings)
    if is_text(dataset):
        examples = _texts(dataset, rows, tokens)
    else:
        examples = _images(dataset, rows, preprocessor(where, settings))
    sides = (examples, _prompts(dataset, tokens))
    made = [_embed(side, of_model, where, settings, batch_size) for side in sides]
    if normalize:
        made = [features / np.linalg.norm(features, axis=1, keepdims=True) for features in made]
    everything = np.zeros((len(dataset.y), settings.projection_dim), np.float32)
    everything[rows] = made[0]
    return Embeddings(everything, made[1])


class Side(NamedTuple):
    """The inputs of one tower."""

    tower: Callable  # image_tower or text_tower
    size: int  # number of examples or labels
    content: dict[str, np.ndarray]  # arrays that identify the inputs, for the name in the cache
    read: Callable[[np.ndarray], np.ndarray]  # numbers [n] below size -> the tower's inputs [n, .]


def _prompts(dataset: Dataset, tokens: Callable) -> Side:
    prompts = np.array(label_prompts(dataset))
    return Side(
        text_tower, len(prompts), {"prompts": prompts}, lambda some: tokens(prompts[some].tolist())
    )


def _texts(dataset: Dataset, rows: np.ndarray, tokens: Callable) -> Side:
    content = {"x": dataset.x[rows], "alphabet": np.array(dataset.classes)}
    return Side(
        text_tower, len(rows), content, lambda some: tokens(example_prompts(dataset, rows[some]))
    )


def _images(dataset: Dataset, rows: np.ndarray, preprocess: Callable) -> Side:
    if dataset.files:
        files = [Path(dataset.files[row]) for row in rows]
        content = {"files": np.array(versions(files))}
    else:
        content = {"x": dataset.x[rows]}

    def pixels(number):
        if dataset.files:
            return preprocess(read(files[number], rgb, REMEDY))
        return preprocess(_as_image(dataset.x[rows[number]]))

    def inputs(some):
        with truncated_allowed(), ThreadPool() as threads:
            return np.stack(threads.map(pixels, some))

    return Side(image_tower, len(rows), content, inputs)


# The model's files.


def check_packages() -> None:
    """Raises BadInput unless the packages of the extra `clip` are installed."""
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # about a missing PyTorch
    try:
        import safetensors  # noqa: F401
        from transformers import CLIPImageProcessorPil, CLIPTokenizer  # noqa: F401
    except ImportError as error:
        reason = " ".join(str(error).split())[:200]
        remedy = "pip install 'fedjax_lab[clip]'"
        raise BadInput(f"a package is missing ({reason}): {remedy}") from error


def find_model(folder: str, model: str) -> Path:
    """The folder with the model's files: `folder`, or else the one in the hub's cache."""
    from huggingface_hub import snapshot_download

    name, _, revision = model.partition("@")
    fetch = f"hf download {name}" + (f" --revision {revision}" if revision else "")
    remedy = (
        f"fetch it with `{fetch} --include '*.json' --include '*.txt' --include model.safetensors`"
        " or name a folder with these files with --config.embedding.folder"
    )
    if folder:
        where = Path(folder).expanduser()
    else:
        try:
            where = Path(
                snapshot_download(
                    name,
                    revision=revision or None,
                    local_files_only=True,
                    allow_patterns=list(NEEDED),
                )
            )
        except (OSError, ValueError) as error:
            raise BadInput(f"{model} is not in the hub's cache: {remedy}") from error
    needed: tuple[str, ...] = (*NEEDED, "vocab.json", "merges.txt")
    if (where / "tokenizer.json").is_file():
        needed = NEEDED
    missing = [file for file in needed if not (where / file).is_file()]
    if missing:
        raise BadInput(f"{where} has no {missing[0]}: {remedy}")
    return where


def model_digest(where: Path) -> str:
    """A digest of all files that affect the embeddings."""
    digest = hashlib.sha256()
    for name in (*NEEDED, *TOKENIZER):
        if (where / name).is_file():
            with open(where / name, "rb") as file:
                digest.update(f"{name} {hashlib.file_digest(file, 'sha256').hexdigest()}".encode())
    return digest.hexdigest()


def tokenizer(where: Path, settings: Settings) -> Callable[[list[str]], np.ndarray]:
    """A function from n texts to tokens [n, context] int32, truncated or padded."""
    from transformers import CLIPTokenizer

    made = _from_files(CLIPTokenizer, where)
    s, size = settings.text, settings.text.max_position_embeddings

    def tokens(texts):
        ids = made(texts, padding="max_length", truncation=True, max_length=size)["input_ids"]
        ids = np.asarray(ids, np.int32)
        if ids.max() >= s.vocab_size:
            raise BadInput(f"{where}: token {ids.max()} is not below vocab_size {s.vocab_size}")
        if s.eos_token_id != LEGACY_EOS and not (ids == s.eos_token_id).any(1).all():
            raise BadInput(f"{where}: a text lacks config.json's eos_token_id, {s.eos_token_id}")
        return ids

    return tokens


def preprocessor(where: Path, settings: Settings) -> Callable:
    """A function from a PIL image to the image tower's pixels [H, W, channels] float32."""
    from transformers import CLIPImageProcessorPil

    made, s = _from_files(CLIPImageProcessorPil, where), settings.image
    expected = (s.num_channels, s.image_size, s.image_size)

    def pixels(image):
        values = np.asarray(made(image)["pixel_values"][0], np.float32)
        if values.shape != expected:
            shapes = f"{list(values.shape)}, not {list(expected)}"
            raise BadInput(f"{where}: preprocessor_config.json makes images {shapes}")
        return values.transpose(1, 2, 0)

    return pixels


def _from_files(kind, where: Path):
    try:
        return kind.from_pretrained(where, local_files_only=True)
    except Exception as error:  # transformers may raise any exception
        reason = " ".join(str(error).split())[:200]
        raise BadInput(f"{where} has no readable {kind.__name__} ({reason})") from error


# Images.


def check_images(x: np.ndarray) -> None:
    """Raises BadInput unless x holds images [R, H, W, 1 or 3], uint8 or from 0 to 1."""
    if x.ndim != 4 or x.shape[-1] not in (1, 3):
        raise BadInput(
            f"CLIP needs images or texts of characters, not examples of shape {list(x.shape[1:])}"
        )
    if x.dtype != np.uint8 and x.size and not (x.min() >= 0 and x.max() <= 1):
        raise BadInput(
            f"CLIP needs images in uint8 or from 0 to 1, not from {x.min():.4g} to {x.max():.4g}"
        )


def _as_image(x: np.ndarray):
    """A PIL image of one example."""
    from PIL import Image

    pixels = x if x.dtype == np.uint8 else np.rint(255 * x).astype(np.uint8)
    return Image.fromarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))


# Embedding.


def _embed(
    side: Side, of_model: str, where: Path, settings: Settings, batch_size: int
) -> np.ndarray:
    """Features [count, projection_dim] float32; shards in the cache are not computed again."""
    name = checksum({"model": np.array(f"{VERSION} {of_model}"), **side.content})[:16]
    folder = cache_folder() / "embeddings" / f"clip-{name}"
    made, encode = np.zeros((side.size, settings.projection_dim), np.float32), None
    with tqdm(total=side.size, desc="CLIP", unit=" examples", delay=2, disable=None) as bar:
        for start in range(0, side.size, SHARD):
            stop = min(start + SHARD, side.size)
            file = folder / f"{start}-{stop}.npz"
            kept = load(file)
            if kept is None:
                encode = encode or _encoder(side, where, settings, batch_size)
                kept = {"x": encode(np.arange(start, stop), bar)}
                save(file, kept)
            made[start:stop] = kept["x"]
            bar.update(stop - bar.n)
    return made


def _encoder(side: Side, where: Path, settings: Settings, batch_size: int) -> Callable:
    """A function from numbers [n] to their features [n, projection_dim], compiled once."""
    tower, example = side.tower(settings)
    params = jax.device_put(read_weights(where / "model.safetensors", tower, example))
    apply = jax.jit(lambda params, inputs: tower.apply({"params": params}, inputs))
    size = min(batch_size, side.size)

    def encode(rows, bar):
        made = []
        for batch in np.split(rows, range(size, len(rows), size)):
            inputs = np.zeros((size, *example.shape[1:]), example.dtype)
            inputs[: len(batch)] = side.read(batch)
            with jax.default_matmul_precision("highest"):  # float32 on GPUs too
                made.append(np.asarray(apply(params, inputs))[: len(batch)])
            bar.update(len(batch))
        return np.concatenate(made)

    return encode
