"""What the caller's own shell reaches: the API server, relays and the proxy, all on the host's loopback."""

import http.client
import itertools
import os
import socket
import time
from urllib.parse import urlsplit

import httpx
import pytest

from tests.cluster.cluster import LocalCluster
from tests.cluster.errors import ClusterError
from tests.cluster.pods import PORT, probe_pod, service
from tests.cluster.waiting import wait_until

pytestmark = pytest.mark.cluster


@pytest.fixture
def web(local_cluster: LocalCluster, namespace: str) -> str:
    """A namespace with a pod and a Service named web."""
    local_cluster.apply([probe_pod("web", namespace), service("web", namespace)])
    local_cluster.wait("pod/web", "condition=Ready", namespace)
    with httpx.Client(proxy=local_cluster.proxy_url) as client:  # Ready comes before the Service's rules
        wait_until(lambda: client.get(f"http://web.{namespace}/").status_code == 200, 20, "the Service web answers")
    return namespace


def test_a_service_and_a_pod_are_relayed(local_cluster: LocalCluster, web: str) -> None:
    url = local_cluster.relay(f"{web}/web:80")
    assert httpx.get(url).text == "web\n"
    assert httpx.get(local_cluster.relay(f"{web}/pod/web:{PORT}")).text == "web\n"
    assert local_cluster.relay(f"{web}/web:80") == url  # asked again, the same


def test_the_proxy_reaches_pod_addresses_service_addresses_and_names(local_cluster: LocalCluster, web: str) -> None:
    pod = local_cluster.get("pod", "web", "-n", web)["status"]["podIP"]
    cluster_ip = local_cluster.get("service", "web", "-n", web)["spec"]["clusterIP"]
    with httpx.Client(proxy=local_cluster.proxy_url) as client:
        for url in (f"http://{pod}:{PORT}/", f"http://{cluster_ip}/", f"http://web.{web}/"):
            assert client.get(url).text == "web\n"
        assert client.get(f"http://nobody.{web}/").status_code == 502


def test_the_proxy_tunnels(local_cluster: LocalCluster, web: str) -> None:
    proxy = urlsplit(local_cluster.proxy_url)
    connection = http.client.HTTPConnection(str(proxy.hostname), proxy.port, timeout=10)
    connection.set_tunnel(f"web.{web}.svc.cluster.local", 80)
    connection.request("GET", "/")
    assert connection.getresponse().read() == b"web\n"
    connection.close()


@pytest.mark.parametrize("way", ["relay", "proxy"])
def test_a_stream_arrives_as_it_is_written(local_cluster: LocalCluster, web: str, way: str) -> None:
    proxy = local_cluster.proxy_url if way == "proxy" else None
    url = f"http://web.{web}" if proxy else local_cluster.relay(f"{web}/web:80")
    with httpx.Client(proxy=proxy) as client, client.stream("GET", f"{url}/ticks") as response:
        arrivals = [time.monotonic() for _, _ in zip(range(5), response.iter_lines(), strict=False)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(arrivals)]
    assert max(gaps) > 0.05  # written every 100 ms: together they would come in no time


def test_megabytes_pass_unchanged(local_cluster: LocalCluster, web: str) -> None:
    body = os.urandom(8 << 20)
    assert httpx.post(f"{local_cluster.relay(f'{web}/web:80')}/echo", content=body).content == body


def test_one_side_may_close_first(local_cluster: LocalCluster, web: str) -> None:
    address = urlsplit(local_cluster.relay(f"{web}/web:80"))
    with socket.create_connection((str(address.hostname), address.port or 0), timeout=10) as client:
        client.sendall(b"POST /echo HTTP/1.1\r\nHost: web\r\nContent-Length: 4\r\nConnection: close\r\n\r\nhalf")
        client.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: client.recv(4096), b""))
    assert answer.endswith(b"half")


def test_a_target_that_is_not_there_is_a_reset_not_an_empty_answer(local_cluster: LocalCluster, web: str) -> None:
    address = urlsplit(local_cluster.relay(f"{web}/nobody:80"))

    def first_byte() -> bytes:  # the reset may come as early as the connection
        with socket.socket() as client:
            client.settimeout(20)
            client.connect((address.hostname, address.port))
            return client.recv(1)

    with pytest.raises(ConnectionResetError):
        first_byte()


def test_a_port_that_is_taken_is_said_so(local_cluster: LocalCluster, web: str) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    with taken, pytest.raises(ClusterError, match="address already in use"):
        local_cluster.relay(f"{web}/web:81", taken.getsockname()[1])


def test_a_target_that_makes_no_sense_is_refused(local_cluster: LocalCluster) -> None:
    with pytest.raises(ClusterError, match="NAMESPACE/SERVICE:PORT"):
        local_cluster.relay("team-a/web")
