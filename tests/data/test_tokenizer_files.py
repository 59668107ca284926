"""Tests the tokenizers of language models."""

import json
import sys

import chat_tokenizers
import optional
import pytest
from inputs import complaint

from fedjax_lab.data.formats import text_rows
from fedjax_lab.data.formats.tokenizer_files import BYTES, read

TEXTS = (
    chat_tokenizers.TEXT,
    "<|user|>\nGrüße, 你好 🙂 <think> 2026  x\n<|end|>",
    "don't\t\n  12,345",
    "",
)


def test_bytes_need_no_file_and_know_special_tokens():
    made = read(BYTES, (BYTES,))
    ids, ends = made.encode("<|user|>hé<|end|>")
    assert [made.tokens[id] for id in ids] == ["<|user|>", "<0x68>", "<0xC3>", "<0xA9>", "<|end|>"]
    assert ends == [8, 9, 10, 10, 17] and len(made.tokens) == 261
    assert [made.sizes[id] for id in ids] == [0, 1, 1, 1, 0]
    assert made.eos == "<|end|>" and made.tokens[made.pad] == "<|pad|>"


def test_a_tokenizer_json_is_read_with_its_settings(tmp_path):
    file = chat_tokenizers.write_json(tmp_path, pad_token="<|system|>", bos_token=None)
    made = read(str(file), ())
    assert made._replace(encode=None, decode=None) == read(str(tmp_path), ())._replace(
        encode=None, decode=None
    )
    assert made.eos == "<|end|>" and made.bos == "" and not made.starts
    assert made.template == chat_tokenizers.TEMPLATE and made.tokens[made.pad] == "<|system|>"
    assert set(made.special) == set(chat_tokenizers.SPECIAL)
    for text in TEXTS:
        ids, ends = made.encode(text)
        special = sum(text.count(token) * len(token) for token in made.special)
        assert sum(made.sizes[id] for id in ids) == len(text.encode()) - special
        assert ends == sorted(ends) and (not ids or ends[-1] == len(text))
    (tmp_path / "chat_template.jinja").write_text("another")
    assert read(str(file), ()).template == "another"


def test_a_tokenizer_begins_texts_as_its_file_says(tmp_path):
    processors = optional.module("tokenizers").processors
    Tokenizer = optional.module("tokenizers").Tokenizer
    file = chat_tokenizers.write_json(tmp_path, bos_token="<|system|>")
    made = Tokenizer.from_file(str(file))
    made.post_processor = processors.TemplateProcessing("<|system|> $A", None, [("<|system|>", 3)])
    made.save(str(file))
    assert read(str(file), ()).starts and read(str(file), ()).encode("hi")[0][0] != 3


@pytest.mark.parametrize("pre, digits", [("gpt-2", False), ("smollm", True)])
def test_a_gguf_file_gives_the_ids_of_the_tokenizer_json(pre, digits, tmp_path):
    optional.module("gguf")
    chat_tokenizers.write_json(tmp_path, digits)
    json_, gguf = (
        read(str(name), ())
        for name in (tmp_path, chat_tokenizers.write_gguf(tmp_path / "a.gguf", tmp_path, pre))
    )
    for text in TEXTS:
        assert json_.encode(text) == gguf.encode(text)
    assert json_._replace(encode=None, decode=None) == gguf._replace(encode=None, decode=None)


@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2"])
def test_numbers_are_split_as_the_kind_of_a_gguf_file_says(pre, tmp_path):
    optional.module("gguf")
    chat_tokenizers.write_json(tmp_path)
    made = read(str(chat_tokenizers.write_gguf(tmp_path / "a.gguf", tmp_path, pre)), ())
    together = "12" in [made.tokens[id] for id in made.encode("e\u0301 12")[0]]
    assert together == (pre == "llama-bpe")  # up to three digits
    composed = made.encode("e\u0301")[0] == made.encode("é")[0]
    assert composed == (pre == "qwen2")  # which normalizes texts


def test_other_kinds_and_damaged_files_are_a_one_line_error(tmp_path):
    optional.module("gguf")
    chat_tokenizers.write_json(tmp_path)
    file = chat_tokenizers.write_gguf(tmp_path / "a.gguf", tmp_path, "falcon")
    assert "is 'gpt2', 'falcon'; only 'gpt2' with gpt-2, smollm" in complaint(read, str(file), ())
    file.write_bytes(b"GGUF?")
    assert "is not a tokenizer (" in complaint(read, str(file), ())
    (tmp_path / "tokenizer_config.json").write_text("[]")
    assert "tokenizer_config.json cannot be read" in complaint(read, str(tmp_path), ())
    assert "did you mean 'bytes'?" in complaint(read, "byte", (BYTES,))
    assert "in the hub's cache" in complaint(read, "nobody/nothing@main", (BYTES,))


def test_a_model_in_the_hub_cache_is_found_by_its_name(tmp_path, monkeypatch):
    chat_tokenizers.write_json(tmp_path)
    asked = []

    def found(name, **settings):
        asked.append((name, settings))
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", found)
    assert read("owner/model@v2", ()).eos == "<|end|>"
    assert asked == [("owner/model", {"revision": "v2", "local_files_only": True})]


def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    (tmp_path / "a.gguf").write_bytes(b"")
    assert "fedjax_lab[llm]" in complaint(read, str(tmp_path / "a.gguf"), ())
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "fedjax_lab[llm]" in complaint(read, str(tmp_path), ())
    assert "fedjax_lab[text]" in complaint(text_rows.make_tokenizer, str(tmp_path), 9, [])


def test_sentencepiece_tokens_stand_for_their_words_and_bytes(tmp_path):
    tokenizers = optional.module("tokenizers")
    words = ["<unk>", "<s>", "<0x0A>", "\u2581hi", "é", "\u2581"]
    vocabulary = {word: id for id, word in enumerate(words)}
    model = tokenizers.models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True)
    made = tokenizers.Tokenizer(model)
    made.decoder = tokenizers.decoders.Sequence([tokenizers.decoders.Replace("\u2581", " ")])
    made.add_special_tokens(["<unk>", "<s>"])
    made.save(str(tmp_path / "tokenizer.json"))
    assert read(str(tmp_path), ()).sizes == (0, 0, 1, 3, 2, 1)
    whole = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**whole, "decoder": None}))
    assert read(str(tmp_path), ()).sizes is None
