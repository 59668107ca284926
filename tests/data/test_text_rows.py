"""Texts as rows of token ids."""

import json

import numpy as np
import pytest
from inputs import complaint

from fedjax_lab.data import text_rows
from fedjax_lab.data.text_rows import examples_of_texts, make_tokenizer, next_words, padded


def write_tokenizer(folder):
    """A tokenizer.json as transformers write it: [UNK] 0, hi 1, you 2."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    model = models.WordLevel({"[UNK]": 0, "hi": 1, "you": 2}, unk_token="[UNK]")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def test_hashed_words_are_the_same_everywhere_and_always():
    """The numbers are CRC-32's, so that no run depends on Python's hash seed."""
    x = examples_of_texts(["Hello, world!", "hello"], "hash", 100, 4)
    assert x.tolist() == [[18, 78, 27, 79], [0, 0, 0, 18]]


def test_the_most_frequent_words_have_ids_and_others_are_unknown():
    tokenizer = make_tokenizer("words", 4, ["b b a a c", "A d"])
    assert tokenizer.words == ("<padding>", "<unknown>", "a", "b") and tokenizer.size == 4
    assert tokenizer.encode("c b A e") == [1, 3, 2, 1]
    assert make_tokenizer("words", 50, ["b a"]).size == 4  # as many as there are


def test_a_tokenizer_of_transformers_keeps_its_ids_after_the_two_special_ones(tmp_path):
    file = write_tokenizer(tmp_path)
    for name in (str(tmp_path), str(file)):
        assert examples_of_texts(["hi you there"], name, 9, 4).tolist() == [[0, 3, 4, 1]]
    assert make_tokenizer(str(file), 9, []).words[3:] == ("hi", "you")


def test_rows_are_cut_or_padded_in_front():
    x = padded([[5, 6, 7], [8], []], 2, 10)
    assert x.tolist() == [[5, 6], [0, 8], [0, 0]] and x.dtype == np.int16
    assert padded([[40_000]], 1, 40_001).dtype == np.int32


def test_each_word_is_an_example_of_the_words_before_it():
    x, y, row = next_words([[5, 6, 7, 8], [], [9]], 2, 10)
    assert x.tolist() == [[0, 0], [0, 5], [5, 6], [6, 7], [0, 0]]
    assert y.tolist() == [5, 6, 7, 8, 9] and row.tolist() == [0, 0, 0, 0, 2]
    assert next_words([], 2, 10)[0].shape == (0, 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("hash", 2, 4), "config.data.vocabulary must be from 3 to 2**24, got 2"),
        (("hash", 2**25, 4), "config.data.vocabulary must be from 3 to 2**24, got 33554432"),
        (("hash", 9, 0), "config.data.length must be above 0, got 0"),
        (("hsah", 9, 4), "nor a folder that has one; did you mean 'hash'?"),
    ],
)
def test_what_cannot_be_is_told(arguments, said):
    assert said in complaint(examples_of_texts, ["a"], *arguments)


def test_rows_that_do_not_fit_in_memory_are_one_line():
    message = complaint(examples_of_texts, ["a b"], "hash", 9, 2**40)
    assert message.startswith("the array of token ids does not fit in memory: ")
    assert message == complaint(next_words, [[2]], 2**40, 9)


def test_a_damaged_tokenizer_is_one_line(tmp_path):
    file = write_tokenizer(tmp_path)
    whole = json.loads(file.read_text())
    del whole["model"]["vocab"]["[UNK]"]
    file.write_text(json.dumps(whole))
    assert "failed on a text (" in complaint(examples_of_texts, ["there"], str(file), 9, 4)
    whole["model"]["vocab"]["hi"] = 2**31
    file.write_text(json.dumps(whole))
    assert "is not a tokenizer (it has 2147483649 tokens" in complaint(
        make_tokenizer, str(file), 9, []
    )
    file.write_bytes(file.read_bytes()[:40])
    assert f"{file} is not a tokenizer" in complaint(make_tokenizer, str(file), 9, [])


def test_ids_survive_as_floats():
    """On the way to a model examples are float32, which tells whole numbers up to 2**24 apart."""
    last = np.array([text_rows.LARGEST - 1, text_rows.LARGEST - 2], np.int32)
    assert last.astype(np.float32).astype(np.int32).tolist() == last.tolist()
