"""Tokenizers of language models: a tokenizer.json, a GGUF file, or bytes, which need no file.

A tokenizer.json of transformers is read by the package `tokenizers`; the tokenizer_config.json and
the chat_template.jinja beside it name its special tokens and its chat template. A GGUF file holds
all of these. https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import json
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedjax_lab.data import safe
from fedjax_lab.errors import BadInput, nearest, quoted

MODEL_FILE, CONFIG, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
LARGEST = 2**24 - 2  # so that float32 represents all ids exactly, and two more
OTHER = "name another one with --config.data.tokenizer"
BYTES = "bytes"
# The special tokens of BYTES, which come before the 256 bytes, and its chat template.
BYTES_SPECIAL = ("<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
BYTES_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# What splits a text before its bytes are merged: GGUF's name of it, and the patterns that the
# original tokenizer.json has. "" is the one of GPT-2, which is built into `tokenizers`.
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {
    "gpt-2": "",
    "smollm": "",
    "llama-bpe": WORDS + r"\p{N}{1,3}" + REST,
    "qwen2": WORDS + r"\p{N}" + REST,
}
CONTROL, USER_DEFINED, UNUSED = 3, 4, 5  # types of tokens in a GGUF file


class ModelTokenizer(NamedTuple):
    """The tokenizer of a language model."""

    encode: Callable[[str], tuple[list[int], list[int]]]
    # text -> ids, and where in the text each token ends; special tokens may be part of the text
    tokens: tuple[str, ...]  # the name of each id
    sizes: tuple[int, ...] | None  # bytes of text of each token, 0 if special; None: unknown
    special: tuple[str, ...]  # tokens that are no text, such as the end of a turn
    eos: str = ""  # the token at the end of a text; "" if the tokenizer names none
    bos: str = ""  # the token at the beginning
    starts: bool = False  # whether a text begins with it
    pad: int = 0
    template: str = ""  # a chat template in Jinja
    unknown: int | None = None  # the id of unknown words
    decode: Callable[[Sequence[int]], str] = str  # ids -> text, without special tokens


def read(name: str, built_in: Collection[str], extra: str = "llm") -> ModelTokenizer:
    """The tokenizer of this name. Raises BadInput if there is none or if it is damaged.

    name: "bytes"; a tokenizer.json, or a folder that has one; a .gguf file; or the name of a model
      in the hub's cache, as OWNER/NAME or OWNER/NAME@REVISION.
    built_in: names that are valid instead, for the message.
    extra: the extra of this package that has the package `tokenizers`.
    """
    if name == BYTES and name in built_in:
        return _byte_tokenizer()
    file = _file(name, built_in)
    is_gguf = file.suffix == ".gguf"
    with safe.reading(file, OTHER, "is not a tokenizer", extra="llm" if is_gguf else extra):
        return _gguf_tokenizer(file) if is_gguf else _json_tokenizer(file)


def _file(name, built_in):
    """The file of a tokenizer. Raises BadInput if there is none."""
    path = Path(name).expanduser()
    if not path.exists():
        path = _cached(name) or path
    file = path / MODEL_FILE if path.is_dir() else path
    if not file.exists():
        raise BadInput(
            f"config.data.tokenizer={quoted(name)} is neither a {MODEL_FILE} of transformers, a"
            f" .gguf file, nor a model in the hub's cache, nor a folder that has one;"
            f" {nearest(name, built_in)}"
        )
    return file


def _cached(name):
    """The folder of a model in the hub's cache; None if it is not there."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w.-]+)?", name):
        return None
    try:
        from huggingface_hub import snapshot_download

        name, _, revision = name.partition("@")
        return Path(snapshot_download(name, revision=revision or None, local_files_only=True))
    except (ImportError, OSError, ValueError):
        return None


def _byte_tokenizer():
    names = (*BYTES_SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)))
    first, special = len(BYTES_SPECIAL), "|".join(map(re.escape, BYTES_SPECIAL))

    def encode(text):
        ids, ends, place = [], [], 0
        for part in re.split(f"({special})", text):
            for unit in [part] if part in BYTES_SPECIAL else part:
                place += len(unit)
                if unit in BYTES_SPECIAL:
                    new = [BYTES_SPECIAL.index(unit)]
                else:
                    new = [first + byte for byte in unit.encode(errors="surrogatepass")]
                ids += new
                ends += [place] * len(new)
        return ids, ends

    def decode(ids):
        return bytes(id - first for id in ids if id >= first).decode(errors="replace")

    sizes = (0,) * first + (1,) * 256
    return ModelTokenizer(
        encode,
        names,
        sizes,
        BYTES_SPECIAL,
        eos=BYTES_SPECIAL[1],
        template=BYTES_TEMPLATE,
        decode=decode,
    )


def _json_tokenizer(file):
    """The tokenizer of a tokenizer.json, with the settings in the files beside it."""
    from tokenizers import Tokenizer

    content = safe.content(file).decode()
    made, decoder = Tokenizer.from_str(content), json.dumps(json.loads(content).get("decoder"))
    settings = _settings(file.with_name(CONFIG))
    beside = file.with_name(TEMPLATE)
    template = settings.get("chat_template") or ""
    if beside.exists():
        template = safe.content(beside).decode()
    elif not isinstance(template, str):  # several templates, by name
        template = {each["name"]: each["template"] for each in template}.get("default", "")
    named = {key: _content(settings.get(f"{key}_token")) for key in ("eos", "bos", "pad")}
    bos, unknown = made.token_to_id(named["bos"]), getattr(made.model, "unk_token", None)
    starts = bos is not None and made.encode("").ids[:1] == [bos]
    added = made.get_added_tokens_decoder()
    kind = next((kind for kind, word in KINDS.items() if word in decoder), "")
    return _made(
        file,
        made,
        special={id for id, token in added.items() if token.special},
        literal=set(added),
        kind=kind,
        eos=named["eos"],
        bos=named["bos"],
        starts=starts,
        pad=made.token_to_id(named["pad"]) or 0,
        template=template,
        unknown=None if unknown is None else made.token_to_id(unknown),
    )


# The kinds of tokens by a word in the decoder of a tokenizer.json.
KINDS = {"byte-level": "ByteLevel", "sentencepiece": "\\u2581"}


def _settings(file):
    with safe.reading(file, OTHER):
        made = json.loads(safe.content(file)) if file.exists() else {}
        if not isinstance(made, dict):
            raise ValueError("it is not a JSON object")
        return made


def _content(token):
    """A special token of a tokenizer_config.json: text, or an object with its content."""
    return str((token.get("content") if isinstance(token, dict) else token) or "")


def _gguf_tokenizer(file):
    """The tokenizer in the metadata of a GGUF file."""
    from gguf import GGUFReader
    from tokenizers import AddedToken

    safe.check_regular(file)
    fields = GGUFReader(file).fields

    def value(key, default: Any = None):
        encoded = fields.get(f"tokenizer.{key}")
        return default if encoded is None else encoded.contents()

    tokens = value("ggml.tokens", [])
    made = _merging(value("ggml.model"), value("ggml.pre"), tokens, value("ggml.merges", []))
    types = value("ggml.token_type", [1] * len(tokens))
    special = {id for id, kind in enumerate(types) if kind in (CONTROL, UNUSED)}
    literal = {id for id, kind in enumerate(types) if kind == USER_DEFINED}
    made.add_special_tokens([tokens[id] for id, kind in enumerate(types) if kind == CONTROL])
    made.add_tokens([AddedToken(tokens[id], normalized=False) for id in sorted(literal)])
    named = {key: value(f"ggml.{key}_token_id") for key in ("eos", "bos")}
    return _made(
        file,
        made,
        special=special,
        literal=literal,
        kind="byte-level",
        eos="" if named["eos"] is None else tokens[named["eos"]],
        bos="" if named["bos"] is None else tokens[named["bos"]],
        starts=bool(value("ggml.add_bos_token", value("ggml.pre") == "llama-bpe")),
        pad=value("ggml.padding_token_id", 0),
        template=value("chat_template", ""),
    )


def _merging(model, pre, tokens, merges):
    """The tokenizer with these tokens and merges of bytes. Raises BadInput for another kind."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    if model != "gpt2" or pre not in SPLITS:
        raise BadInput(
            f"the tokenizer of this GGUF file is {quoted(model)}, {quoted(pre)}; only 'gpt2' with"
            f" {', '.join(SPLITS)} can be read: take the model's {MODEL_FILE} instead"
        )
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    ids = {token: id for id, token in enumerate(tokens)}
    made = Tokenizer(models.BPE(ids, pairs, ignore_merges=pre == "llama-bpe"))
    steps = [pre_tokenizers.Split(Regex(SPLITS[pre]), "isolated")] if SPLITS[pre] else []
    if pre == "smollm":
        steps = [pre_tokenizers.Digits(individual_digits=True)]
    if pre == "qwen2":
        made.normalizer = normalizers.NFC()
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not SPLITS[pre])
    made.pre_tokenizer = pre_tokenizers.Sequence([*steps, last])
    made.decoder = decoders.ByteLevel()
    return made


def _made(file, made, special, literal, kind, **facts):
    """The ModelTokenizer of a tokenizer of the package `tokenizers`.

    special, literal: ids of the tokens that are no text, and of those that are not encoded.
    kind: a key of KINDS, or "" if it is not known which bytes a token stands for.
    """
    from tokenizers import processors

    made.no_padding()
    made.no_truncation()
    made.post_processor = processors.ByteLevel(trim_offsets=False)  # tokens end where they end
    size = max(made.get_vocab().values(), default=-1) + 1
    if not 0 < size <= LARGEST:
        raise ValueError(f"it has {size} tokens, but must have 1 to 2**24 - 2")
    tokens = tuple(made.id_to_token(id) or f"<{id}>" for id in range(size))

    def encode(text):
        with safe.reading(file, OTHER, "failed on a text"):
            encoded = made.encode(text, add_special_tokens=False)
        return encoded.ids, [end for _, end in encoded.offsets]

    names = {tokens[id] for id in special} | {facts["eos"], facts["bos"]} - {""}
    sizes = tuple(_sizes(tokens, special, literal, kind)) if kind else None
    return ModelTokenizer(
        encode, tokens, sizes, tuple(sorted(names)), **facts, decode=lambda ids: made.decode([*ids])
    )


def _sizes(tokens: Sequence[str], special: set[int], literal: set[int], kind: str):
    """The number of bytes of text for which each token stands."""
    from tokenizers import pre_tokenizers

    alphabet = set(pre_tokenizers.ByteLevel.alphabet())  # one character for each byte
    for id, token in enumerate(tokens):
        if id in special:
            yield 0
        elif id in literal:
            yield len(token.encode())
        elif kind == "byte-level" and alphabet.issuperset(token):
            yield len(token)
        elif re.fullmatch("<0x[0-9A-F]{2}>", token):
            yield 1
        else:
            yield len(token.replace("\u2581", " ").encode())
