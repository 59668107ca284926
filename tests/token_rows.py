"""Texts as rows of token ids."""

from fedjax_lab.data.formats import text_rows


def examples_of_texts(texts, tokenizer, vocabulary, length):
    made = text_rows.make_tokenizer(tokenizer, vocabulary, texts)
    return text_rows.padded([made.encode(text) for text in texts], length, made.size)
