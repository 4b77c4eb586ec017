"""What the chart renders, by the Helm that the cluster under test ships."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from octavo_engine import contract
from tests.cluster.build import ensure_built

CHART = Path(__file__).parents[2] / "charts/octavo"


def helm(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [str(ensure_built().binaries / "helm"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=check)


def render(*values: str, release: str = "octavo") -> list[dict[str, Any]]:
    """The documents of `helm template` with `--set` of each value."""
    settings = [flag for value in values for flag in ("--set", value)]
    text = helm("template", release, str(CHART), "--namespace", "octavo-system", *settings).stdout
    return [document for document in yaml.safe_load_all(text) if document]


def of_kind(documents: list[dict[str, Any]], *kinds: str) -> list[dict[str, Any]]:
    return [document for document in documents if document["kind"] in kinds]


def operator(*values: str) -> dict[str, Any]:
    (deployment,) = of_kind(render(*values), "Deployment")
    return deployment


def strings(value: Any) -> Iterator[str]:
    """Every string in a document."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)
    elif isinstance(value, str):
        yield value


def test_lint_is_clean() -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART)).stdout


@pytest.mark.parametrize("values", [(), ("namespaces={team-a,team-b}",)])
def test_no_role_has_a_star_or_reads_secrets(values: tuple[str, ...]) -> None:
    roles = of_kind(render(*values), "Role", "ClusterRole")
    assert roles
    for role in roles:
        assert "*" not in set(strings(role["rules"]))
        assert "secrets" not in set(strings(role["rules"]))


def test_a_list_of_namespaces_gives_roles_there_and_no_right_on_the_cluster() -> None:
    documents = render("namespaces={team-a,team-b}")
    bound = of_kind(documents, "ClusterRoleBinding")
    assert bound == []
    where = {role["metadata"]["namespace"] for role in of_kind(documents, "Role")}
    assert where == {"octavo-system", "team-a", "team-b"}
    (container,) = operator("namespaces={team-a,team-b}")["spec"]["template"]["spec"]["containers"]
    assert {"--namespace=team-a", "--namespace=team-b"} <= set(container["args"])


def test_the_operator_runs_under_the_restricted_pod_security_level() -> None:
    pod = operator()["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_ports_are_those_of_the_contract() -> None:
    (container,) = operator()["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"metrics": contract.PORT_OPERATOR_METRICS, "health": contract.PORT_OPERATOR_HEALTH}


def test_the_selector_has_no_version_and_no_value_can_break_it() -> None:
    deployment = operator("podLabels.app\\.kubernetes\\.io/name=other", "podLabels.team=a")
    selector = deployment["spec"]["selector"]["matchLabels"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert set(selector) == {f"app.kubernetes.io/{part}" for part in ("name", "instance", "component")}
    assert selector.items() <= labels.items()
    assert labels["team"] == "a"


def test_the_definition_is_kept_unless_told_otherwise() -> None:
    def annotations(*values: str) -> list[dict[str, str]]:
        crds = of_kind(render(*values), "CustomResourceDefinition")
        return [crd["metadata"].get("annotations", {}) for crd in crds]

    assert annotations() == [{"helm.sh/resource-policy": "keep"}]
    assert annotations("crds.keep=false") == [{}]
    assert annotations("crds.install=false") == []


def test_two_releases_and_long_names_do_not_collide() -> None:
    names = [{(d["kind"], d["metadata"]["name"]) for d in render(release=r)} for r in ("a", "b")]
    shared = {kind for kind, _ in names[0] & names[1]}
    assert shared == {"CustomResourceDefinition"}
    assert all(len(document["metadata"]["name"]) <= 253 for document in render(release="r" * 53))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("replica=2", "additional properties 'replica' not allowed"),
        ("replicas=0", "minimum"),
        ("logLevel=loud", "logLevel"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("namespaces={Team_A}", "namespaces"),
    ],
)
def test_wrong_values_are_refused_by_name(value: str, said: str) -> None:
    refused = helm("template", "octavo", str(CHART), "--set", value, check=False)
    assert refused.returncode != 0
    assert said in refused.stderr


def test_versions_agree() -> None:
    import tomllib

    project = tomllib.loads((CHART.parents[1] / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (project, project)
    assert f"## {project}" in (CHART.parents[1] / "CHANGELOG.md").read_text()
