"""Tests the conversion of texts to rows of token ids."""

import json
from functools import partial

import numpy as np
from inputs import complaint
from token_rows import examples_of_texts

from fedjax_lab.data.formats import text_rows
from fedjax_lab.data.formats.text_rows import make_tokenizer, next_words, padded


def write_tokenizer(folder):
    """Writes a tokenizer.json in the format of transformers: [UNK] 0, hi 1, you 2."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    model = models.WordLevel({"[UNK]": 0, "hi": 1, "you": 2}, unk_token="[UNK]")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def test_hashed_words_have_the_same_ids_in_every_process():
    """The ids are computed with CRC-32, so that no run depends on Python's hash seed."""
    x = examples_of_texts(["Hello, world!", "hello"], "hash", 100, 4)
    assert x.tolist() == [[18, 78, 27, 79], [0, 0, 0, 18]]


def test_the_most_frequent_words_have_ids_and_others_are_unknown():
    tokenizer = make_tokenizer("words", 4, ["b b a a c", "A d"])
    assert tokenizer.words == ("<padding>", "<unknown>", "a", "b") and tokenizer.size == 4
    assert tokenizer.encode("c b A e") == [1, 3, 2, 1]
    assert make_tokenizer("words", 50, ["b a"]).size == 4  # two special ids and two words


def test_ids_of_a_transformers_tokenizer_follow_the_two_special_ids(tmp_path):
    file = write_tokenizer(tmp_path)
    for name in (str(tmp_path), str(file)):
        assert examples_of_texts(["hi you there"], name, 9, 4).tolist() == [[0, 3, 4, 1]]
    assert make_tokenizer(str(file), 9, []).words[3:] == ("hi", "you")


def test_rows_are_truncated_at_the_end_or_padded_in_front():
    x = padded([[5, 6, 7], [8], []], 2, 10)
    assert x.tolist() == [[5, 6], [0, 8], [0, 0]] and x.dtype == np.int16
    assert padded([[40_000]], 1, 40_001).dtype == np.int32
    last = np.arange(text_rows.LARGEST - 2, text_rows.LARGEST)  # reaches a model as float32
    assert last.astype(np.float32).astype(np.int32).tolist() == last.tolist()


def test_each_word_is_the_label_of_the_words_before_it():
    x, y, row = next_words([[5, 6, 7, 8], [], [9]], 2, 10)
    assert x.tolist() == [[0, 0], [0, 5], [5, 6], [6, 7], [0, 0]]
    assert y.tolist() == [5, 6, 7, 8, 9] and row.tolist() == [0, 0, 0, 0, 2]
    assert next_words([], 2, 10)[0].shape == (0, 2)


def test_invalid_or_too_large_arguments_are_a_one_line_error():
    error = partial(complaint, examples_of_texts, ["a b"])
    assert "nor a folder that has one; did you mean 'hash'?" in error("hsah", 9, 4)
    message = error("hash", 9, 2**40)
    assert message.startswith("the token ids do not fit in memory: ")
    assert message == complaint(next_words, [[2]], 2**40, 9)


def test_a_damaged_tokenizer_is_a_one_line_error(tmp_path):
    file = write_tokenizer(tmp_path)
    whole = json.loads(file.read_text())
    del whole["model"]["vocab"]["[UNK]"]
    file.write_text(json.dumps(whole))
    assert "failed on a text (" in complaint(examples_of_texts, ["there"], str(file), 9, 4)
    whole["model"]["vocab"]["hi"] = 2**31
    file.write_text(json.dumps(whole))
    many = "is not a tokenizer (it has 2147483649 tokens"
    assert many in complaint(make_tokenizer, str(file), 9, [])
    file.write_bytes(file.read_bytes()[:40])
    assert f"{file} is not a tokenizer" in complaint(make_tokenizer, str(file), 9, [])
