"""Certificates and kubeconfigs. Elliptic keys: two dozen pairs in a few milliseconds."""

import base64
import datetime
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from .layout import API_SERVICE_IP, API_URL, CONTROL_IP, DOMAIN, Layout

LIFETIME = datetime.timedelta(days=365)
EARLIER = datetime.timedelta(hours=1)  # clocks of a machine just restored may run behind


@dataclass(frozen=True)
class Pair:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return key_pem(self.key)

    def write(self, folder: Path, name: str) -> None:
        (folder / f"{name}.crt").write_bytes(self.certificate_pem)
        write_secret(folder / f"{name}.key", self.key_pem)


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def write_secret(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)


def _builder(subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - EARLIER).not_valid_after(now + LIFETIME)


def authority(name: str) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = _builder(subject, key).issuer_name(subject)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return Pair(builder.sign(key, hashes.SHA256()), key)


def issue(ca: Pair, user: str, group: str = "", hosts: Iterable[str] = ()) -> Pair:
    """A certificate for a client (`user`, `group`) and, with `hosts`, for a server too."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
    if group:
        subject.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
    usage = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    builder = _builder(x509.Name(subject), key).issuer_name(ca.certificate.subject)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(usage), critical=False)
    if names := [_general_name(host) for host in hosts]:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return Pair(builder.sign(ca.key, hashes.SHA256()), key)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def kubeconfig(server: str, ca: Pair, client: Pair, context: str) -> str:
    def text(pem: bytes) -> str:
        return base64.b64encode(pem).decode()

    cluster = {"server": server, "certificate-authority-data": text(ca.certificate_pem)}
    user = {"client-certificate-data": text(client.certificate_pem), "client-key-data": text(client.key_pem)}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": context, "cluster": cluster}],
            "users": [{"name": context, "user": user}],
            "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
            "current-context": context,
        }
    )


def write_all(layout: Layout, api_port: int) -> None:
    """Every certificate and kubeconfig of the cluster."""
    folder = layout.pki
    folder.mkdir(mode=0o700, parents=True)
    ca = authority(f"{layout.context}-ca")
    front_proxy_ca = authority(f"{layout.context}-front-proxy-ca")
    ca.write(folder, "ca")
    front_proxy_ca.write(folder, "front-proxy-ca")
    write_secret(folder / "service-account.key", key_pem(ec.generate_private_key(ec.SECP256R1())))
    services = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", f"kubernetes.default.svc.{DOMAIN}"]
    issue(ca, "kube-apiserver", hosts=[CONTROL_IP, API_SERVICE_IP, "127.0.0.1", "localhost", *services]).write(
        folder, "apiserver"
    )
    issue(ca, "kube-apiserver-kubelet-client", "system:masters").write(folder, "kubelet-client")
    issue(front_proxy_ca, "front-proxy-client").write(folder, "front-proxy-client")
    for node in layout.nodes:
        issue(ca, node.name, hosts=[node.ip, node.name]).write(folder, node.name)
    users = {
        "kube-controller-manager": ("system:kube-controller-manager", ""),
        "kube-scheduler": ("system:kube-scheduler", ""),
        "kube-proxy": ("system:kube-proxy", ""),
        "kube-router": ("kube-router", ""),
        **{f"{node.name}-kubelet": (f"system:node:{node.name}", "system:nodes") for node in layout.nodes},
    }
    for name, (user, group) in users.items():
        content = kubeconfig(API_URL, ca, issue(ca, user, group), layout.context)
        write_secret(folder / f"{name}.kubeconfig", content.encode())
    admin = kubeconfig(f"https://127.0.0.1:{api_port}", ca, issue(ca, "admin", "system:masters"), layout.context)
    write_secret(layout.kubeconfig, admin.encode())
