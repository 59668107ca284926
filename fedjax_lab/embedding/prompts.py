"""The sentences that stand for labels and texts (Client2Vec, section 3 and appendix D.1)."""

import numpy as np

from fedjax_lab.data.dataset import Dataset

VOWELS = "aeiou"


def of_labels(dataset: Dataset) -> list[str]:
    """One for each class: of an image's, or of the next character of a text."""
    if is_text(dataset):
        return [f"Character {character}" for character in dataset.classes]
    return [f"A photo of {article(name)} {name}" for name in map(plain, dataset.classes)]


def of_examples(dataset: Dataset, rows: np.ndarray) -> list[str]:
    """One for each of these rows of a dataset of texts."""
    alphabet = np.array(dataset.classes)
    return [f"The next character of {''.join(alphabet[text])}" for text in dataset.x[rows]]


def is_text(dataset: Dataset) -> bool:
    """Whether examples are texts of characters: numbers of these, which are the classes."""
    return dataset.x.ndim == 2 and dataset.x.dtype == np.int8


def is_tokens(dataset: Dataset) -> bool:
    """Whether examples are texts of words: token ids, of which 0 is padding."""
    return dataset.x.ndim == 2 and dataset.x.dtype in (np.int16, np.int32)


def article(name: str) -> str:
    """Chosen by the first letter, as in the paper."""
    return "an" if name[:1].lower() in VOWELS else "a"


def plain(name: str) -> str:
    """A class as words: `ice_cream` is an ice cream."""
    return name.replace("_", " ")
