"""Instructions with responses, and conversations, for language models: JSON and Parquet files."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_lab.data import leaks
from fedjax_lab.data.dataset import Dataset
from fedjax_lab.data.declared import source
from fedjax_lab.data.formats import conversations, text_tables
from fedjax_lab.data.formats.columns import as_name, numbered
from fedjax_lab.data.formats.conversations import Form, Length, Message, Template, TrainOn
from fedjax_lab.data.formats.packing import packed
from fedjax_lab.errors import BadInput, nearest, quoted
from fedjax_lab.ranges import NotNegative

# The fields of the instruction, of what it is for, and of the response, in the published sets.
FORMS = (
    ("instruction", "input", "output"),  # Alpaca
    ("instruction", "context", "response"),  # Dolly
    ("question", "", "answer"),  # GSM8K
)
LISTS = ("messages", "conversations")  # fields with a list of messages
NONE = "none"  # the name of no field
ROLES = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "human": "user",  # ShareGPT's names
    "gpt": "assistant",
}


class Record(NamedTuple):
    """A conversation, with one or several responses."""

    messages: Sequence[Message]
    client: str = ""
    category: str = ""
    group: str = ""


@source()
def instructions(
    *,
    path: str = "",
    test_path: str = "",
    fields: str = "",
    client: str = "",
    category: str = "",
    group: str = "",
    tokenizer: str = "bytes",
    template: Template = "chat",
    train_on: TrainOn = "response",
    join_input: bool = False,
    length: Length = 512,
    vocabulary: NotNegative[int] = 0,
    packing: bool = False,
) -> Dataset:
    """x [R, T] int32, token ids, padded at the end; y [R, T], the token after each one, or -1.

    T is the number of tokens of the longest record, at most `length`. For the task `tokens`.

    path: a file .json (a list of records, or one a line), .jsonl, .ndjson or .parquet, or a folder
      with a file named train and optionally one named test. A record has the fields of Alpaca
      (instruction, input, output), Dolly (instruction, context, response) or GSM8K (question,
      answer), or a list `messages` or `conversations` of messages with a role and content.
    test_path: a file with test records; empty: the file test in the folder, if there is one.
    fields: other fields, as INSTRUCTION,RESPONSE or INSTRUCTION,INPUT,RESPONSE.
    client: the field with the user; empty: `client`, if the records have it; none: no field.
    category: the field with the domain; empty: `category`, if the records have it; none: no field.
    group: the field with groups of records that config.data.test never divides; empty: none.
    tokenizer: the model's tokenizer.json, or the folder that has it, with its
      tokenizer_config.json; its .gguf file; a model in the hub's cache; or bytes.
    template: chat, the tokenizer's own chat template; or the words of alpaca or vicuna.
    train_on: response: only tokens of responses are predicted; or all.
    join_input: whether an instruction and its input are joined by a space, as in OpenFedLLM.
    length: the largest number of tokens of a record; longer ones lose their end.
    vocabulary: the number of classes; 0: the tokenizer's tokens. Some models have a few more.
    packing: whether records of the same user and category share a row of up to `length` tokens,
      where no token sees another record. An example is then such a row. For decoder and gpt2.

    Records without a response in their tokens are left out, which the run's first lines say.
    Raises BadInput if anything is missing or invalid.
    """
    form = Form(tokenizer, template, train_on, join_input, length, vocabulary, packing)
    train, test = text_tables.splits(path, test_path, text_tables.OBJECTS)
    names = _names(fields, client, category, group)
    records = _records(train, names)
    others = _records(test, names) if test else []
    is_test = np.repeat([False, True], [len(records), len(others)])
    return dataset_of([*records, *others], is_test, form, str(train))


def dataset_of(records: Sequence[Record], test: np.ndarray, form: Form, where: str) -> Dataset:
    """The Dataset of records; `test` [number of records] marks those for testing."""
    for what in ("client", "category", "group"):
        if len({bool(getattr(record, what)) for record in records}) > 1:
            raise BadInput(f"{where}: only the training or only the test records have a {what}")
    made = conversations.rows([record.messages for record in records], form, where)
    records = conversations.kept_only(records, made.kept)
    domain, domains = numbered([record.category for record in records], where)
    dataset = Dataset(
        x=made.x,
        y=made.y,
        domain=domain,
        test=test[made.kept],
        classes=made.classes,
        domains=domains if any(domains) else ("instructions",),
        remarks=made.remarks,
        class_bytes=made.sizes,
    )
    if any(record.client for record in records):
        client, users = numbered([record.client for record in records], where)
        dataset = dataset._replace(client=client, users=users)
    if any(record.group for record in records):
        dataset = dataset._replace(origin=numbered([each.group for each in records], where)[0])
    if dataset.test.all():
        raise BadInput(f"{where} has no training records with a response")
    leaks.report(dataset)
    return _packed(dataset, form.length) if form.packing else dataset


def _packed(dataset, length):
    """The Dataset with several records of a user, a domain, a group and a split in each row."""
    facts = {"client": dataset.client, "domain": dataset.domain, "origin": dataset.origin}
    facts = {name: values for name, values in facts.items() if values is not None}
    together = np.stack([*facts.values(), dataset.test], 1)
    made = packed(dataset.x, dataset.y, np.unique(together, axis=0, return_inverse=True)[1], length)
    return dataset._replace(
        x=made.x,
        y=made.y,
        test=dataset.test[made.first],
        **{name: values[made.first] for name, values in facts.items()},
        remarks=(*dataset.remarks, made.remark),
    )


class Names(NamedTuple):
    """The names of fields that a config chooses; those that are empty have defaults."""

    forms: Sequence[tuple[str, str, str]]
    client: str
    category: str
    group: str


def _names(fields, client, category, group):
    parts = [name.strip() for name in fields.split(",")] if fields else []
    if len(parts) not in (0, 2, 3) or not all(parts[:1] + parts[-1:]):
        raise BadInput(
            "config.data.fields must be INSTRUCTION,RESPONSE or INSTRUCTION,INPUT,RESPONSE, got"
            f" {quoted(fields)}"
        )
    forms = [(parts[0], parts[1] if parts[2:] else "", parts[-1])] if parts else FORMS
    return Names(forms, client, category, group)


def _records(file: Path, names: Names) -> list[Record]:
    """The records of a file."""
    rows = text_tables.objects(file)
    client, category = (
        "" if name == NONE else name or key * any(key in row for row in rows)
        for name, key in ((names.client, "client"), (names.category, "category"))
    )
    made = []
    for number, row in enumerate(rows, 1):
        facts = [
            _field(file, number, row, name, key)
            for name, key in ((client, "client"), (category, "category"), (names.group, "group"))
        ]
        made.append(Record(_messages(file, number, row, names.forms), *facts))
    return made


def _field(file, number, row, name, key):
    """The value of a field that a record must have, as text; "" if no field is named.

    key: the setting that names the field.
    """
    if not name:
        return ""
    value = as_name(_text(file, number, row, name))
    if not value:
        what = f"an empty {quoted(name)}; fill it in"
        if name not in row:
            what = f"no {quoted(name)}; {nearest(name, row)}"
        raise BadInput(f"{file}: record {number} has {what}, or --config.data.{key}={NONE}")
    return value


def _messages(file, number, row, forms):
    """The messages of a record. Raises BadInput for an unknown form."""
    for asked, given, said in forms:
        if asked in row and said in row:
            texts = [_text(file, number, row, name) for name in (asked, given, said)]
            return [Message("user", *texts[:2]), Message("assistant", texts[2])]
    listed = next((row[name] for name in LISTS if isinstance(row.get(name), list)), None)
    if listed is None:
        known = " or ".join(f"{asked} and {said}" for asked, _, said in forms)
        raise BadInput(
            f"{file}: record {number} has the fields {', '.join(row)}, but needs {known}, or a list"
            " messages; name others with --config.data.fields=INSTRUCTION,RESPONSE"
        )
    return [_message(file, number, each) for each in listed]


def _message(file, number, message):
    """A message with a role and content, or with `from` and `value` as ShareGPT has it."""
    if not isinstance(message, dict):
        raise BadInput(f"{file}: a message of record {number} is not an object")
    keys = ("from", "value") if "from" in message else ("role", "content")
    role, content = (_text(file, number, message, key) for key in keys)
    if role not in ROLES:
        near = nearest(role, ROLES)
        raise BadInput(f"{file}: record {number} has a message of the role {quoted(role)}; {near}")
    return Message(ROLES[role], content)


def _text(file, number, row, name):
    """A field as text; missing and null ones are empty."""
    value = row.get(name) if name else ""
    return "" if value is None else text_tables.as_text(file, number, name, value)
