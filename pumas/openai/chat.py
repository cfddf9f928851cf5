"""POST /v1/chat/completions: its request as an operation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from pumas.contract.descriptors import ServedModel
from pumas.contract.errors import ContractError
from pumas.openai.fields import CHAT
from pumas.openai.messages import parse_messages
from pumas.openai.request import SamplingFields, decode, include_usage, sampling
from pumas.openai.tools import ToolParser, call_schema
from pumas.operations import GenerateText

Form = Literal["hermes", "llama3"]


class _Body(SamplingFields, kw_only=True):
    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    max_completion_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A checked request: the operation, and what its answer needs to know."""

    operation: GenerateText
    stream: bool
    include_usage: bool
    ignored: tuple[str, ...]
    tools_form: Form | None = None
    """Set where tool calls are to be looked for."""
    forced: bool = False
    one_call: bool = False

    def parser(self) -> ToolParser | None:
        if self.tools_form is None:
            return None
        names = (tool["function"]["name"] for tool in self.operation.tools)
        return ToolParser(self.tools_form, names, forced=self.forced)


def parse_chat(data: Mapping[str, Any], served: ServedModel) -> ChatRequest:
    """Check a decoded body against the route and the model's declared abilities.

    Raises: ContractError.
    """
    body, ignored = decode(data, CHAT, _Body)
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise ContractError(
            "invalid_request", "max_tokens and max_completion_tokens differ; give one", field="max_completion_tokens"
        )
    if body.top_logprobs is not None and not body.logprobs:
        raise ContractError("invalid_request", "top_logprobs: only with logprobs true", field="top_logprobs")
    tools, choice = _tools(body, served)
    schema = _response_format(body.response_format)
    form: Form | None = None
    forced = False
    if tools and choice != "none":
        if schema is not None or body.grammar is not None:
            field = "response_format" if schema is not None else "grammar"
            raise ContractError(
                "invalid_request", f"{field}: not together with tools; set tool_choice none", field=field
            )
        form = "hermes" if served.detail.get("tools_format") == "hermes" else "llama3"
        if choice not in ("auto", None):
            forced = True
            schema = call_schema(tools, form, None if choice == "required" else choice)
    if schema is not None and body.grammar is not None:
        raise ContractError("invalid_request", "grammar: not together with response_format", field="grammar")
    one_call = body.parallel_tool_calls is False and form is not None
    options = sampling(
        body,
        max_tokens=body.max_completion_tokens if body.max_tokens is None else body.max_tokens,
        json_schema=schema,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    operation = GenerateText(
        capability="chat_generation",
        messages=parse_messages(body.messages, served),
        options=options,
        tools=tools if choice != "none" else (),
        tool_choice=choice,
        template_extras=body.chat_template_kwargs or {},
        stream=bool(body.stream),
    )
    return ChatRequest(
        operation=operation,
        stream=bool(body.stream),
        include_usage=include_usage(body),
        ignored=ignored,
        tools_form=form,
        forced=forced,
        one_call=one_call,
    )


# --- the request's parts ----------------------------------------------------------------------------------------------


def _tools(body: _Body, served: ServedModel) -> tuple[tuple[dict[str, Any], ...], str | None]:
    """The tools and the choice: None, none, auto, required or a function's name."""
    tools = tuple(body.tools or ())
    choice = _tool_choice(body.tool_choice)
    if not tools:
        if choice not in (None, "none", "auto"):
            raise ContractError("invalid_request", "tool_choice: there are no tools", field="tool_choice")
        return (), None
    names = [_function_name(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    if len(set(names)) < len(names):
        raise ContractError("invalid_request", "tools: a function's name is given twice", field="tools")
    if choice not in (None, "none", "auto", "required") and choice not in names:
        raise ContractError("invalid_request", f"tool_choice: {choice!r} is none of the tools", field="tool_choice")
    if choice != "none" and served.detail.get("tools_format") not in ("hermes", "llama3"):
        raise ContractError(
            "invalid_request",
            f"tools: the chat template of {served.model} teaches no tool call form that can be read here",
            field="tools",
        )
    return tools, choice


def _tool_choice(given: str | dict[str, Any] | None) -> str | None:
    if isinstance(given, dict):
        function = given.get("function")
        name = function.get("name") if isinstance(function, dict) else None
        if given.get("type") != "function" or not isinstance(name, str):
            raise ContractError("invalid_request", "tool_choice: expected a function by name", field="tool_choice")
        return name
    if given not in (None, "none", "auto", "required"):
        message = f"tool_choice: {given[:40]!r} is none of none, auto, required"
        raise ContractError("invalid_request", message, field="tool_choice")
    return given


_FUNCTION_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def _function_name(tool: dict[str, Any], at: str) -> str:
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict):
        raise ContractError("invalid_request", f"{at}: only functions are supported", field="tools")
    name = function.get("name")
    if not isinstance(name, str) or not _FUNCTION_NAME.fullmatch(name):
        message = f"{at}.function.name: expected 1 to 64 of letters, digits, _, - and ."
        raise ContractError("invalid_request", message, field="tools")
    if not isinstance(function.get("parameters"), dict | None):
        raise ContractError("invalid_request", f"{at}.function.parameters: expected object", field="tools")
    return name


def _response_format(given: dict[str, Any] | None) -> str | None:
    if given is None or given == {"type": "text"}:
        return None
    kind = given.get("type")
    if kind == "json_object" and set(given) <= {"type"}:
        return '{"type": "object"}'
    if kind == "json_schema":
        inner = given.get("json_schema")
        if set(given) == {"type", "json_schema"} and isinstance(inner, dict):
            unknown = set(inner) - {"name", "schema", "strict", "description"}
            if not unknown and isinstance(inner.get("schema"), dict):
                return msgspec.json.encode(inner["schema"]).decode("utf-8")
        raise ContractError(
            "invalid_request",
            "response_format: expected {type: json_schema, json_schema: {name, schema, strict?, description?}}",
            field="response_format",
        )
    raise ContractError(
        "invalid_request", "response_format: type is none of text, json_object, json_schema", field="response_format"
    )
