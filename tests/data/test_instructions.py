"""Tests instructions with responses: files, templates, labels, and the generated set."""

import functools
import itertools
import json

import chat_tokenizers
import numpy as np
import optional
import pytest
from inputs import complaint

from fedjax_lab.data.formats import conversations, tokenizer_files
from fedjax_lab.data.formats.conversations import Form, Message
from fedjax_lab.data.sources.generated_instructions import TASKS, generated_instructions
from fedjax_lab.data.sources.instruction_set import instruction_set
from fedjax_lab.data.sources.instructions import instructions

optional.module("jinja2")
ALPACA = [
    {"instruction": "Say hi", "input": "to Ann", "output": "Hi, Ann!", "client": "b"},
    {"instruction": "Say ho", "input": "", "output": "Höö", "client": "a"},
]
DOLLY = {"instruction": "Name it", "context": "a cat", "response": "cat", "category": "open_qa"}
TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Ho"},
    {"role": "user", "content": "Bye"},
    {"role": "assistant", "content": "So long"},
]


def write(file, records, lines=False):
    text = "\n".join(map(json.dumps, records)) if lines else json.dumps(records, indent=1)
    file.write_text(text)
    return str(file)


def shown(dataset, ids):
    """The text of token ids of `bytes`."""
    names = [dataset.classes[id] for id in ids]
    joined = b"".join(
        bytes([int(name[1:-1], 16)]) if name.startswith("<0x") else name.encode() for name in names
    )
    return joined.decode()


def text_and_labels(dataset):
    """For each row its text without padding, and the text that is to be predicted."""
    texts = [shown(dataset, row).replace("<|pad|>", "") for row in dataset.x]
    return texts, [shown(dataset, row[row >= 0]) for row in dataset.y]


def test_rows_are_the_text_of_the_template_and_labels_the_responses(tmp_path):
    made = instructions(path=write(tmp_path / "a.json", ALPACA))
    texts, labels = text_and_labels(made)
    assert texts[0] == "<|user|>Say hi\n\nto Ann<|end|><|assistant|>Hi, Ann!<|end|>"
    assert texts[1] == "<|user|>Say ho<|end|><|assistant|>Höö<|end|>"
    assert labels == ["Hi, Ann!<|end|>", "Höö<|end|>"]
    assert made.users == ("a", "b") and made.client.tolist() == [1, 0]
    assert made.domains == ("instructions",) and not made.test.any()
    assert made.x.dtype == made.y.dtype == np.int32 and made.x.shape == made.y.shape
    counted = np.asarray(made.y >= 0)
    rows, places = np.nonzero(counted)
    assert (made.y[rows, places] == made.x[rows, places + 1]).all()
    assert sum(made.class_bytes[made.y[counted]]) == len("Hi, Ann!Höö".encode())


def test_groups_of_records_are_not_packed_together(tmp_path):
    records = [{**ALPACA[0], "patient": f" {i % 2}"} for i in range(4)]
    path = write(tmp_path / "a.json", records)
    assert instructions(path=path, group="patient").origin.tolist() == [0, 1, 0, 1]
    made = instructions(path=path, group="patient", packing=True)
    assert made.origin.tolist() == [0, 1] and made.users == ("b",)


def test_all_tokens_but_the_first_can_be_predicted(tmp_path):
    path = write(tmp_path / "a.json", ALPACA[:1])
    texts, labels = text_and_labels(instructions(path=path, train_on="all"))
    assert "<|user|>" + labels[0] == texts[0]


def test_the_words_of_alpaca_and_vicuna(tmp_path):
    path = write(tmp_path / "a.jsonl", ALPACA, lines=True)
    texts, labels = text_and_labels(instructions(path=path, template="alpaca"))
    assert texts == [
        "Below is an instruction that describes a task, paired with an input that provides further"
        " context. Write a response that appropriately completes the request.\n\n### Instruction:\n"
        "Say hi\n\n### Input:\nto Ann\n\n### Response:Hi, Ann!<|end|>",
        "Below is an instruction that describes a task. Write a response that appropriately"
        " completes the request.\n\n### Instruction:\nSay ho\n\n### Response:Höö<|end|>",
    ]
    assert labels == ["Hi, Ann!<|end|>", "Höö<|end|>"]
    made = instructions(path=path, template="alpaca", join_input=True)
    assert "describes a task. Write" in text_and_labels(made)[0][0]
    assert "### Instruction:\nSay hi to Ann\n\n### Response:" in text_and_labels(made)[0][0]
    path = write(tmp_path / "b.json", [{"messages": TURNS[1:]}])
    texts, labels = text_and_labels(instructions(path=path, template="vicuna"))
    assert texts == [
        "A chat between a curious user and an artificial intelligence assistant. The assistant"
        " gives helpful, detailed, and polite answers to the user's questions. USER: Hi ASSISTANT:"
        " Ho<|end|>USER: Bye ASSISTANT: So long<|end|>"
    ]
    assert labels == ["Ho<|end|>So long<|end|>"]
    said = complaint(instructions, path=path, template="alpaca")
    assert "template=alpaca takes one instruction" in said


def test_every_turn_of_the_assistant_is_counted(tmp_path):
    shared = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]
    records = [{"messages": TURNS}, {"conversations": shared}]
    made = instructions(path=write(tmp_path / "a.json", records))
    texts, labels = text_and_labels(made)
    assert texts[0].startswith("<|system|>Be brief.<|end|><|user|>Hi<|end|><|assistant|>Ho<|end|>")
    assert labels == ["Ho<|end|>So long<|end|>", "Ho<|end|>"]


def test_records_are_cut_and_left_out_and_counted(tmp_path):
    long = {"instruction": "x" * 50, "output": "never seen"}
    empty = {"instruction": "a", "output": " "}
    path = write(tmp_path / "a.json", [{"instruction": "a", "output": "b" * 50}, long, empty])
    made = instructions(path=path, length=20)
    texts, labels = text_and_labels(made)
    assert texts == ["<|user|>a<|end|><|assistant|>" + "b" * 16] and labels == ["b" * 16]
    assert made.remarks == (
        "tokens: 20.0 a record (the longest has 20), of which 16.0 are predicted",
        "2 of 3 records are longer than config.data.length: cut",
        "2 of 3 records are left out: they have no response",
    )
    said = complaint(instructions, path=write(tmp_path / "b.json", [long, empty]), length=20)
    assert said.startswith(
        f"{tmp_path / 'b.json'}: none of 2 records has a response within 20 tokens: "
    )


def test_categories_and_test_files(tmp_path):
    write(tmp_path / "train.jsonl", [DOLLY, {**DOLLY, "category": "chat"}], lines=True)
    write(tmp_path / "test.json", [{**DOLLY, "response": "dog"}])
    made = instructions(path=str(tmp_path))
    assert made.domains == ("chat", "open_qa") and made.domain.tolist() == [1, 0, 1]
    assert made.test.tolist() == [False, False, True] and made.client is None
    write(tmp_path / "test.json", [{"instruction": "a", "output": "b"}])
    said = complaint(instructions, path=str(tmp_path))
    assert "only the training or only the test records have a category" in said
    own = {"q": "1+1", "a": 2, "who": "Ann"}
    path = write(tmp_path / "own.json", [own, {"question": "2+2", "answer": "4", "who": "Bo"}])
    said = complaint(instructions, path=path, fields="q,a")
    assert "record 2 has the fields question, answer, who, but needs q and a" in said
    made = instructions(path=write(tmp_path / "own.json", [own]), fields="q,a", client="who")
    assert text_and_labels(made)[1] == ["2<|end|>"] and made.users == ("Ann",)


@pytest.mark.parametrize(
    "records, settings, said",
    [
        ([{"text": "a"}], {}, "record 1 has the fields text, but needs instruction and output"),
        ([{**DOLLY, "category": ""}], {}, "record 1 has an empty 'category'; fill it in"),
        ([{**DOLLY, "category": None}], {}, "or --config.data.category=none"),
        ([DOLLY], {"client": "user"}, "record 1 has no 'user'; "),
        ([DOLLY], {"fields": "response"}, "config.data.fields must be INSTRUCTION,RESPONSE"),
        ([DOLLY], {"vocabulary": 260}, "config.data.vocabulary=260 is below the 261 tokens"),
        ([DOLLY], {"template": "llama"}, "config.data.template cannot be 'llama'; "),
        ([DOLLY], {"length": 1}, "config.data.length must be at least 2"),
        ([{"messages": ["a"]}], {}, "a message of record 1 is not an object"),
        ([{"messages": [{"role": "bot", "content": "a"}]}], {}, "a message of the role 'bot'; "),
        ([{"messages": TURNS[:2]}], {}, "none of 1 records has a response"),
        ([["a"]], {}, "cannot be read (an element of its list is not a JSON object)"),
        ([{"instruction": ["a"], "output": "b"}], {}, "'instruction' of row 1 is not text"),
    ],
)
def test_bad_records_and_settings_are_a_one_line_error(records, settings, said, tmp_path):
    assert said in complaint(instructions, path=write(tmp_path / "a.json", records), **settings)


def test_a_vocabulary_may_have_more_tokens_than_the_tokenizer(tmp_path):
    made = instructions(path=write(tmp_path / "a.json", [DOLLY]), vocabulary=264)
    assert made.classes[-2:] == ("<262>", "<263>") and len(made.class_bytes) == 264


def test_published_sets_map_their_fields(tmp_path):
    question = {"question": "1+1?", "answer": "2"}
    write(tmp_path / "train.jsonl", [question], lines=True)
    write(tmp_path / "test.jsonl", [question, question], lines=True)
    made = instruction_set(dataset="gsm8k", folder=str(tmp_path))
    assert made.test.tolist() == [False, True, True] and text_and_labels(made)[1][0] == "2<|end|>"
    card = {"instruction": "Answer truthfully", "input": "What is a cell?", "output": "A unit"}
    write(tmp_path / "medical_meadow_wikidoc_medical_flashcards.json", [card])
    made = instruction_set(dataset="medical_flashcards", folder=str(tmp_path))
    assert text_and_labels(made)[0] == ["<|user|>What is a cell?<|end|><|assistant|>A unit<|end|>"]
    said = complaint(instruction_set, dataset="doly", folder=str(tmp_path))
    assert "did you mean 'dolly'?" in said


def test_packing_puts_whole_records_of_a_user_into_common_rows(tmp_path):
    """A row begins each record with -1 - id; a test record is never beside a training record."""
    make = functools.partial(generated_instructions, users=4, records=12, length=120)
    alone, made = make(), make(packing=True)

    def records(dataset):
        found = []
        for x, y, *facts in zip(*(dataset[:4]), dataset.client, strict=True):
            starts = [*np.flatnonzero(x < 0), len(x)] if (x < 0).any() else [0, len(x)]
            for first, end in itertools.pairwise(starts):
                used = first + np.flatnonzero(y[first:end] >= 0)[-1] + 1
                ids = np.where(x < 0, -1 - x, x)[first:used]
                found.append((*map(int, facts), tuple(ids), tuple(y[first:used])))
        return sorted(found)

    assert records(made) == records(alone)
    assert len(made.x) < 0.7 * len(alone.x) and made.x.shape[1] <= 120
    assert (made.x[:, 0] < 0).all() and made.x.max() < len(made.classes)
    assert made.remarks[-1].startswith(f"packed: {len(alone.x)} records in {len(made.x)} rows, ")
    path = write(tmp_path / "a.json", [DOLLY, {**DOLLY, "category": "chat"}, DOLLY, DOLLY])
    made = instructions(path=path, packing=True, length=40)
    assert (made.x < 0).sum(1).tolist() == [2, 1, 1] and made.domain.tolist() == [1, 0, 1]


# Chat templates.


def rows(tokenizer, *messages, template="chat"):
    form = Form(str(tokenizer), template, "response", False, 99, 0)
    made = conversations.rows([[Message(*each) for each in messages]], form, "")
    return made, [made.classes[id] for id in made.y[0] if id >= 0]


def test_a_chat_template_is_that_of_transformers(tmp_path):
    transformers = optional.module("transformers")
    chat_tokenizers.write_json(tmp_path, eos_token="<|end|>")
    loaded = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    made, labels = rows(tmp_path, *(each.values() for each in TURNS))
    ids = loaded.apply_chat_template(TURNS, return_dict=False)
    last = len(ids) - 1  # the template has a line break after the last turn
    assert loaded.decode(ids[last:]) == "\n" and made.x[0].tolist() == ids[:last]
    said = [loaded.decode(loaded.convert_tokens_to_ids([each])) for each in labels]
    assert "".join(said) == "Ho<|end|>So long<|end|>"


def test_a_chat_template_is_needed(tmp_path):
    chat_tokenizers.write_json(tmp_path, template="")
    said = complaint(rows, tmp_path, ("user", "Hi"), ("assistant", "Ho"))
    assert "has no chat template: put the model's tokenizer_config.json or chat_template.j" in said


def test_a_tokenizer_needs_an_end_of_text(tmp_path):
    chat_tokenizers.write_json(tmp_path, eos_token=None)
    said = complaint(rows, tmp_path, ("user", "Hi"), ("assistant", "Ho"), template="vicuna")
    assert "names no end of text: put the model's tokenizer_config.json" in said


def test_a_token_across_a_border_is_of_the_response(tmp_path):
    chat_tokenizers.write_json(tmp_path)
    tokenizer = tokenizer_files.read(str(tmp_path), ())

    def counted(*pieces):
        ids, counted = conversations.tokens([*pieces], tokenizer)
        return [tokenizer.tokens[id] for id in ids[counted]]

    assert counted(("of ", False), ("the user", True)) == ["Ġthe", "Ġuser"]
    assert counted(("of", True), (" ", False), ("the user", False)) == ["of"]
    assert counted(("of t", True), ("he user", False)) == ["of", "Ġthe"]
    assert len(counted(("of", False), ("\N{GRINNING FACE}", True), ("the", False))) == 4  # bytes


# Generated instructions.


def test_generated_instructions_have_right_answers():
    made = generated_instructions(users=9, records=20)
    texts, labels = text_and_labels(made)
    assert set(made.domains) == set(TASKS) and len(made.users) == 9
    for text, label, domain in zip(texts, labels, made.domain, strict=True):
        asked = text.removeprefix("<|user|>").partition("<|end|>")[0]
        words = asked.partition(": ")[2].split()
        right = {
            "copy": lambda words: " ".join(words),
            "reverse": lambda words: " ".join(reversed(words)),
            "sort": lambda words: " ".join(sorted(words)),
            "count": lambda words: str(len(words)),
            "first": lambda words: words[0],
        }
        task = made.domains[domain]
        if task in right:
            assert label == right[task](words) + "<|end|>"
        elif task == "sum":
            _, a, _, b = asked.split()
            assert label == f"{int(a) + int(b)}<|end|>"
        else:
            assert len(label.split()) == len(words) == 3
    shares = np.bincount(made.client[made.test], minlength=9) / np.bincount(made.client)
    assert (shares <= 0.2).all() and (shares > 0.1).all()


def test_generated_instructions_are_the_same_for_a_seed_and_follow_its_settings():
    make = functools.partial(generated_instructions, users=4, records=9)
    assert make().fingerprint() == make().fingerprint() != make(seed=1).fingerprint()
    even = make(alpha=1e5, seed=2)
    mixtures = [np.bincount(even.domain[even.client == user], minlength=7) for user in range(4)]
    assert all((mixture > 0).sum() > 3 for mixture in mixtures)
    assert "config.data.records must be at least 5" in complaint(generated_instructions, records=4)
