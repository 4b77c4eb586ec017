"""The operator's commands, added to `octavo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_ENGINE_IMAGE = typer.Option(envvar="OCTAVO_ENGINE_IMAGE", help="Engine image where a service names none.")
_PULL_POLICY = typer.Option(envvar="OCTAVO_ENGINE_IMAGE_PULL_POLICY", help="imagePullPolicy of the engine.")
_NAMESPACES = typer.Option(
    "--namespace", "-n", envvar="OCTAVO_NAMESPACES", help="Serve this namespace only; repeatable. Default: all."
)
_KUBECONFIG = typer.Option(exists=True, dir_okay=False, help="Outside a pod: default KUBECONFIG, then ~/.kube/config.")
_LEASE_NAMESPACE = typer.Option(envvar="OCTAVO_LEASE_NAMESPACE", help="Namespace of the Lease. Default: our own.")


def register(app: typer.Typer) -> None:
    """Add the operator's commands to the `octavo` application."""
    from octavo_operator.simulate.cli import simulate

    app.command("operator")(operator)
    app.command("simulate")(simulate)


def operator(
    engine_image: Annotated[str, _ENGINE_IMAGE],
    engine_image_pull_policy: Annotated[str, _PULL_POLICY] = "IfNotPresent",
    namespaces: Annotated[list[str] | None, _NAMESPACES] = None,
    kubeconfig: Annotated[Path | None, _KUBECONFIG] = None,
    lease_namespace: Annotated[str | None, _LEASE_NAMESPACE] = None,
    host: Annotated[str, typer.Option(envvar="OCTAVO_OPERATOR_HOST", help="Address to listen on.")] = "0.0.0.0",
    metrics_port: Annotated[int, typer.Option(envvar="OCTAVO_OPERATOR_METRICS_PORT", help="Port of /metrics.")] = 8080,
    health_port: Annotated[int, typer.Option(envvar="OCTAVO_OPERATOR_HEALTH_PORT", help="Port of the probes.")] = 8081,
    log_level: Annotated[str, typer.Option(envvar="OCTAVO_LOG_LEVEL", help="How much is logged.")] = "info",
) -> None:
    """Turn InferenceServices into pods and scale them: the control plane, run in the cluster."""
    import asyncio
    import logging

    from octavo_operator.config import Config
    from octavo_operator.kube import load_credentials
    from octavo_operator.plan import EngineDefaults
    from octavo_operator.runtime import run

    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # A line per event and handler says nothing: the reconciler logs what it changed.
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)
    config = Config(
        engine=EngineDefaults(engine_image, engine_image_pull_policy),
        namespaces=tuple(namespaces or ()),
        lease_namespace=lease_namespace,
        host=host,
        metrics_port=metrics_port,
        health_port=health_port,
    )
    try:
        credentials = load_credentials(kubeconfig)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    asyncio.run(run(config, credentials))
