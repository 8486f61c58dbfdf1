"""What Slurm and Kubernetes say of a process becomes labels and hosts.

The variables of Slurm are those that `srun env` printed under Slurm 22.05.8 (Debian); account and
QOS, which that had not, are of its manual sbatch(1). The file of labels is as the page "Expose Pod
Information to Containers Through Files" of Kubernetes' documentation shows it.
"""

import socket
import subprocess
from pathlib import Path

import pytest

from paceline.record.scheduler import job_labels, place_of

SLURM = {
    "SLURMD_NODENAME": "gpu-17",
    "SLURM_CLUSTER_NAME": "here",
    "SLURM_JOB_ID": "1042",
    "SLURM_JOB_NAME": "llama 8b",
    "SLURM_JOB_NODELIST": "gpu-[17-18]",
    "SLURM_JOB_PARTITION": "gpu-long",
    "SLURM_JOB_UID": "1000",
    "SLURM_JOB_USER": "alice",
    "SLURM_LOCALID": "3",
    "SLURM_PROCID": "11",
    "SLURM_NTASKS": "16",
}
PODINFO = 'cluster="test-cluster1"\nrack="rack-22"\nzone="us-est-coast"\n'


def test_slurm_names_job_queue_user_and_node():
    assert job_labels(SLURM) == {
        "slurm_job": "1042",
        "job_name": "llama 8b",
        "queue": "gpu-long",
        "user": "alice",
        "cluster": "here",
    }
    assert place_of(SLURM) == {"host": "gpu-17", "gpu": "3"}
    more = {**SLURM, "SLURM_JOB_ACCOUNT": "llm", "SLURM_JOB_QOS": "high"}
    assert (job_labels(more)["account"], job_labels(more)["qos"]) == ("llm", "high")


def test_outside_of_a_scheduler_nothing_is_said(tmp_path):
    assert job_labels({"USER": "me", "SLURM_CLUSTER_NAME": "login"}, tmp_path, tmp_path / "x") == {}
    assert place_of({}) == {"host": socket.gethostname()}


def test_kubernetes_names_pod_node_namespace_and_queue(tmp_path):
    env = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "train-0", "NODE_NAME": "node-7"}
    (tmp_path / "ns").write_text("team-a\n")
    (tmp_path / "labels").write_text(
        PODINFO
        + 'batch.kubernetes.io/job-name="llama"\nkueue.x-k8s.io/queue-name="gold"\nteam="a\\"b"\n'
    )
    assert job_labels(env, tmp_path, tmp_path / "ns") == {
        "kubernetes_job": "llama",
        "queue": "gold",
        "team": 'a"b',
        "namespace": "team-a",
    }
    assert place_of(env) == {"host": "node-7", "pod": "train-0"}
    named = {**env, "MY_POD_NAME": "p", "POD_NAMESPACE": "own"}  # the documentation has MY_
    assert place_of(named)["pod"] == "p"
    assert job_labels(named, tmp_path, tmp_path / "ns")["namespace"] == "own"


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b'a="b', b"=\n" * 9, b"x" * 200_000])
def test_files_that_are_none_are_nothing(tmp_path, content):
    (tmp_path / "labels").write_bytes(content)
    env = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert job_labels(env, tmp_path, tmp_path / "ns") == {}


def test_long_texts_are_cut():
    assert len(job_labels({**SLURM, "SLURM_JOB_NAME": "x" * 999})["job_name"]) == 200


EPILOG = Path(__file__).parents[1] / "deploy" / "slurm" / "paceline-epilog.sh"


def epilog(tmp_path, conf, **env):
    path = tmp_path / "paceline.conf"
    path.write_text(conf)
    given = {"PACELINE_CONF": str(path), **env}
    return subprocess.run(
        ["sh", EPILOG], env=given, timeout=60, check=False, capture_output=True
    ).returncode


def test_the_epilog_ends_well_whatever_happens(tmp_path):
    away = "PACELINE_MONITOR=http://127.0.0.1:1\nPACELINE_TOKEN=x\n"
    assert epilog(tmp_path, away, SLURM_JOB_ID="1") == 0
    assert epilog(tmp_path, away) == 0
    assert epilog(tmp_path, "", SLURM_JOB_ID="1") == 0
    assert epilog(tmp_path, away, SLURM_JOB_ID='1"}; rm -rf /') == 0
    given = {"PACELINE_CONF": str(tmp_path / "none"), "SLURM_JOB_ID": "1"}
    assert subprocess.run(["sh", EPILOG], env=given, timeout=60, check=False).returncode == 0
