#!/usr/bin/env python3
"""Writes dialogues as transformers' apply_chat_template makes ids and masks of them.

    tests/golden/make_chat.py OUT        OUT: tests/golden/chat

OUT gets dialogues.jsonl and a folder for each template: a small tokenizer of
tests/golden/tokenizers with the template's tokens and text, and expected.json with ids and mask of
each dialogue, and the prompt of its last answer (null where the template refuses it). The mask is
transformers' own, of the same template with its generation blocks marked; both must give the same
ids. Where trl is installed, the published templates that it has must give the same text. Needs: pip
install transformers==4.57.1 jinja2; pip install --no-deps trl
"""

import importlib.util
import json
import sys
from pathlib import Path

from transformers import AddedToken, PreTrainedTokenizerFast

HERE = Path(__file__).parent
TOKENIZERS = HERE / "tokenizers"
QWEN = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
OPEN, CLOSE = "{% generation %}", "{% endgeneration %}"
ALTERNATE = (
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation "
    "roles must alternate') }}{% endif %}"
)
SPLIT = (
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set "
    "loop_messages = messages[1:] %}"
    "{% else %}{% set system = false %}{% set loop_messages = messages %}{% endif %}"
)


def asks(header):
    return "{% if add_generation_prompt %}{{ '" + header + "' }}{% endif %}"


def learned(header, answer, other):
    """Of a message: an answer within a generation block, anything else without."""
    return (
        header
        + "{% if m['role'] == 'assistant' %}"
        + OPEN
        + answer
        + CLOSE
        + "{% else %}"
        + other
        + "{% endif %}"
    )


def llama3(first=""):
    body = "{{ m['content'] | trim + '<|eot_id|>' }}"
    return (
        "{{ bos_token }}"
        + first
        + "{% for m in messages %}"
        + learned("{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' }}", body, body)
        + "{% endfor %}"
        + asks("<|start_header_id|>assistant<|end_header_id|>\\n\\n")
    )


def chatml(default=""):
    first = (
        (
            "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\n"
            + default
            + "<|im_end|>\\n' }}{% endif %}"
        )
        if default
        else ""
    )
    body = "{{ m['content'] + '<|im_end|>' }}"
    return (
        first
        + "{% for m in messages %}"
        + learned("{{ '<|im_start|>' + m['role'] + '\\n' }}", body, body)
        + "{{ '\\n' }}{% endfor %}"
        + asks("<|im_start|>assistant\\n")
    )


LLAMA31_FIRST = (
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] | trim %}{% "
    "set messages = messages[1:] %}"
    "{% else %}{% set system = '' %}{% endif %}{{ "
    "'<|start_header_id|>system<|end_header_id|>\\n\\nCutting Knowledge Date: December 2023\\n"
    "Today Date: 26 Jul 2024\\n\\n' + system + '<|eot_id|>' }}"
)
LLAMA2 = (
    SPLIT
    + "{% for m in loop_messages %}"
    + ALTERNATE
    + "{% if loop.index0 == 0 and system != false %}{% set content = '<<SYS>>\\n' + system + "
    "'\\n<</SYS>>\\n\\n' + m['content'] %}"
    "{% else %}{% set content = m['content'] %}{% endif %}{% if m['role'] == 'user' %}{{ bos_token "
    "+ '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% else %}"
    + OPEN
    + "{{ ' ' + content.strip() + ' ' + eos_token }}"
    + CLOSE
    + "{% endif %}{% endfor %}"
)
MISTRAL1 = (
    SPLIT
    + "{{ bos_token }}{% for m in loop_messages %}"
    + ALTERNATE
    + "{% if m['role'] == 'user' %}"
    "{% if loop.first and system != false %}{{ ' [INST] ' + system + '\\n\\n' + m['content'] + ' "
    "[/INST]' }}"
    "{% else %}{{ ' [INST] ' + m['content'] + ' [/INST]' }}{% endif %}"
    "{% else %}" + OPEN + "{{ ' ' + m['content'] + eos_token }}" + CLOSE + "{% endif %}{% endfor %}"
)
# The system message in front of the last question, as in mistral-common: the published template has
# it only where a dialogue ends with a question.
MISTRAL = (
    SPLIT
    + "{{ bos_token }}{% for m in loop_messages %}"
    + ALTERNATE
    + "{% if m['role'] == 'user' %}"
    "{% if (loop.last or loop.index0 == loop.length - 2) and system != false %}{{ '[INST] ' + "
    "system + '\\n\\n' + m['content'] + '[/INST]' }}"
    "{% else %}{{ '[INST] ' + m['content'] + '[/INST]' }}{% endif %}"
    "{% else %}"
    + OPEN
    + "{{ ' ' + m['content'] | trim + eos_token }}"
    + CLOSE
    + "{% endif %}{% endfor %}"
)

QWEN3 = (
    "{% set ns = namespace(last_query_index=messages|length - 1, searching=true) %}{% for m in "
    "messages[::-1] %}"
    "{% if ns.searching and m['role'] == 'user' and not "
    "(m['content'].startswith('<tool_response>') and m['content'].endswith('</tool_response>')) %}"
    "{% set ns.searching = false %}{% set ns.last_query_index = messages|length - 1 - loop.index0 "
    "%}{% endif %}{% endfor %}"
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}{% set content = m['content'] "
    "%}{% if m['role'] == 'assistant' %}"
    "{% set reasoning_content = m['reasoning_content'] | default('') %}{% if "
    "m['reasoning_content'] is not string and '</think>' in content %}"
    "{% set reasoning_content = "
    "content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}"
    "{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}"
    + OPEN
    + "{% if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and "
    "reasoning_content)) %}"
    "{{ '<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + "
    "content.lstrip('\\n') }}{% else %}{{ content }}{% endif %}"
    "{{ '<|im_end|>' }}"
    + CLOSE
    + "{% else %}{{ content + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
    + asks("<|im_start|>assistant\\n")
    + "{% if add_generation_prompt and enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
)

# Name: template, tokenizer, special tokens, bos, eos.
HEADERS = [
    "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>",
]
CHATML = ["<|im_start|>", "<|im_end|>"]
CASES = {
    "llama3": (llama3(), "llama3", HEADERS, "<|begin_of_text|>", "<|eot_id|>"),
    "llama3.1": (llama3(LLAMA31_FIRST), "llama3", HEADERS, "<|begin_of_text|>", "<|eot_id|>"),
    "qwen": (chatml(QWEN), "qwen2", CHATML, None, "<|im_end|>"),
    "qwen3": (QWEN3, "qwen2", CHATML, None, "<|im_end|>"),
    "chatml": (chatml(), "qwen2", CHATML, None, "<|im_end|>"),
    # Tokens that take the white space next to them.
    "chatml-strips": (
        chatml(),
        "qwen2",
        ["<|im_start|>", AddedToken("<|im_end|>", lstrip=True, rstrip=True)],
        None,
        "<|im_end|>",
    ),
    "llama2": (LLAMA2, "llama2", [], "<s>", "</s>"),
    "mistral-v1": (MISTRAL1, "llama2", [], "<s>", "</s>"),
    "mistral": (MISTRAL, "llama2", ["[INST]", "[/INST]"], "<s>", "</s>"),
}

# The same templates as published; trl's names.
PUBLISHED = {
    "llama3": "llama3", "llama3.1": "llama3_1", "qwen": "qwen2_5", "qwen3": "qwen3",
    "chatml": "qwen3_instruct_2507",
}

TEXTS = [
    "Hello, who are you?",
    "I am a small model.",
    "  Spaces in front, and behind \n",
    "",
    "Zeile eins\n\nZeile drei\n",
    "\n\nfirst lines are empty",
    "你好，世界！これはテストです。",
    "😀👍🏽 e\u0301 naïve café — “quotes”",
    "def f(x):\n\treturn x ** 2  # 3.14159",
    "1234567 [mark] x Server",
    "a",
    "\u3000ideographic space\u00a0",
    "Привет, как дела?\r\nХорошо.",
]


def thoughtful():
    """What was thought, in the answer's text or apart, before the last question and behind it."""
    inside = "<think>\n\nIs it so?\n\n</think>\n\nIt is.\n"
    response = "<tool_response>\n12\n</tool_response>"
    return [
        [("user", "So?"), ("assistant", inside)],
        [
            ("user", "So?"),
            ("assistant", inside),
            ("user", "Why?"),
            ("assistant", "\n\nBecause.", "\nLet me see.\n\n"),
        ],
        [
            ("user", "So?"),
            ("assistant", "", "apart"),
            ("user", response),
            ("assistant", "no " + inside + "</think>\n twice"),
        ],
        [
            ("user", "So?"),
            ("assistant", "nothing thought"),
            ("user", response),
            ("assistant", "<think>open, never closed"),
        ],
        [
            ("user", response),
            ("assistant", "a</think>b<think>c</think>d"),
            ("user", response),
            ("assistant", "Yes.", ""),
        ],
    ]


def dialogues():
    made = []
    for i, text in enumerate(TEXTS):
        answer = TEXTS[(i + 5) % len(TEXTS)]
        turns = [("user", text), ("assistant", answer)]
        if i % 3 == 1:
            turns += [
                ("user", TEXTS[(i + 2) % len(TEXTS)]),
                ("assistant", TEXTS[(i + 7) % len(TEXTS)]),
            ]
        if i % 4 == 2:
            turns += [
                ("user", "And?"),
                ("assistant", "So."),
                ("user", ""),
                ("assistant", "Good bye.\n"),
            ]
        made.append(turns)
        made.append([("system", TEXTS[(i + 3) % len(TEXTS)])] + turns)
    made += thoughtful()
    # not alternating
    made.append([("system", "Be brief."), ("user", "one"), ("user", "two"), ("assistant", "three")])
    return [
        [
            {"role": m[0], "content": m[1], **({"reasoning_content": m[2]} if len(m) > 2 else {})}
            for m in turns
        ]
        for turns in made
    ]


def expected(tokenizer, template, messages):
    try:
        plain = tokenizer.apply_chat_template(messages)
        masked = tokenizer.apply_chat_template(
            messages, chat_template=template, return_dict=True, return_assistant_tokens_mask=True
        )
        prompt = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True)
    except Exception as error:
        if "alternate" not in str(error):
            raise
        return None
    assert plain == masked["input_ids"]
    results = {
        "ids": plain,
        "mask": "".join(str(bit) for bit in masked["assistant_masks"]),
        "prompt": prompt,
    }
    if "enable_thinking" in template:
        results["prompt_without_thinking"] = tokenizer.apply_chat_template(
            messages[:-1], add_generation_prompt=True, enable_thinking=False
        )
    return results


def compare_with_published(tokenizer, name, made):
    trl = importlib.util.find_spec("trl")
    if trl is None or name not in PUBLISHED:
        return
    text = (Path(trl.origin).parent / "chat_templates" / (PUBLISHED[name] + ".jinja")).read_text()
    for messages in made:
        for arguments in (
            {},
            {"add_generation_prompt": True},
            {"add_generation_prompt": True, "enable_thinking": False},
        ):
            ours, theirs = (
                tokenizer.apply_chat_template(messages, tokenize=False, **more, **arguments)
                for more in ({}, {"chat_template": text})
            )
            assert ours == theirs, (name, ours, theirs)
    print(name, "is trl's", PUBLISHED[name])


def shorten(folder):
    path = folder / "tokenizer.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()), ensure_ascii=False, separators=(",", ":")) + "\n"
    )
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config.pop("added_tokens_decoder")
    path.write_text(json.dumps(config, ensure_ascii=False, indent=1) + "\n")


def main():
    out = Path(sys.argv[1])
    out.mkdir(exist_ok=True)
    made = dialogues()
    with open(out / "dialogues.jsonl", "w") as file:
        for messages in made:
            file.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")
    for name, (template, base, tokens, bos, eos) in CASES.items():
        folder = out / name
        folder.mkdir(exist_ok=True)
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=str(TOKENIZERS / base / "tokenizer.json"),
            clean_up_tokenization_spaces=False,
        )
        tokenizer.add_special_tokens({
            "additional_special_tokens": tokens
            + [t for t in (bos, eos) if t and t not in map(str, tokens)]
        })
        if name == "qwen3":
            tokenizer.add_tokens([
                AddedToken(mark, normalized=False) for mark in ("<think>", "</think>")
            ])
        if bos:
            tokenizer.bos_token = bos
        tokenizer.eos_token = eos
        tokenizer.chat_template = template.replace(OPEN, "").replace(CLOSE, "")
        compare_with_published(tokenizer, name, made)
        results = [expected(tokenizer, template, messages) for messages in made]
        tokenizer.save_pretrained(folder, save_jinja_files=name == "qwen")
        (folder / "special_tokens_map.json").unlink(missing_ok=True)
        shorten(folder)
        (folder / "expected.json").write_text(json.dumps(results, separators=(",", ":")) + "\n")
        print(
            name, len([r for r in results if r]), "dialogues",
            sum(len(r["ids"]) for r in results if r), "ids",
        )


if __name__ == "__main__":
    main()
