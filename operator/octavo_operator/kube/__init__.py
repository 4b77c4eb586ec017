"""A thin client of the Kubernetes API: the few calls the operator makes, each with a deadline and a write fence."""

from octavo_operator.kube.client import ApiError, Client
from octavo_operator.kube.credentials import Credentials, load_credentials
from octavo_operator.kube.resources import Resource

__all__ = ["ApiError", "Client", "Credentials", "Resource", "load_credentials"]
