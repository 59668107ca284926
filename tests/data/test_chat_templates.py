"""Tests the borders of responses in the chat templates of the common families of models."""

import json

import optional
import pytest
from inputs import complaint

from fedjax_lab.data.formats import chat_templates

optional.module("jinja2")
SPECIAL = (
    *("<s>", "</s>", "<bos>", "<eos>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>"),
    *("<|end_header_id|>", "<|eot_id|>", "<start_of_turn>", "<end_of_turn>", "<|user|>"),
    *("<|assistant|>", "<|system|>", "<|end|>", "<|endoftext|>", "[INST]", "[/INST]", "<think>"),
    *("</think>", "<tool_call>", "<filename>", "<|User|>", "<|Assistant|>", "<|stop|>"),
)

# Templates in the form of the published ones.
CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe kind<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
    "{% set system_message = messages[0]['content'] %}{% else %}"
    "{% set loop_messages = messages %}{% set system_message = false %}{% endif %}"
    "{% for message in loop_messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/...') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}"
    "{% endif %}{% endfor %}"
)
LLAMA3 = (
    "{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] +"
    " '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}"
    "{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
MISTRAL = (  # the system prompt is in the last turn of the user
    "{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content'] %}"
    "{%- set rest = messages[1:] %}{%- else %}{%- set rest = messages %}{%- endif %}"
    "{{- bos_token }}{%- for message in rest %}{%- if message['role'] == 'user' %}"
    "{%- if system is defined and rest | length - loop.index0 <= 2 %}"
    "{{- '[INST] ' + system + '\n\n' + message['content'] + '[/INST]' }}"
    "{%- else %}{{- '[INST] ' + message['content'] + '[/INST]' }}{%- endif %}"
    "{%- else %}{{- ' ' + message['content'] + eos_token }}{%- endif %}{%- endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/...') }}{% endif %}"
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}"
    "{% set role = message['role'] %}{% endif %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)
QWEN3 = (
    "{%- set ns = namespace(last=messages|length - 1, seeking=true) %}"
    "{%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}"
    "{%- if ns.seeking and message.role == 'user' %}{%- set ns.seeking = false %}"
    "{%- set ns.last = index %}{%- endif %}{%- endfor %}"
    "{%- for message in messages %}{%- if message.role != 'assistant' %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- else %}{%- set content = message.content %}{%- set reasoning = '' %}"
    "{%- if '</think>' in content %}"
    "{%- set reasoning = content.split('</think>')[0].rstrip('\n').split('<think>')[-1] %}"
    "{%- set reasoning = reasoning.lstrip('\n') %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}"
    "{{- '<|im_start|>assistant\n' }}"
    "{%- if loop.index0 > ns.last and (loop.last or reasoning) %}"
    "{{- '<think>\n' + reasoning.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}"
    "{%- else %}{{- content }}{%- endif %}{{- '<|im_end|>\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
ZEPHYR = (
    "{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '<|user|>\n' + message['content'] + eos_token }}\n"
    "{% elif message['role'] == 'system' %}{{ '<|system|>\n' + message['content'] + eos_token }}\n"
    "{% elif message['role'] == 'assistant' %}"
    "{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n"
    "{% endif %}{% if loop.last and add_generation_prompt %}{{ '<|assistant|>' }}\n{% endif %}"
    "{% endfor %}"
)
PHI3 = (
    "{% for message in messages %}"
    "{{'<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}"
    "{{ '<|endoftext|>' }}{% endif %}"
)
DEEPSEEK = (  # a reply begins with reasoning, which is not printed
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'user' %}"
    "{{ '<|User|>' + message.content }}{% elif message.role == 'assistant' %}"
    "{% set content = message.content %}{% if '</think>' in content %}"
    "{% set content = content.split('</think>')[-1] %}{% endif %}"
    "{{ '<|Assistant|>' + content + '<|stop|>' }}{% else %}{{ message.content }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|Assistant|><think>\n' }}{% endif %}"
)
SMOLLM3 = CHATML.replace(
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] +",
    "{% generation %}{{'<|im_start|>' + message['role'] + '\n' + message['content'].lstrip() +",
).replace("'\n'}}{% endfor %}", "'\n'}}{% endgeneration %}{% endfor %}")
BARE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
PLAIN = "{% for m in messages %}{{ m.content }}\n{% endfor %}"

ENDS = {  # what a model writes before and after the words
    "chatml": (CHATML, "", "<|im_end|>"),
    "llama2": (LLAMA2, " ", " </s>"),
    "llama3": (LLAMA3, "", "<|eot_id|>"),
    "mistral": (MISTRAL, " ", "</s>"),
    "gemma": (GEMMA, "", "<end_of_turn>"),
    "qwen3": (QWEN3, "", "<|im_end|>"),
    "zephyr": (ZEPHYR, "", "</s>"),
    "phi3": (PHI3, "", "<|end|>"),
    "deepseek": (DEEPSEEK, "", "<|stop|>"),
    "smollm3": (SMOLLM3, "", "<|im_end|>"),
    "without the beginning of a reply": (BARE, "", "<|end|>"),
    "always a beginning": (BARE + "<|assistant|>", "", "<|end|>"),
    "no special tokens": (PLAIN, "", "</s>"),
    "no end of turns": (PLAIN.replace("{{", "<{{ m.role }}> {{"), "", "</s>"),
    "the end of text": (PLAIN.replace("\n", "{{ eos_token }}"), "", "</s>"),
    "JSON": (BARE.replace("m.content", "m.content | tojson"), "", '"<|end|>'),
}
USER_FIRST = ("llama2", "gemma")


def divided(template, *contents, first="user", system=""):
    """The rendered text, and the pieces, of turns of two sides."""
    roles = ("user", "assistant") if first == "user" else ("assistant", "user")
    messages = [{"role": "system", "content": system}] if system else []
    messages += [{"role": roles[n % 2], "content": each} for n, each in enumerate(contents)]
    render = chat_templates.renderer(template, bos_token="<s>", eos_token="</s>")
    return render(messages), chat_templates.pieces(render, SPECIAL, "</s>", messages)


def responses(*args, **kwargs):
    return [text for text, counted in divided(*args, **kwargs)[1] if counted]


@pytest.mark.parametrize("family", ENDS)
@pytest.mark.parametrize(
    "words",
    [
        ("Ho", "So long"),
        ("a", "a"),  # in the word "assistant"
        ("Run git add <filename> and then git commit.", "user"),
        ("<tool_call>{}</tool_call>", "<|im_start|>assistant\nHi<|im_end|> is a turn"),
        ("Hi", "Hi"),  # as the user says
        ("[INST] Hi [/INST]", "<|assistant|>\n"[:-1]),
    ],
)
def test_responses_are_what_the_template_prints_of_the_words(family, words):
    template, before, after = ENDS[family]
    text, pieces = divided(template, "Hi", words[0], "Hi", words[1])
    expected = [before + each + after for each in words]
    if family == "qwen3":  # which prints empty reasoning in the last turn
        expected[1] = f"<think>\n\n</think>\n\n{expected[1]}"
    if family == "JSON":
        expected = [json.dumps(each)[1:] + "<|end|>" for each in words]
    assert [each for each, counted in pieces if counted] == expected
    if after in text:
        assert text.startswith("".join(each for each, _ in pieces))


@pytest.mark.parametrize("family", ENDS)
def test_a_conversation_that_the_model_begins_is_served_or_refused(family):
    template, before, after = ENDS[family]
    if family in USER_FIRST:
        said = complaint(responses, template, "Ho", "Hi", first="assistant")
        assert said.startswith("the chat template fails on the conversation that the assistant be")
        assert "(Conversation roles must alternate user/assistant/...)" in said
    else:
        made = responses(template, "Ho", "Hi", "Ho", first="assistant")
        last = f"<think>\n\n</think>\n\nHo{after}" if family == "qwen3" else f"{before}Ho{after}"
        assert made == [f"Ho{after}", last]


def test_reasoning_is_of_the_response_if_it_is_printed():
    thought = "<think>\nHm\n</think>\n\nHo"
    assert responses(CHATML, "Hi", thought) == [thought + "<|im_end|>"]
    made = responses(QWEN3, "Hi", thought, "Bye", thought)
    assert made == ["Ho<|im_end|>", thought + "<|im_end|>"]
    assert responses(DEEPSEEK, "Hi", thought) == ["\n\nHo<|stop|>"]
    begun = BARE + "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
    assert responses(begun, "Hi", thought) == [thought.removeprefix("<think>\n") + "<|end|>"]


def test_blanks_are_those_that_the_template_prints():
    assert responses(CHATML, "Hi", " Ho \n") == [" Ho \n<|im_end|>"]
    assert responses(LLAMA3, "Hi", " Ho \n") == ["Ho<|eot_id|>"]
    assert responses(SMOLLM3, "Hi", "\n\nHo ") == ["Ho <|im_end|>"]
    assert responses(CHATML, "Hi", " ", "Hi", "Ho") == ["Ho<|im_end|>"]  # nothing is said first


def test_a_system_prompt_may_move_to_a_later_turn():
    text, pieces = divided(MISTRAL, "Hi", "Ho", "Bye", "So long", system="Be brief.")
    assert text.count("Be brief.") == 1 and "Be brief.\n\nBye" in text
    assert [each for each, counted in pieces if counted] == ["Ho</s>", " So long</s>"]


@pytest.mark.parametrize(
    "template, said",
    [
        ("{% for", "the chat template is invalid ("),
        ("{{ raise_exception('no') }}", "fails on the conversation that the user begins with 'Hi'"),
        ("{{ messages.append(1) }}", "(access to attribute 'append' of 'list' object is unsafe.)"),
        ("{{ messages | length }}", "leaves out a response of the conversation that the user beg"),
        (BARE.replace("m in messages", "m in messages if m.role == 'user'"), "leaves out a resp"),
        (BARE.replace("m.content", "m.content[:2]"), "does not print each response of the conv"),
        (BARE.replace("m.content", "m.content * 2"), "does not print each response of the conv"),
        (BARE.replace("m.content", "m.content | reverse"), "does not print each response"),
        (BARE.replace("messages", "messages | reverse"), "does not print each response"),
    ],
)
def test_bad_chat_templates_are_a_one_line_error(template, said):
    assert said in complaint(responses, template, "Hi", "Ho, Ho!", "Hi", "Ho")


LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{{ x }}{% endfor %}{% endfor %}"
CALLS = (
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}",
    "{% set ns = namespace(n=0) %}{% block f %}{% set ns.n = ns.n + 1 %}{% if ns.n % 50 %}"
    "{{ self.f() }}{{ self.f() }}{{ self.f() }}{{ self.f() }}{% endif %}{% endblock %}",
)


@pytest.mark.parametrize(
    "template, said",
    [
        (LOOPS, "it did not end within"),
        (LOOPS.replace(" %}{{", " if b < 0 %}{{"), "it did not end within"),
        (CALLS[0], "it did not end within"),
        ("{{ 9 ** 9 ** 9 }}", "it computes a power"),
        ("{{ 'ab' * 10 ** 0 }}", "it computes a power"),
        ("{{ 'ab' * 10000000 }}", "a product is above 10,000,000"),
        ("{{ range(10000000) | list }}", "Range too big"),
    ],
)
def test_a_template_that_does_not_end_is_stopped(template, said, monkeypatch):
    monkeypatch.setattr(chat_templates, "SECONDS", 0.05)
    assert said in complaint(responses, template, "Hi", "Ho")


def test_templates_may_use_what_the_limits_replace():
    template = (
        "{% for m in messages if m.role != 'system' %}{{ 2 * '-' }}{{ m.content }}{{ loop.length }}"
        "<|end|>{% else %}{{ 2 * 2 }}{% endfor %}"
    )
    assert divided(template, "Hi", "Ho", system="S")[0] == "--Hi2<|end|>--Ho2<|end|>"
    assert divided(template, system="S") == ("4", [])
