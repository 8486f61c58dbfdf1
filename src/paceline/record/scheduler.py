"""The scheduler's facts about this process: labels of the job, and its node.

Slurm sets its variables in every job (sbatch(1) and srun(1), "OUTPUT ENVIRONMENT VARIABLES";
checked with Slurm 22.05.8). Kubernetes sets KUBERNETES_SERVICE_HOST in every pod. Pod, node and
labels come through the downward API, with the names in the examples of its documentation ("Expose
Pod Information to Containers Through Environment Variables" and "... Through Files").
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path

#: Label -> Slurm's variables; the first existing one is used.
_SLURM = {
    "slurm_job": ("SLURM_JOB_ID",),
    "slurm_array_job": ("SLURM_ARRAY_JOB_ID",),
    "job_name": ("SLURM_JOB_NAME",),
    "queue": ("SLURM_JOB_PARTITION",),
    "user": ("SLURM_JOB_USER",),
    "account": ("SLURM_JOB_ACCOUNT",),
    "qos": ("SLURM_JOB_QOS",),
    "cluster": ("SLURM_CLUSTER_NAME",),
}
#: Label -> variables in a pod's ``env``.
_POD = {
    "namespace": ("POD_NAMESPACE", "MY_POD_NAMESPACE"),
    "service_account": ("POD_SERVICE_ACCOUNT", "MY_POD_SERVICE_ACCOUNT"),
}
_POD_NAMES = ("POD_NAME", "MY_POD_NAME")
_NODES = ("SLURMD_NODENAME", "NODE_NAME", "MY_NODE_NAME")
_LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
#: Label -> labels of a pod that Kubernetes, Kubeflow, JobSet, Kueue, Volcano and Ray set.
_POD_LABELS = {
    "kubernetes_job": (
        "batch.kubernetes.io/job-name",
        "jobset.sigs.k8s.io/jobset-name",
        "training.kubeflow.org/job-name",
        "volcano.sh/job-name",
        "ray.io/cluster",
    ),
    "queue": ("kueue.x-k8s.io/queue-name", "volcano.sh/queue-name"),
    "team": ("team",),
    "user": ("user",),
}
#: The mount folder of the downward API's files in the documentation's example.
POD_INFO = Path("/etc/podinfo")
_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_MAX_BYTES, _MAX_CHARACTERS = 1 << 16, 200
#: A line of the downward API's ``labels``: key="value", with the value quoted by Go's rules.
_LINE = re.compile(r'([^=\s]+)="((?:[^"\\]|\\.)*)"')


def job_labels(
    env: Mapping[str, str] = os.environ, pod_info: Path = POD_INFO, namespace: Path = _NAMESPACE
) -> dict[str, str]:
    """The scheduler's labels of the job; empty without a scheduler.

    Args:
        env: environment of the process.
        pod_info: folder of the downward API's files.
        namespace: file with the pod's namespace, which Kubernetes mounts by itself.
    """
    labels = _named(_SLURM, env) if env.get("SLURM_JOB_ID") else {}
    if env.get("KUBERNETES_SERVICE_HOST"):
        text = {"namespace": _read(namespace).strip()}
        of_pod = _named(_POD_LABELS, _pod_labels(_read(pod_info / "labels")))
        labels = {**of_pod, **{k: v for k, v in text.items() if v}, **_named(_POD, env), **labels}
    return {name: text[:_MAX_CHARACTERS] for name, text in labels.items()}


def place_of(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """``host`` (the node), ``pod`` and ``gpu`` (its number on the node), if known.

    Args:
        env: environment of the process.
    """
    name = socket.gethostname()
    pod = _first(_POD_NAMES, env)
    if not pod and env.get("KUBERNETES_SERVICE_HOST"):
        pod = env.get("HOSTNAME", name)  # a pod's host name is its own
    place = {"host": _first(_NODES, env) or name, "pod": pod, "gpu": _first(_LOCAL_RANKS, env)}
    return {key: text[:_MAX_CHARACTERS] for key, text in place.items() if text}


def _named(names: Mapping[str, tuple[str, ...]], values: Mapping[str, str]) -> dict[str, str]:
    found = {label: _first(keys, values) for label, keys in names.items()}
    return {label: text for label, text in found.items() if text}


def _first(keys: tuple[str, ...], values: Mapping[str, str]) -> str:
    return next((values[key] for key in keys if values.get(key)), "")


def _pod_labels(text: str) -> dict[str, str]:
    labels = {key: value.replace('\\"', '"') for key, value in _LINE.findall(text)}
    return {key: value for key, value in labels.items() if value.isprintable()}


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
