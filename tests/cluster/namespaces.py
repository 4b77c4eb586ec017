"""What the supervisors do first inside their new namespaces: mounts, kernel settings, links and routes."""

from . import cgroups
from .layout import CONTROL_IP, SERVICE_CIDR, Layout, Node

# What the kubelet would write into the host's kernel settings: it finds them as it wants them and leaves them alone.
KERNEL_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


def control_setup(layout: Layout) -> list[list[str]]:
    return [
        *cgroups.namespace_setup(),
        ["mount", "-t", "tmpfs", "tmpfs", "/run"],
        # Cluster names resolve for the relay. An overlay, not a bind: resolv.conf may be a link into /run.
        ["mount", "-t", "overlay", "-o", f"lowerdir={layout.run}/etc:/etc", "overlay", "/etc"],
        ["sysctl", "-qw", "net.ipv4.ip_forward=1"],
        ["ip", "-batch", f"{layout.run}/network-control"],
        *(network_of(node) for node in layout.nodes),
    ]


def network_of(node: Node) -> list[str]:
    """Also after the node died: what is left of its old link and namespace goes first."""
    name = node.name
    clear = (
        f"if ip netns list | grep -qw {name}; then ip netns del {name}; fi; "
        f"if [ -e /proc/sys/net/ipv4/conf/{name} ]; then ip link del {name}; fi"
    )
    return [
        "sh",
        "-ec",
        f"{clear}; ip netns add {name}; ip -batch {node.run}/network-control; "
        f"ip -n {name} -batch {node.run}/network-node",
    ]


def control_network() -> str:
    """The bridge between control plane and nodes. What leaves the cluster is told at once that there is no way out."""
    return f"""link set lo up
link add br0 type bridge
addr add {CONTROL_IP}/24 dev br0
link set br0 up
route add {SERVICE_CIDR} dev br0
route add unreachable default
"""


def node_link(node: Node) -> str:
    return f"""link add {node.name} type veth peer name eth0 netns {node.name}
link set {node.name} master br0
link set {node.name} up
route replace {node.pod_cidr} via {node.ip}
"""


def node_network(layout: Layout, node: Node) -> str:
    routes = "".join(f"route add {peer.pod_cidr} via {peer.ip}\n" for peer in layout.nodes if peer != node)
    return f"""link set lo up
addr add {node.ip}/24 dev eth0
link set eth0 up
route add default via {CONTROL_IP}
{routes}"""


def node_setup(node: Node) -> list[list[str]]:
    """/run, /var/lib and /var/log of its own: programs that insist on fixed paths there leave nothing on the host."""
    overlay = f"lowerdir=/var/lib,upperdir={node.run}/var-lib,workdir={node.run}/var-lib-work"
    return [
        ["mount", "--make-rshared", "/"],
        ["mount", "-t", "tmpfs", "tmpfs", "/run"],
        ["mount", "-t", "overlay", "-o", overlay, "overlay", "/var/lib"],
        ["mount", "--bind", f"{node.run}/var-log", "/var/log"],
        *(["mount", "--bind", f"{node.run}/kernel/{name}", f"/proc/sys/{name}"] for name in KERNEL_SETTINGS),
        ["sysctl", "-qw", "net.ipv4.ip_forward=1"],
        ["rm", "-rf", f"{node.run}/containerd-state"],
    ]
