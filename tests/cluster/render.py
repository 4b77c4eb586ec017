"""Writes every file that the supervisors and programs of a cluster read."""

import json
import sys
from pathlib import Path
from typing import Any

from . import config, namespaces, pki, programs
from .build import Built
from .layout import REPOSITORY, Layout, Node


def render(layout: Layout, built: Built, options: dict[str, Any]) -> None:
    """The state folder of a cluster that has not started yet."""
    options = {**options, "python": sys.executable}
    layout.run.mkdir(mode=0o755)
    layout.checkout.write_text(str(REPOSITORY))
    layout.logs.mkdir()
    pki.write_all(layout, options["api_port"])
    write(
        layout.run,
        {
            "admission.yaml": config.admission(),
            "audit-policy.yaml": config.audit_policy(),
            "network-control": namespaces.control_network(),
            "kube-proxy.yaml": config.kube_proxy(layout, layout.nodes[0]),
            "nodes.yaml": config.node_manifests(layout),
            "etc/resolv.conf": config.resolv_conf(),
            "supervisor.json": control_spec(layout, built, options),
        },
    )
    for node in layout.nodes:
        render_node(layout, node, built, options)


def render_node(layout: Layout, node: Node, built: Built, options: dict[str, Any]) -> None:
    for folder in ("var-lib", "var-lib-work", "var-log", "kubelet", "volume-plugins"):
        (node.run / folder).mkdir(parents=True)
    (layout.logs / node.name).mkdir()
    write(
        node.run,
        {
            "containerd.toml": config.containerd(node, built.binaries),
            "kube-proxy.yaml": config.kube_proxy(layout, node),
            "kubelet.yaml": config.kubelet(layout, node),
            "cni/10-kube.conflist": config.pod_network(node),
            "network-control": namespaces.node_link(node),
            "network-node": namespaces.node_network(layout, node),
            "resolv.conf": "",
            **{f"kernel/{setting}": f"{value}\n" for setting, value in namespaces.KERNEL_SETTINGS.items()},
            "supervisor.json": node_spec(layout, node, built, options),
        },
    )


def control_spec(layout: Layout, built: Built, options: dict[str, Any]) -> str:
    return json.dumps(
        {
            "hostname": layout.context,
            "folder": str(layout.run),
            "socket": str(layout.control_socket),
            "logs": str(layout.logs),
            "path": built.path,
            "starter": True,
            "keep": {"relay": [options["host_netns"]]},
            "setup": namespaces.control_setup(layout),
            "programs": programs.control_programs(layout, built.binaries, options),
        }
    )


def node_spec(layout: Layout, node: Node, built: Built, options: dict[str, Any]) -> str:
    return json.dumps(
        {
            "hostname": node.name,
            "folder": str(node.run),
            "socket": str(node.control_socket),
            "logs": str(layout.logs / node.name),
            "path": built.path,
            "starter": False,
            "keep": {},
            "setup": namespaces.node_setup(node),
            "programs": programs.node_programs(layout, node, built.binaries, options),
        }
    )


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
