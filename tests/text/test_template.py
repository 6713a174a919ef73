"""Chat templates: Qwen3.5's own with tools and thinking, and what a hostile or broken one may not do."""

from pathlib import Path

import pytest

from clover_local.text.template import CHATML, ChatTemplate, TemplateError

USER = {"role": "user", "content": "Wie spät?"}
TOOL = {
    "type": "function",
    "function": {"name": "clock", "description": "Größe <1>", "parameters": {"type": "object"}},
}


@pytest.fixture(scope="module")
def qwen_template(shared: Path) -> ChatTemplate:
    return ChatTemplate((shared / "data/qwen35/chat_template.jinja").read_text(), eos="<|im_end|>")


def test_thinking_is_the_templates_default_and_can_be_turned_off(qwen_template: ChatTemplate) -> None:
    turn = "<|im_start|>user\nWie spät?<|im_end|>\n<|im_start|>assistant\n"
    assert qwen_template.render([USER]) == turn + "<think>\n"
    assert qwen_template.render([USER], enable_thinking=True) == turn + "<think>\n"
    assert qwen_template.render([USER], enable_thinking=False) == turn + "<think>\n\n</think>\n\n"
    assert qwen_template.render([USER], add_generation_prompt=False) == turn.split("<|im_start|>assistant")[0]


def test_reasoning_of_earlier_answers_is_dropped(qwen_template: ChatTemplate) -> None:
    history = [USER, {"role": "assistant", "content": "<think>\nlong\n</think>\n\nNoon."}, USER]
    text = qwen_template.render(history)
    assert "long" not in text and "<|im_start|>assistant\nNoon.<|im_end|>" in text


def test_tools_are_written_as_plain_json(qwen_template: ChatTemplate) -> None:
    text = qwen_template.render([USER], tools=[TOOL])
    assert '"description": "Größe <1>"' in text, "neither escaped to ASCII nor for HTML"
    assert text.startswith("<|im_start|>system\n# Tools")
    call = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "clock", "arguments": {"zone": "UTC", "list": [1, "ß"]}}}],
    }
    text = qwen_template.render([USER, call, {"role": "tool", "content": "12:00"}], tools=[TOOL])
    assert '<function=clock>\n<parameter=zone>\nUTC\n</parameter>\n<parameter=list>\n[1, "ß"]\n' in text
    assert "<tool_response>\n12:00\n</tool_response>" in text


def test_a_template_may_refuse_with_its_own_words(qwen_template: ChatTemplate) -> None:
    with pytest.raises(TemplateError, match="No messages provided"):
        qwen_template.render([])
    with pytest.raises(TemplateError, match="Unexpected message role"):
        qwen_template.render([USER, {"role": "nobody", "content": ""}])


def test_variables_and_special_tokens_reach_the_template() -> None:
    template = ChatTemplate("{{ bos_token }}{{ mood }}{{ eos_token }}", bos="<s>", eos="</s>")
    assert template.render([USER], mood="calm") == "<s>calm</s>"


def test_blocks_leave_no_blank_lines_and_loops_can_break() -> None:
    source = (
        "{% for m in messages %}\n  {% if loop.index > 1 %}\n    {% break %}\n  {% endif %}\n"
        "{{ m.content }}\n{% endfor %}"
    )
    assert ChatTemplate(source).render([USER, USER]) == "Wie spät?\n"


def test_a_broken_template_names_its_line() -> None:
    with pytest.raises(TemplateError, match="line 2"):
        ChatTemplate("ok\n{% if %}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__['datetime'] }}",
        "{% for i in range(10**9) %}{% endfor %}",
    ],
)
def test_a_hostile_template_is_stopped(source: str) -> None:
    with pytest.raises(TemplateError):
        ChatTemplate(source).render([USER])


def test_the_fallback_is_chatml() -> None:
    assert ChatTemplate(CHATML).render([USER]) == (
        "<|im_start|>user\nWie spät?<|im_end|>\n<|im_start|>assistant\n"
    )
