"""Building blocks of the resource's types: camelCase objects, bounded strings, quantities, Kubernetes' own parts."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

RULES: Final = "x-kubernetes-validations"
PRESERVE: Final = "x-kubernetes-preserve-unknown-fields"


class Part(BaseModel):
    """One object of the resource. Unknown keys are ignored here: the API server prunes them by the schema."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)


def rule(expression: str, message: str, **more: Any) -> dict[str, Any]:
    """Return one CEL rule; `message` is a sentence that names what to edit."""
    return {"rule": expression, "message": message, **more}


def rules(*each: dict[str, Any]) -> ConfigDict:
    """Return the model configuration that attaches CEL rules to an object."""
    return ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="ignore",
        frozen=True,
        json_schema_extra={RULES: list(each)},
    )


def _quantity_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Text = Annotated[str, StringConstraints(min_length=1, max_length=253)]
LongText = Annotated[str, StringConstraints(max_length=1024)]
LabelValue = Annotated[str, StringConstraints(max_length=63)]
Quantity = Annotated[
    str,
    BeforeValidator(_quantity_text),
    StringConstraints(max_length=32),
    Field(json_schema_extra={"x-kubernetes-int-or-string": True}),
]
"""A Kubernetes quantity, as a string or an integer."""

KubernetesObject = Annotated[dict[str, Any], Field(json_schema_extra={PRESERVE: True})]
"""A part of a pod taken over as it is; the API server checks it when the Deployment is applied (dry run first)."""
