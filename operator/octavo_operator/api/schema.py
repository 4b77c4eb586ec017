"""From pydantic's JSON Schema to the structural schema that a CustomResourceDefinition takes."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel

from octavo_operator.api.fields import PRESERVE

Schema = dict[str, Any]

_KEPT: Final = (
    "type",
    "description",
    "enum",
    "format",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "required",
)
_INT_OR_STRING: Final = "x-kubernetes-int-or-string"


def structural(model: type[BaseModel]) -> Schema:
    """Return the structural schema of `model`: no references, no unions, `x-kubernetes-*` kept, bounded throughout."""
    whole = model.model_json_schema(by_alias=True, mode="validation")
    return _convert(whole, whole.get("$defs", {}))


def _convert(node: Schema, definitions: Schema) -> Schema:
    node = _resolve(node, definitions)
    if node.get(_INT_OR_STRING):
        described = {"description": node["description"]} if "description" in node else {}
        return {**described, "anyOf": [{"type": "integer"}, {"type": "string"}], _INT_OR_STRING: True, "maxLength": 32}
    result: Schema = {key: node[key] for key in _KEPT if key in node}
    if "const" in node:
        result["enum"] = [node["const"]]
    result |= {key: value for key, value in node.items() if key.startswith("x-kubernetes-")}
    default = node.get("default")
    if isinstance(default, str | int | bool):
        result["default"] = default
    if node.get("type") == "object" and PRESERVE not in node:
        _convert_object(node, definitions, result)
    if node.get("type") == "array":
        result["items"] = _convert(node["items"], definitions)
    return result


def _convert_object(node: Schema, definitions: Schema, result: Schema) -> None:
    if "properties" in node:
        result["properties"] = {name: _convert(each, definitions) for name, each in node["properties"].items()}
    elif isinstance(node.get("additionalProperties"), dict):
        result["additionalProperties"] = _convert(node["additionalProperties"], definitions)


def _resolve(node: Schema, definitions: Schema) -> Schema:
    """Inline a reference and drop the `null` of an optional field; what stands beside them wins."""
    while True:
        if "$ref" in node:
            target = definitions[node["$ref"].removeprefix("#/$defs/")]
            node = {**target, **{key: value for key, value in node.items() if key != "$ref"}}
        elif "anyOf" in node and _INT_OR_STRING not in node:
            [only] = [each for each in node["anyOf"] if each != {"type": "null"}]
            node = {**only, **{key: value for key, value in node.items() if key not in ("anyOf", "default")}}
        else:
            return node
