"""The command line of every program of the cluster. Pure: nothing here touches the system."""

from pathlib import Path
from typing import Any

from .layout import API_URL, CONTROL_IP, DOMAIN, SERVICE_CIDR, Layout, Node

QPS = ["--kube-api-qps=200", "--kube-api-burst=400"]


def control_programs(layout: Layout, binaries: Path, options: dict[str, Any]) -> dict[str, list[str]]:
    kube, pki = str(binaries / "kube"), layout.pki
    return {
        "etcd": [
            kube,
            "etcd",
            f"--data-dir={layout.run}/etcd",
            "--unsafe-no-fsync",
            "--log-level=warn",
            "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
        ],
        "kube-apiserver": [
            kube,
            "kube-apiserver",
            "--etcd-servers=http://127.0.0.1:2379",
            "--secure-port=6443",
            f"--bind-address={CONTROL_IP}",
            f"--advertise-address={CONTROL_IP}",
            f"--tls-cert-file={pki}/apiserver.crt",
            f"--tls-private-key-file={pki}/apiserver.key",
            f"--client-ca-file={pki}/ca.crt",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged=true",
            f"--service-account-key-file={pki}/service-account.key",
            f"--service-account-signing-key-file={pki}/service-account.key",
            f"--service-account-issuer=https://kubernetes.default.svc.{DOMAIN}",
            f"--service-cluster-ip-range={SERVICE_CIDR}",
            f"--kubelet-client-certificate={pki}/kubelet-client.crt",
            f"--kubelet-client-key={pki}/kubelet-client.key",
            f"--kubelet-certificate-authority={pki}/ca.crt",
            "--kubelet-preferred-address-types=InternalIP",
            "--enable-admission-plugins=NodeRestriction",
            f"--admission-control-config-file={layout.run}/admission.yaml",
            f"--audit-policy-file={layout.run}/audit-policy.yaml",
            f"--audit-log-path={layout.audit_log}",
            "--audit-log-mode=blocking-strict",
            "--audit-log-maxsize=2000",
            "--default-not-ready-toleration-seconds=30",
            "--default-unreachable-toleration-seconds=30",
            "--profiling=false",
            "--enable-aggregator-routing=true",
            f"--requestheader-client-ca-file={pki}/front-proxy-ca.crt",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={pki}/front-proxy-client.crt",
            f"--proxy-client-key-file={pki}/front-proxy-client.key",
        ],
        "kube-controller-manager": [
            kube,
            "kube-controller-manager",
            f"--kubeconfig={pki}/kube-controller-manager.kubeconfig",
            f"--root-ca-file={pki}/ca.crt",
            f"--service-account-private-key-file={pki}/service-account.key",
            "--use-service-account-credentials=true",
            f"--cluster-signing-cert-file={pki}/ca.crt",
            f"--cluster-signing-key-file={pki}/ca.key",
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
            "--profiling=false",
            *QPS,
        ],
        "kube-scheduler": [
            kube,
            "kube-scheduler",
            f"--kubeconfig={pki}/kube-scheduler.kubeconfig",
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
            "--profiling=false",
            *QPS,
        ],
        # The control plane's own view of cluster addresses, for the relay; it passes for node1's proxy.
        "kube-proxy": [kube, "kube-proxy", f"--config={layout.run}/kube-proxy.yaml"],
        "relay": [
            kube,
            "relay",
            f"--control={layout.relay_socket}",
            f"--api={CONTROL_IP}:6443",
            f"--api-port={options['api_port']}",
            f"--proxy-port={options['proxy_port']}",
            f"--host-netns={options['host_netns']}",
        ],
        **{node.name: node_namespaces(node, options["python"]) for node in layout.nodes},
    }


def node_namespaces(node: Node, python: str) -> list[str]:
    """A node is one process-id namespace: its death is a power cut, and takes the node's pods with it."""
    return ["nsenter", f"--net=/run/netns/{node.name}", *UNSHARE, "--uts", "--ipc", *supervise(python, node.spec)]


UNSHARE = ["unshare", "--fork", "--kill-child=SIGKILL", "--pid", "--mount", "--mount-proc", "--propagation=private"]


def supervise(python: str, spec: Path) -> list[str]:
    return [python, "-I", str(Path(__file__).with_name("supervisor.py")), str(spec)]


def node_programs(layout: Layout, node: Node, binaries: Path, options: dict[str, Any]) -> dict[str, list[str]]:
    kube = str(binaries / "kube")
    return {
        "containerd": [str(binaries / "containerd"), f"--config={node.run}/containerd.toml"],
        "kubelet": [
            kube,
            "kubelet",
            f"--config={node.run}/kubelet.yaml",
            f"--kubeconfig={layout.pki}/{node.name}-kubelet.kubeconfig",
            f"--hostname-override={node.name}",
            f"--node-ip={node.ip}",
            f"--root-dir={node.run}/kubelet",
            f"--cert-dir={node.run}/kubelet/pki",
        ],
        "kube-proxy": [kube, "kube-proxy", f"--config={node.run}/kube-proxy.yaml"],
        "kube-router": [
            str(binaries / "kube-router"),
            f"--kubeconfig={layout.pki}/kube-router.kubeconfig",
            f"--master={API_URL}",
            f"--hostname-override={node.name}",
            "--run-firewall=true",
            "--run-router=false",
            "--run-service-proxy=false",
            f"--service-cluster-ip-range={SERVICE_CIDR}",
            "--health-port=0",
        ],
        "gpu-plugin": [kube, "gpu-plugin", f"--count={options['gpus']}"],
    }
