"""Small tokenizers of language models, as a tokenizer.json or a GGUF file."""

import json

import optional

TEXT = "The capital of France is Paris. Say hi to the user, 12 times! the cap is of the user"
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
SPECIAL = ["<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]


def write_json(folder, digits=False, template=TEMPLATE, **settings):
    """Writes a tokenizer.json of a byte-level BPE with its tokenizer_config.json."""
    tokenizers = optional.module("tokenizers")
    before, made = tokenizers.pre_tokenizers, tokenizers.Tokenizer(tokenizers.models.BPE())
    level = before.ByteLevel(add_prefix_space=False)
    made.pre_tokenizer = before.Sequence([before.Digits(individual_digits=True), level])
    if not digits:
        made.pre_tokenizer = level
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=SPECIAL,
        initial_alphabet=before.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([TEXT], trainer)
    made.add_tokens(["<think>"])
    made.save(str(folder / "tokenizer.json"))
    facts = {"eos_token": {"content": "<|end|>"}, "chat_template": template, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(facts))
    return folder / "tokenizer.json"


def write_gguf(file, folder, pre):
    """Writes the tokenizer of a folder to a GGUF file, as llama.cpp's conversion does."""
    gguf = optional.module("gguf")
    whole = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = whole["model"]["vocab"]
    added = {each["content"]: each for each in whole["added_tokens"]}
    vocabulary |= {name: each["id"] for name, each in added.items()}
    tokens = sorted(vocabulary, key=vocabulary.get)
    special = [added[token]["special"] if token in added else None for token in tokens]
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([{True: 3, False: 4, None: 1}[each] for each in special])
    writer.add_token_merges([" ".join(merge) for merge in whole["model"]["merges"]])
    writer.add_eos_token_id(vocabulary["<|end|>"])
    writer.add_chat_template(TEMPLATE)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return file
