"""The configuration files and command lines of every program, from a layout. Pure: nothing here touches the system."""

import json
from pathlib import Path
from typing import Any

import yaml

from .layout import (
    DNS_SERVICE_IP,
    DOMAIN,
    GROUP,
    POD_CIDR,
    Layout,
    Node,
)
from .versions import PAUSE_IMAGE


def dump(document: dict[str, Any]) -> str:
    return yaml.safe_dump(document, sort_keys=False)


def admission() -> str:
    """Restricted Pod Security everywhere, kube-system included: nothing in this cluster needs more."""
    level = {
        f"{mode}{suffix}": value
        for mode in ("enforce", "audit", "warn")
        for suffix, value in (("", "restricted"), ("-version", "latest"))
    }
    security = {
        "apiVersion": "pod-security.admission.config.k8s.io/v1",
        "kind": "PodSecurityConfiguration",
        "defaults": level,
        "exemptions": {"usernames": [], "runtimeClasses": [], "namespaces": []},
    }
    return dump(
        {
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "AdmissionConfiguration",
            "plugins": [{"name": "PodSecurity", "configuration": security}],
        }
    )


def audit_policy() -> str:
    """Every request's metadata, Octavo's resources with their bodies; not what the cluster's own parts read all day."""
    parts = {
        "users": [
            "system:apiserver",
            "system:kube-controller-manager",
            "system:kube-scheduler",
            "system:kube-proxy",
            "kube-router",
        ],
        "userGroups": ["system:nodes", "system:serviceaccounts:kube-system"],
    }
    reads = {"level": "None", "verbs": ["get", "list", "watch"]}
    return dump(
        {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [
                {"level": "None", "nonResourceURLs": ["/readyz*", "/livez*", "/healthz*", "/version", "/openapi*"]},
                {**reads, "users": parts["users"]},
                {**reads, "userGroups": parts["userGroups"]},
                {"level": "RequestResponse", "resources": [{"group": GROUP}], "omitManagedFields": True},
                {"level": "Metadata"},
            ],
        }
    )


def kubelet(layout: Layout, node: Node) -> str:
    certificate = layout.pki / node.name
    return dump(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": f"{layout.pki}/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "clusterDNS": [DNS_SERVICE_IP],
            "clusterDomain": DOMAIN,
            "containerRuntimeEndpoint": f"unix://{node.containerd_socket}",
            "crashLoopBackOff": {"maxContainerRestartPeriod": "10s"},
            "enforceNodeAllocatable": [],
            "evictionHard": {"imagefs.available": "0%", "nodefs.available": "0%", "memory.available": "1Mi"},
            "failCgroupV1": False,
            "failSwapOn": False,
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "kubeAPIQPS": 100,
            "kubeAPIBurst": 200,
            "localStorageCapacityIsolation": False,
            "nodeStatusUpdateFrequency": "5s",
            "podLogsDir": "/var/log/pods",
            "resolvConf": f"{node.run}/resolv.conf",
            "serializeImagePulls": False,
            "tlsCertFile": f"{certificate}.crt",
            "tlsPrivateKeyFile": f"{certificate}.key",
            "volumePluginDir": f"{node.run}/volume-plugins",
        }
    )


def kube_proxy(layout: Layout, node: Node) -> str:
    """Rules are written 0.1 s after a change, not after 1 s: tests wait for them often, and there are few."""
    return dump(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": f"{layout.pki}/kube-proxy.kubeconfig"},
            "clusterCIDR": POD_CIDR,
            "conntrack": {"maxPerCore": 0, "min": 0},
            "hostnameOverride": node.name,
            "mode": "nftables",
            "nftables": {"minSyncPeriod": "100ms", "syncPeriod": "30s"},
        }
    )


def containerd(node: Node, binaries: Path) -> str:
    """TOML. `restrict_oom_score_adj`: root may lack CAP_SYS_RESOURCE, and then no sandbox starts without it."""
    return f"""version = 3
root = "{node.run}/containerd"
state = "{node.run}/containerd-state"
[grpc]
  address = "{node.containerd_socket}"
[ttrpc]
  address = "{node.containerd_socket}.ttrpc"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "{node.run}/cni"
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = "runc"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        BinaryName = "{binaries}/runc"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{PAUSE_IMAGE}"
"""


def pod_network(node: Node) -> str:
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": {
            "type": "host-local",
            "dataDir": f"{node.run}/cni-leases",
            "ranges": [[{"subnet": node.pod_cidr}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    return json.dumps(
        {
            "cniVersion": "1.0.0",
            "name": "kube",
            "plugins": [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}],
        }
    )


def node_manifests(layout: Layout) -> str:
    """Node objects made before the kubelets come: pod addresses are then fixed, and nothing races for them."""
    return yaml.safe_dump_all(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": node.name, "labels": {"kubernetes.io/hostname": node.name}},
            "spec": {"podCIDR": node.pod_cidr, "podCIDRs": [node.pod_cidr]},
        }
        for node in layout.nodes
    )


def resolv_conf() -> str:
    """For the relay, which lives in the control plane's namespaces: SERVICE.NAMESPACE is enough."""
    return f"nameserver {DNS_SERVICE_IP}\nsearch svc.{DOMAIN} {DOMAIN}\noptions ndots:5\n"
