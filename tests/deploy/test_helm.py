"""What the Helm chart makes of its values: what Kubernetes takes, and what the servers need.

Core kinds are held to the published schemas of Kubernetes. Those of the Prometheus operator and of
KEDA are not in them: the fields that the chart uses are compared with a list made by hand.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from cronoq_server import __version__
from cronoq_server.config import Config, load
from tests.api.certificates import Place
from tests.deploy.test_containers import instructions
from tools import helm
from tools.check_text import ROOT

CHART = ROOT / "server/deploy/helm/cronoq"
LAYOUTS = sorted((CHART / "ci").glob("*-values.yaml"))
ORACLES = ("1.27", "1.31", "1.35")
FOR = "--kube-version=v1.31.0"
TOKEN = "0123456789abcdef"
BASE = [
    "--set=store.database.existingSecret=db",
    f"--set=auth.tokens[0].name=ops,auth.tokens[0].role=admin,auth.tokens[0].value={TOKEN}",
]
# What the chart may say in kinds that Kubernetes itself does not know.
FOREIGN: dict[str, Any] = {
    "ServiceMonitor": {
        "selector": {"matchLabels": ...},
        "endpoints": [
            {
                "port": "",
                "path": "",
                "interval": "",
                "relabelings": [{"sourceLabels": [""], "targetLabel": ""}],
            }
        ],
    },
    "ScaledObject": {
        "scaleTargetRef": {"kind": "", "name": ""},
        "minReplicaCount": 0,
        "maxReplicaCount": 0,
        "pollingInterval": 0,
        "cooldownPeriod": 0,
        "triggers": [
            {
                "type": "",
                "metadata": {
                    "serverAddress": "",
                    "query": "",
                    "threshold": "",
                    "activationThreshold": "",
                },
            }
        ],
    },
}


def render(*arguments: str) -> list[dict[str, Any]]:
    """The chart's documents for these values."""
    done = helm.run(["template", "queue", str(CHART), "--namespace=work", FOR, *arguments])
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def of_kind(kind: str, documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of one kind."""
    return [document for document in documents if document["kind"] == kind]


@pytest.fixture(scope="module", params=LAYOUTS, ids=lambda path: path.stem)
def layout(request: pytest.FixtureRequest) -> Path:
    """Each file of values that the chart brings along."""
    path: Path = request.param
    return path


@pytest.fixture(scope="module")
def documents(layout: Path) -> list[dict[str, Any]]:
    """What the chart makes of it."""
    return render(f"--values={layout}")


def pods(documents: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each Deployment's pod and its only container."""
    for deployment in of_kind("Deployment", documents):
        pod = deployment["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        yield pod, container


def variables(container: dict[str, Any]) -> dict[str, Any]:
    """A container's environment by name."""
    named = {entry["name"]: entry for entry in container["env"]}
    assert len(named) == len(container["env"])
    return named


def test_chart_passes_lint(layout: Path) -> None:
    """Without a warning, for each file of values."""
    done = helm.run(["lint", "--strict", FOR, f"--values={layout}", str(CHART)], check=False)
    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout


def test_chart_is_of_the_servers_version() -> None:
    """The image that it names by default is the server beside it."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["version"] == chart["appVersion"] == __version__


@pytest.mark.parametrize("version", ORACLES)
def test_documents_fit_the_schemas_of_kubernetes(
    documents: list[dict[str, Any]], version: str
) -> None:
    """Strictly: no unknown field, no wrong type."""
    known = [document for document in documents if document["kind"] not in FOREIGN]
    assert known
    for document in known:
        kubernetes_validate.validate(document, version, strict=True)


def test_a_field_that_kubernetes_does_not_know_is_found(documents: list[dict[str, Any]]) -> None:
    """The schemas do find mistakes."""
    (deployment, *_) = of_kind("Deployment", documents)
    broken = json.loads(json.dumps(deployment))
    broken["spec"]["template"]["spec"]["containers"][0]["readinessProb"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readinessProb"):
        kubernetes_validate.validate(broken, ORACLES[-1], strict=True)


def fits(value: Any, shape: Any) -> bool:
    """Whether a value has no field beyond a shape's, and its types."""
    if shape is ...:
        return True
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(
            name in shape and fits(part, shape[name]) for name, part in value.items()
        )
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(part, shape[0]) for part in value)
    return type(value) is type(shape)


def test_documents_of_other_kinds_have_fields_that_are_known() -> None:
    """Those of the Prometheus operator and of KEDA."""
    seen = set()
    for path in LAYOUTS:
        for document in render(f"--values={path}"):
            if document["kind"] in FOREIGN:
                seen.add(document["kind"])
                assert fits(document["spec"], FOREIGN[document["kind"]]), document
    assert seen == set(FOREIGN)


def test_readiness_asks_whether_the_process_lives(documents: list[dict[str, Any]]) -> None:
    """Never whether it leads: an update would wait for ever, and standbys would be killed."""
    for _, container in pods(documents):
        for probe in ("readinessProbe", "livenessProbe"):
            assert container[probe]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    text = yaml.safe_dump_all(documents)
    assert "/readyz" not in text


@pytest.mark.parametrize("grace", [0, 30, 600])
def test_pods_have_time_to_stop_in_order(grace: int) -> None:
    """More than running attempts may take to report, whatever that is set to."""
    documents = render(*BASE, f"--set=shutdownGraceSeconds={grace}")
    ((pod, container),) = pods(documents)
    told = variables(container)["CRONOQ_SERVER__SHUTDOWN_GRACE_S"]["value"]
    assert int(told) == grace
    assert pod["terminationGracePeriodSeconds"] > grace


def test_services_route_to_every_replica(documents: list[dict[str, Any]]) -> None:
    """What selects pods selects all of a shard's and no other's; ports are the image's."""
    (exposed,) = [rest.split() for name, rest in instructions() if name == "EXPOSE"]
    deployments = of_kind("Deployment", documents)
    for service in of_kind("Service", documents):
        selector = service["spec"]["selector"].items()
        chosen = [
            d
            for d in deployments
            if selector <= d["spec"]["template"]["metadata"]["labels"].items()
        ]
        assert len(chosen) == 1
        assert chosen[0]["metadata"]["name"] == service["metadata"]["name"].removesuffix("-metrics")
        assert chosen[0]["spec"]["selector"]["matchLabels"].items() == selector
    for _, container in pods(documents):
        assert [str(port["containerPort"]) for port in container["ports"]] == exposed
    assert len(of_kind("Service", documents)) == 2 * len(deployments)


def test_pods_are_locked_down(documents: list[dict[str, Any]]) -> None:
    """The image's user, hardly anything writable, no capability, no token of the cluster."""
    ((user,),) = [rest.split() for name, rest in instructions() if name == "USER"]
    for pod, container in pods(documents):
        context = pod["securityContext"]
        assert context["runAsNonRoot"] is True
        assert f"{context['runAsUser']}:{context['runAsGroup']}" == user
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        # A Service named cronoq would otherwise become variables that begin with CRONOQ_.
        assert pod["enableServiceLinks"] is False
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        writable = [m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")]
        assert writable in (["/tmp"], ["/tmp", "/var/lib/cronoq"])
        assert (len(writable) == 2) == (
            variables(container)["CRONOQ_STORE__KIND"]["value"] == "sqlite"
        )


def test_replicas_are_spread_and_kept(documents: list[dict[str, Any]]) -> None:
    """Over hosts and zones; an update brings the new server before it takes the old one."""
    kept = {budget["metadata"]["name"] for budget in of_kind("PodDisruptionBudget", documents)}
    for deployment in of_kind("Deployment", documents):
        spec = deployment["spec"]
        spread = spec["template"]["spec"]["topologySpreadConstraints"]
        assert [one["topologyKey"] for one in spread] == [
            "kubernetes.io/hostname",
            "topology.kubernetes.io/zone",
        ]
        assert all(one["labelSelector"] == spec["selector"] for one in spread)
        if spec["replicas"] > 1:
            assert deployment["metadata"]["name"] in kept
            assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
        else:
            assert spec["strategy"] == {"type": "Recreate"}


def read_config(
    documents: list[dict[str, Any]],
    container: dict[str, Any],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Config:
    """What a container's server reads, with its Secrets and certificates at hand."""
    (config_map,) = of_kind("ConfigMap", documents)
    path = folder / "cronoq.toml"
    path.write_text(config_map["data"]["cronoq.toml"], encoding="utf-8")
    place = Place(folder / "tls")
    place.issue("server", ["queue.example"], for_server=True)
    for made, name in (
        ("server.pem", "tls.crt"),
        ("server-key.pem", "tls.key"),
        ("ca.pem", "ca.crt"),
    ):
        (place.folder / name).write_bytes((place.folder / made).read_bytes())
    environment = {}
    for name, entry in variables(container).items():
        value = entry.get(
            "value",
            "postgresql://db/queue" if name == "DATABASE_URL" else f"{name}-0123456789abcdef",
        )
        environment[name] = value.replace("/etc/cronoq/tls", str(place.folder))
        monkeypatch.setenv(name, environment[name])
    return load(path, environment)


def test_servers_understand_what_they_are_told(
    documents: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file and the variables together are a configuration without a mistake."""
    for number, (_, container) in enumerate(pods(documents)):
        folder = tmp_path / str(number)
        folder.mkdir()
        with monkeypatch.context() as patched:
            config = read_config(documents, container, folder, patched)
        assert (config.server.grpc_addr.port, config.server.http_addr.port) == (7070, 7071)
        assert config.server.metrics_addr is not None
        assert config.server.metrics_addr.port == 7072
        assert config.pools


def test_shards_know_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every server reads the same shards, is for one of them, and is where the others look."""
    documents = render(f"--values={CHART / 'ci/sharded-values.yaml'}")
    deployed = of_kind("Deployment", documents)
    assert [one["metadata"]["name"] for one in deployed] == ["queue-cronoq-cpu", "queue-cronoq-gpu"]
    shards = [
        container["args"][container["args"].index("--shard") + 1]
        for _, container in pods(documents)
    ]
    ((_, container), _) = pods(documents)
    config = read_config(documents, container, tmp_path, monkeypatch)
    assert [shard.name for shard in config.shards] == shards == ["cpu", "gpu"]
    services = {service["metadata"]["name"] for service in of_kind("Service", documents)}
    for shard in config.shards:
        host = str(shard.endpoint).removeprefix("https://").partition(".")[0]
        assert host == f"queue-cronoq-{shard.name}"
        assert host in services
    names = [(token.name, token.role) for token in config.auth.tokens]
    assert [(name, str(role)) for name, role in names] == [("ops", "admin"), ("web-shop", "client")]
    assert config.server.shutdown_grace_s == 120


def test_secrets_are_in_secrets_alone() -> None:
    """A password or token that values hold is in no other document, and one of yours is named."""
    documents = render(f"--values={CHART / 'ci/keda-values.yaml'}")
    (secret,) = of_kind("Secret", documents)
    assert set(secret["data"]) == {"url", "token-workers"}
    others = yaml.safe_dump_all([one for one in documents if one is not secret])
    assert "cronoq:secret@" not in others
    assert TOKEN not in others
    sharded = render(f"--values={CHART / 'ci/sharded-values.yaml'}")
    for _, container in pods(sharded):
        told = variables(container)
        assert told["DATABASE_URL"]["valueFrom"]["secretKeyRef"] == {
            "name": "cronoq-database",
            "key": "uri",
        }
        assert told["TOKEN_OPS"]["valueFrom"]["secretKeyRef"] == {
            "name": "cronoq-ops",
            "key": "token",
        }


def test_workers_follow_what_the_server_wants() -> None:
    """KEDA asks for the metric that the server has, and divides by the slots of a worker."""
    (scaled,) = of_kind("ScaledObject", render(f"--values={CHART / 'ci/keda-values.yaml'}"))
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["metadata"]["query"] == 'max(cronoq_slots_desired{pool="default"})'
    assert trigger["metadata"]["threshold"] == "8"
    assert "`cronoq_slots_desired`" in (ROOT / "docs/reference/metrics.md").read_text("utf-8")


def test_prometheus_asks_each_server() -> None:
    """Standbys too, and each is known by its shard."""
    documents = render(f"--values={CHART / 'ci/sharded-values.yaml'}")
    (monitor,) = of_kind("ServiceMonitor", documents)
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    chosen = [s for s in of_kind("Service", documents) if wanted <= s["metadata"]["labels"].items()]
    assert [one["metadata"]["name"] for one in chosen] == [
        "queue-cronoq-cpu-metrics",
        "queue-cronoq-gpu-metrics",
    ]
    assert all(one["spec"]["clusterIP"] == "None" for one in chosen)
    assert {port["name"] for one in chosen for port in one["spec"]["ports"]} == {"metrics"}
    assert monitor["spec"]["endpoints"][0]["port"] == "metrics"


def test_a_sqlite_file_lies_on_a_volume_that_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One server's at a time, found again after the release is gone; or one that is there."""
    documents = render(f"--values={CHART / 'ci/single-disk-values.yaml'}")
    (claim,) = of_kind("PersistentVolumeClaim", documents)
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert claim["spec"]["resources"]["requests"] == {"storage": "20Gi"}
    ((pod, container),) = pods(documents)
    (volume,) = [one for one in pod["volumes"] if "persistentVolumeClaim" in one]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    (mount,) = [one for one in container["volumeMounts"] if one["name"] == volume["name"]]
    config = read_config(documents, container, tmp_path, monkeypatch)
    assert config.store.path is not None
    assert Path(config.store.path).parent == Path(mount["mountPath"])
    own = ["--set=replicas=1,store.kind=sqlite,store.volume.existingClaim=mine", BASE[1]]
    documents = render(*own)
    assert not of_kind("PersistentVolumeClaim", documents)
    ((pod, _),) = pods(documents)
    assert {"claimName": "mine"} in [one.get("persistentVolumeClaim") for one in pod["volumes"]]


@pytest.mark.parametrize("chosen", [True, False])
def test_who_may_connect_can_be_limited(chosen: bool) -> None:
    """To those that are named, or to the namespace; servers of the release always may."""
    named = [
        "--set=networkPolicy.from[0].podSelector.matchLabels.app=shop",
        "--set=networkPolicy.metricsFrom[0].podSelector.matchLabels.app=prometheus",
    ]
    documents = render(*BASE, "--set=networkPolicy.enabled=true", *(named if chosen else ()))
    (policy,) = of_kind("NetworkPolicy", documents)
    calls, metrics = policy["spec"]["ingress"]
    ((_, container),) = pods(documents)
    ports = {port["port"] for rule in (calls, metrics) for port in rule["ports"]}
    assert ports == {port["name"] for port in container["ports"]}
    (deployment,) = of_kind("Deployment", documents)
    servers, others = calls["from"]
    assert servers["podSelector"] == deployment["spec"]["selector"] == policy["spec"]["podSelector"]
    assert others == {"podSelector": {"matchLabels": {"app": "shop"}} if chosen else {}}
    scrapers = [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]
    assert metrics.get("from") == (scrapers if chosen else None)
    assert not of_kind("NetworkPolicy", render(*BASE))


def test_values_of_the_guide_work(tmp_path: Path) -> None:
    """The first block alone, and each other one on top of it."""
    text = (ROOT / "docs/guide/kubernetes.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```yaml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 4
    files = []
    for number, block in enumerate(blocks):
        path = tmp_path / f"{number}.yaml"
        path.write_text(block, encoding="utf-8")
        files.append(f"--values={path}")
    kinds = [
        {one["kind"] for one in render(files[0], *more)}
        for more in ((), *((file,) for file in files[1:]))
    ]
    assert kinds[1] - kinds[0] == {"PersistentVolumeClaim"}
    assert kinds[2] == kinds[0]
    assert kinds[3] - kinds[0] == {"ServiceMonitor", "ScaledObject"}
    assert len(of_kind("Deployment", render(files[0], files[2]))) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([BASE[1]], "store.database: set existingSecret"),
        ([*BASE, "--set=store.database.url=postgres://db/q"], "not both"),
        ([BASE[0]], "auth: give tokens or certs"),
        ([*BASE, "--set=store.kind=memory"], "set replicas to 1"),
        ([*BASE, "--set=store.kind=sqlite"], "store.kind sqlite is kept by one process"),
        ([*BASE, "--set=store.kind=paper"], "store.kind|/store/kind"),
        ([*BASE, "--set=store.volume.size=much"], "store.volume.size|/store/volume/size"),
        ([*BASE, "--set=replica=3"], "replica"),
        ([*BASE, "--set=tls.requireClientCerts=true"], "set tls.existingSecret"),
        ([*BASE, "--set=auth.certs[0].dnsName=a,auth.certs[0].role=worker"], "requireClientCerts"),
        (
            [*BASE, "--set=shards[0].name=a,shards[0].number=1,shards[0].pools[0]=default"],
            "shards pass callers' tokens on",
        ),
        ([*BASE, "--set=shards[0].name=a,shards[0].number=300,shards[0].pools[0]=x"], "255"),
        ([*BASE, "--set=auth.tokens[0].value=short"], "16"),
        ([*BASE, "--set=terminationMarginSeconds=0"], "5"),
    ],
)
def test_values_that_cannot_work_are_refused(arguments: list[str], message: str) -> None:
    """Before anything is installed, with what to set instead."""
    with pytest.raises(subprocess.CalledProcessError) as failure:
        render(*arguments)
    assert any(part in failure.value.stderr for part in message.split("|")), failure.value.stderr


def test_without_go_the_reason_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Rather than a chart that nobody looked at."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(helm.HelmMissing, match="install Go"):
        helm.build(tmp_path)
