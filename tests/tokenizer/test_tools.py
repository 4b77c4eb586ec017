"""Tools and their calls in a prompt: what `apply_chat_template` writes, with the arguments as templates read them."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from octavo_engine.server.template import ChatTemplate, TemplateError
from octavo_engine.server.tokenizer import TextModel

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'Of a <city>: "é", <|im_end|>.',
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
ARGUMENTS = {"city": 'Zürich "<|im_end|>" \N{LLAMA}', "days": 1.0, "deep": [{"a": None}]}
QWEN = """{%- if tools %}{{- '<|im_start|>system\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}{{- '\\n</tools><|im_end|>\\n' }}{%- endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}{{- '<|im_start|>user\\n<tool_response>' + m.content + '</tool_response>' }}
{%- else %}{{- '<|im_start|>' + m.role + '\\n' + m.content }}
{%- for call in m.tool_calls or [] %}{%- set f = call.function %}
{{- '<tool_call>{"name": "' + f.name + '", "arguments": ' }}
{%- if f.arguments is string %}{{- f.arguments }}{%- else %}{{- f.arguments | tojson }}{%- endif %}
{{- '}</tool_call>' }}{%- endfor %}{%- endif %}{{- '<|im_end|>\\n' }}{%- endfor %}"""
LLAMA = """{%- for m in messages %}
{%- if 'tool_calls' in m %}{%- set f = m.tool_calls[0].function %}
{%- if m.tool_calls | length != 1 %}{{- raise_exception('One call at a time!') }}{%- endif %}
{{- '<|im_start|>assistant\\n{"name": "' + f.name + '", "parameters": ' }}{{- f.arguments | tojson }}{{- '}' }}
{%- elif m.role == 'tool' %}{{- '<|im_start|>ipython\\n' }}{{- m.content | tojson }}
{%- else %}{{- '<|im_start|>' + m.role + '\\n' + m.content }}{%- endif %}{{- '<|im_end|>' }}
{%- endfor %}{%- if tools is not none %}{%- for t in tools %}{{- t | tojson(indent=4) }}{%- endfor %}{%- endif %}"""
MISTRAL = """{{- '[TOOLS]' }}{%- for tool in tools or [] %}{%- for key, value in tool.function.items() %}
{{- '"' + key + '": ' }}{{- value | tojson }}{%- endfor %}{%- endfor %}
{%- for m in messages %}
{%- if m.tool_calls is defined and m.tool_calls is not none %}{{- '[TOOL_CALLS][' }}
{%- for call in m.tool_calls %}{%- set out = call.function | tojson %}{{- out[:-1] }}
{%- if call.id is not defined or call.id | length != 9 %}{{- raise_exception('Nine characters!') }}{%- endif %}
{{- ', "id": "' + call.id + '"}' }}{%- endfor %}{{- ']' }}
{%- else %}{{- m.content }}{%- endif %}{%- endfor %}"""


def chat(arguments: Any) -> list[dict[str, Any]]:
    call = {"id": "abcdefgh1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    return [
        {"role": "user", "content": "Weather? <|im_start|>"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefgh1", "name": "get_weather", "content": "42 <|im_end|>"},
    ]


@pytest.mark.parametrize("source", [QWEN, LLAMA, MISTRAL], ids=["qwen", "llama", "mistral"])
@pytest.mark.parametrize("tools", [TOOLS, None], ids=["tools", "none"])
def test_tools_render_as_in_transformers(text_model: TextModel, reference: Any, source: str, tools: Any) -> None:
    """A client sends arguments as text, `transformers` is given them as an object: the prompt is the same."""
    control = text_model._vocabulary.control
    template = ChatTemplate(source, control, text_model._vocabulary.names)
    expected = reference.apply_chat_template(
        copy.deepcopy(chat(ARGUMENTS)), tools=tools, chat_template=source, tokenize=False
    )
    spelled = template.render(chat(json.dumps(ARGUMENTS)), tools=tools, add_generation_prompt=False)
    assert control.unspell(spelled) == expected
    assert control.count(spelled) == written(source, tools)


def written(source: str, tools: Any) -> int:
    """Return how many control tokens the template writes: two for each turn, and for Qwen's tools."""
    if source == MISTRAL:
        return 0
    return 6 + (2 if source == QWEN and tools else 0)


def test_what_a_template_says_of_calls_is_its_refusal(text_model: TextModel) -> None:
    template = ChatTemplate(LLAMA, text_model._vocabulary.control, {})
    messages = chat("{}")
    messages[1]["tool_calls"] *= 2
    with pytest.raises(TemplateError, match="One call at a time"):
        template.render(messages, tools=TOOLS)
