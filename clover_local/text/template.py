"""Chat templates: messages to the text a model was trained on, by the jinja source in the model file."""

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from clover_local.errors import CloverError

Message = Mapping[str, Any]

# For files without a template: the form that the Qwen family is trained on.
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class TemplateError(CloverError):
    """A template that cannot be read, or messages that it refuses."""


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False) -> str:
    # jinja's own filter escapes <, > and & for HTML, which no model was trained on
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda format: datetime.datetime.now().strftime(format)
    return environment


class ChatTemplate:
    """A compiled chat template. It comes from a downloaded file, so it runs in jinja's sandbox."""

    def __init__(self, source: str, *, bos: str = "", eos: str = "") -> None:
        self.source = source
        self._special = {"bos_token": bos, "eos_token": eos}
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(
                f"the model's chat template has an error in line {error.lineno}: {error.message}"
            ) from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        enable_thinking: bool | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt text of a conversation.

        `enable_thinking` is left undefined when None, so that the template's own default holds; `tools` is a
        list of function descriptions in OpenAI's form; `variables` reach the template by their names.
        """
        if enable_thinking is not None:
            variables["enable_thinking"] = enable_thinking
        try:
            return self._template.render(
                messages=list(messages),
                tools=list(tools) if tools else None,
                add_generation_prompt=add_generation_prompt,
                **self._special,
                **variables,
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, OverflowError) as error:
            reason = error.message if isinstance(error, jinja2.TemplateError) else str(error)
            raise TemplateError(f"the model's chat template refuses these messages: {reason}") from error
