"""What is built, from which Go module at which version. Changing anything here builds a new cluster."""

from dataclasses import dataclass

KUBERNETES = "v1.36.3"
PAUSE_IMAGE = "octavo.test/pause:1"
PROBE_IMAGE = "octavo.test/probe:1"
COREDNS_IMAGE = "octavo.test/coredns:1"


@dataclass(frozen=True)
class Binary:
    """`package` is a folder of `module`, or a package of a published module at `version`."""

    name: str
    package: str
    steps: int  # about how many packages the compiler reports: the length of its progress bar
    version: str = ""
    tags: str = ""
    native: bool = False
    ldflags: str = ""
    module: str = "."  # the folder below go/ whose go.mod says the versions

    @property
    def target(self) -> str:
        return f"{self.package}@{self.version}" if self.version else self.package


_STAMP = "k8s.io/component-base/version."
KUBE_STAMP = f"-X {_STAMP}gitVersion={KUBERNETES} -X {_STAMP}gitMajor=1 -X {_STAMP}gitMinor={KUBERNETES.split('.')[1]}"
_HELM = "helm.sh/helm/v3/pkg/chartutil.k8sVersion"
HELM_STAMP = f"-X {_HELM}Major=1 -X {_HELM}Minor={KUBERNETES.split('.')[1]}"  # what `helm template` renders for
CONTAINERD = ("github.com/containerd/containerd/v2/cmd/", "v2.4.2")

BINARIES = (
    Binary("kube", "./kube", 2150, ldflags=KUBE_STAMP),
    Binary("coredns", ".", 900, module="coredns"),
    Binary("probe", "./probe", 1),
    Binary("containerd", CONTAINERD[0] + "containerd", 560, CONTAINERD[1]),
    Binary("containerd-shim-runc-v2", CONTAINERD[0] + "containerd-shim-runc-v2", 30, CONTAINERD[1]),
    Binary("ctr", CONTAINERD[0] + "ctr", 60, CONTAINERD[1]),
    # Without the tag every pod with a seccomp profile is refused; libseccomp is a C library.
    Binary("runc", "github.com/opencontainers/runc", 120, "v1.5.3", tags="seccomp", native=True),
    # The newest kube-router the module proxy serves whole.
    Binary("kube-router", "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router", 700, "v2.1.0"),
    Binary("helm", "helm.sh/helm/v3/cmd/helm", 500, "v3.22.0", ldflags=HELM_STAMP),
)

# Program that must be there -> the Debian package that brings it.
DEBIAN = {
    "/usr/sbin/iptables": "iptables",
    "/usr/sbin/nft": "nftables",
    "/usr/sbin/ipset": "ipset",
    "/usr/sbin/conntrack": "conntrack",
    "/usr/sbin/ip": "iproute2",
    "/usr/sbin/sysctl": "procps",
    "/usr/bin/nsenter": "util-linux",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "/usr/bin/gcc": "gcc",
    "/usr/bin/pkg-config": "pkg-config",
    "/usr/include/seccomp.h": "libseccomp-dev",
    "/usr/bin/busybox": "busybox-static",
}
