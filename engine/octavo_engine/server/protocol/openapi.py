"""The OpenAPI document of the public port: what the field tables say, and how answers look. Data from data; no I/O."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

from octavo_engine import contract
from octavo_engine.server.protocol import tables
from octavo_engine.server.protocol.fields import Field, Schema, Table, Treatment, schema_of
from octavo_engine.server.protocol.tables import MAX_INT32, TOKEN_ID

_JSON: Final = "application/json"


class Operation(NamedTuple):
    """One route. `answers`: the schema of each media type of a 200.

    `table`: the body's fields, of which `required` must be there, and exactly one of `one_of`.
    """

    method: Literal["get", "post"]
    path: str
    summary: str
    answers: dict[str, Schema]
    table: Table | None = None
    required: tuple[str, ...] = ()
    one_of: tuple[str, ...] = ()
    parameters: tuple[dict[str, Any], ...] = ()

    @property
    def id(self) -> str:
        """A name for it, as generated clients want one."""
        words = self.path.removeprefix("/v1").replace("{", "").replace("}", "").split("/")
        return "_".join([self.method, *(word for word in words if word)])


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(**properties: Schema) -> Schema:
    """Return an object that has all of these, and may have more."""
    return {"type": "object", "required": list(properties), "properties": properties}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


_STREAM: Final[Schema] = {
    "description": "With `stream`, server-sent events: each `data` is a chunk, the last one `[DONE]`. A stream that "
    "breaks off ends with an Error instead.",
}
_EVENTS: Final[Schema] = {
    "description": "With `stream`, server-sent events of the types that `/v1/responses` has; the last one is "
    "`response.completed`, `response.incomplete` or `response.failed`.",
}
_STATUS: Final = _object(status={"type": "string"})
_INTEGER: Final[Schema] = {"type": "integer"}
_STRING: Final[Schema] = {"type": "string"}
_STRING_OR_NULL: Final[Schema] = {"type": ["string", "null"]}

OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        "post", contract.PATH_COMPLETIONS, "Go on with a text",
        {_JSON: _ref("Completion"), "text/event-stream": _STREAM}, tables.COMPLETIONS, ("prompt",),
    ),
    Operation(
        "post", contract.PATH_CHAT_COMPLETIONS, "Answer in a chat",
        {_JSON: _ref("ChatCompletion"), "text/event-stream": _STREAM}, tables.CHAT, ("messages",),
    ),
    Operation(
        "post", contract.PATH_RESPONSES, "Answer a list of items",
        {_JSON: _ref("Response"), "text/event-stream": _EVENTS}, tables.RESPONSES, ("input",),
    ),
    Operation(
        "post", contract.PATH_EMBEDDINGS, "Texts to vectors", {_JSON: _ref("Embeddings")}, tables.EMBEDDINGS, ("input",)
    ),
    Operation(
        "post", contract.PATH_TOKENIZE, "Text or messages to token ids",
        {_JSON: _object(count=_INTEGER, max_model_len=_INTEGER, tokens=_list(_ref("TokenId")))},
        tables.TOKENIZE, one_of=("prompt", "messages"),
    ),
    Operation(
        "post", contract.PATH_DETOKENIZE, "Token ids to text",
        {_JSON: _object(prompt=_STRING)}, tables.DETOKENIZE, ("tokens",),
    ),
    Operation(
        "get", contract.PATH_MODELS, "The models served",
        {_JSON: _object(object={"const": "list"}, data=_list(_ref("Model")))},
    ),
    Operation(
        "get", contract.PATH_MODELS + "/{name}", "One model", {_JSON: _ref("Model")},
        parameters=({"name": "name", "in": "path", "required": True, "schema": {**_STRING, "minLength": 1}},),
    ),
    Operation("get", contract.PATH_HEALTH, "Whether the engine lives", {_JSON: _STATUS}),
    Operation("get", contract.PATH_READY, "Whether requests are taken", {_JSON: _STATUS}),
    Operation(
        "get", contract.PATH_METRICS, "Metrics in Prometheus' text format", {"text/plain": _STRING},
        parameters=(
            {
                "name": "name[]",
                "in": "query",
                "description": "Only series of these names",
                "schema": _list({**_STRING, "examples": [contract.QUEUE_DEPTH.name]}),
            },
        ),
    ),
)  # fmt: skip
"""Every route of the public port but the document's own."""


def document(names: tuple[str, ...], version: str, keys: bool, vocab_size: int | None) -> dict[str, Any]:
    """Return the document of a server of the models `names`.

    keys: whether it asks for API keys. vocab_size: of the model, None before it is loaded.
    """
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, names, keys)
    components: dict[str, Any] = {"schemas": _schemas(vocab_size), "responses": _refusals()}
    if keys:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Octavo", "version": version, "summary": "Language models over OpenAI's API"},
        "paths": paths,
        "components": components,
    }


def _operation(operation: Operation, names: tuple[str, ...], keys: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"operationId": operation.id, "summary": operation.summary}
    if operation.parameters:
        found["parameters"] = list(operation.parameters)
    if operation.table is not None:
        schema = _body(operation, operation.table, names)
        found["requestBody"] = {"required": True, "content": {_JSON: {"schema": schema}}}
    refusals = ("400", "404", "429", "503") if operation.table is not None else ("503",)
    found["responses"] = {
        "200": {
            "description": "The answer",
            "content": {kind: {"schema": schema} for kind, schema in operation.answers.items()},
        },
        **{status: {"$ref": f"#/components/responses/{status}"} for status in refusals},
        "default": {"$ref": "#/components/responses/error"},
    }
    if keys and operation.path not in contract.PATHS_WITHOUT_KEY:
        found["security"] = [{"key": []}]
        found["responses"]["401"] = {"$ref": "#/components/responses/401"}
    return found


def _body(operation: Operation, table: Table, names: tuple[str, ...]) -> Schema:
    properties = {name: _property(field, name not in operation.required) for name, field in sorted(table.items())}
    properties["model"] = {"enum": [*names, None]}
    schema: Schema = {"type": "object", "properties": properties, "required": list(operation.required)}
    if operation.one_of:
        schema["oneOf"] = [
            {"required": [name], "properties": {name: {"not": {"type": "null"}}}} for name in operation.one_of
        ]
    return schema


def _property(field: Field, may_be_null: bool) -> Schema:
    if field.treatment is Treatment.IGNORED:
        return {"description": f"Has no effect: {field.why}."}
    if field.treatment is Treatment.REFUSED:
        return {"enum": [None, *field.no_op], "description": f"'{field.name}' {field.why}.", "deprecated": True}
    schema = schema_of(field.read)
    if not may_be_null:
        return schema
    kind = schema.get("type")
    if not isinstance(kind, str) or schema.keys() & {"enum", "const"}:
        return {"anyOf": [schema, {"type": "null"}]} if schema else {}
    told = {"default": field.default} if isinstance(field.default, bool | int | float) else {}
    return {**schema, "type": [kind, "null"], **told}


def _refusals() -> dict[str, Any]:
    """Return the answers that are errors, all of one shape."""
    texts = {
        "400": "The request is not valid: `param` names the field at fault",
        "401": "No valid API key was given",
        "404": "There is no such model",
        "429": "Nothing began, the queue is full: come back after Retry-After",
        "503": "Nothing began: the engine is not ready, or the server shuts down",
        "error": "Any other failure",
    }
    return {name: {"description": text, "content": {_JSON: {"schema": _ref("Error")}}} for name, text in texts.items()}


def _schemas(vocab_size: int | None) -> dict[str, Schema]:
    largest = MAX_INT32 if vocab_size is None else vocab_size - 1
    logprobs = {"type": ["object", "null"]}
    reason: Schema = {"finish_reason": _STRING_OR_NULL}
    message = _object(role={"const": "assistant"}, content=_STRING_OR_NULL)
    answer = {"id": _STRING, "created": _INTEGER, "model": _STRING, "usage": _ref("Usage")}
    return {
        TOKEN_ID["$ref"].rsplit("/", 1)[1]: {"type": "integer", "minimum": 0, "maximum": largest},
        "Usage": _object(
            prompt_tokens=_INTEGER,
            completion_tokens=_INTEGER,
            total_tokens=_INTEGER,
            prompt_tokens_details=_object(cached_tokens=_INTEGER),
        ),
        "Completion": _object(
            object={"const": "text_completion"},
            choices=_list(_object(index=_INTEGER, text=_STRING, logprobs=logprobs, **reason)),
            **answer,
        ),
        "ChatCompletion": _object(
            object={"const": "chat.completion"},
            choices=_list(_object(index=_INTEGER, message=message, logprobs=logprobs, **reason)),
            **answer,
        ),
        "Response": _object(
            id=_STRING,
            object={"const": "response"},
            created_at=_INTEGER,
            model=_STRING,
            status={"enum": ["in_progress", "completed", "incomplete", "failed"]},
            output=_list(_object(id=_STRING, type={"enum": ["message", "function_call"]})),
            usage={"type": ["object", "null"]},
        ),
        "Embeddings": _object(
            object={"const": "list"},
            data=_list(_object(object={"const": "embedding"}, index=_INTEGER, embedding={"type": ["array", "string"]})),
            model=_STRING,
            usage=_object(prompt_tokens=_INTEGER, total_tokens=_INTEGER),
        ),
        "Model": _object(id=_STRING, object={"const": "model"}, created=_INTEGER, owned_by=_STRING),
        "Error": _object(error=_object(message=_STRING, type=_STRING, param=_STRING_OR_NULL, code=_STRING_OR_NULL)),
    }
