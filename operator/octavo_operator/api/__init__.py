"""The InferenceService resource: its types, from which the CRD is generated (`python -m octavo_operator.api`)."""

from octavo_operator.api.spec import InferenceServiceSpec, Mode, Switch
from octavo_operator.api.status import ConditionType, InferenceServiceStatus

__all__ = ["ConditionType", "InferenceServiceSpec", "InferenceServiceStatus", "Mode", "Switch"]
