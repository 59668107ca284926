"""Prompts: the sentences that represent labels and texts (Client2Vec, section 3, appendix D.1)."""

import numpy as np

from fedjax_lab.data.dataset import Dataset

VOWELS = "aeiou"


def label_prompts(dataset: Dataset) -> list[str]:
    """A prompt for each class of images, or for each next character of texts."""
    if is_text(dataset):
        return [f"Character {character}" for character in dataset.classes]
    return [f"A photo of {article(name)} {name}" for name in map(plain, dataset.classes)]


def example_prompts(dataset: Dataset, rows: np.ndarray) -> list[str]:
    """A prompt for each of these rows of a dataset of texts."""
    alphabet = np.array(dataset.classes)
    return [f"The next character of {''.join(alphabet[text])}" for text in dataset.x[rows]]


def is_text(dataset: Dataset) -> bool:
    """Whether examples are sequences of characters, given by their numbers among the classes."""
    of_bytes = dataset.x.ndim == 2 and dataset.x.dtype == np.int8
    single = all(len(name) == 1 for name in dataset.classes)
    return of_bytes and single and any(name.isalpha() for name in dataset.classes)  # or 0/1 columns


def is_tokens(dataset: Dataset) -> bool:
    """Whether examples are sequences of words, given by token ids; 0 is padding."""
    return dataset.x.ndim == 2 and dataset.x.dtype in (np.int16, np.int32)


def article(name: str) -> str:
    """The article of a name, chosen by its first letter as in the paper."""
    return "an" if name[:1].lower() in VOWELS else "a"


def plain(name: str) -> str:
    """The name of a class as words: `ice_cream` becomes `ice cream`."""
    return name.replace("_", " ")
