"""`paceline doctor`: what is installed, which GPUs there are, what works."""

import json
import sys

import pytest

from paceline import doctor
from paceline.cli.main import run
from paceline.doctor import Package, examine, find_gpus, numbers
from paceline.extras import pip_install

#: As pages of others show them: an H100 of a cluster, SUSE's documentation of driver 555.42.06,
#: Talos Linux's of 515.65.01.
INFORMATION = """\
Model: \t\t NVIDIA H100 80GB HBM3
IRQ:   \t\t 10
GPU UUID: \t GPU-9221d5d1-b60b-a624-bf14-0a1819cfda3b
GPU Firmware: \t 535.129.03
"""
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  555.42.06  Release Build  "
    "(abuild@host)  Thu Jul 11 12:00:00 UTC 2024\nGCC version:  gcc version 7.5.0 (SUSE Linux) \n"
)
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  515.65.01  Wed Mar 16 11:24:05 UTC 2022\n"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(("version", "driver"), [(OPEN, "555.42.06"), (CLOSED, "515.65.01")])
def test_a_gpu_of_nvidias_driver(tmp_path, version, driver):
    write(tmp_path / "proc/driver/nvidia/version", version)
    write(tmp_path / "proc/driver/nvidia/gpus/0000:62:00.0/information", INFORMATION)
    (gpu,) = find_gpus(tmp_path)
    assert (gpu.name, gpu.driver) == ("NVIDIA H100 80GB HBM3", f"nvidia {driver}")


def test_gpus_of_amds_driver_but_not_the_cpu_node(tmp_path):
    nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    for node, simds, target in ((0, 0, 0), (1, 1216, 90402), (2, 440, 90010)):
        text = f"cpu_cores_count 0\nsimd_count {simds}\ngfx_target_version {target}\n"
        write(nodes / str(node) / "properties", text)
    assert [gpu.name for gpu in find_gpus(tmp_path)] == ["AMD GPU gfx942", "AMD GPU gfx90a"]


def test_no_driver_is_no_gpu(tmp_path):
    assert find_gpus(tmp_path) == ()


def test_versions_are_compared_by_their_numbers():
    assert numbers("2.13.0+cpu") == (2, 13)
    assert numbers("1.26.4") > numbers("1.26") == numbers("1.26.0")
    assert numbers("2.10") > numbers("2.9")


def test_requirements_are_read_off_the_metadata(monkeypatch):
    lines = [
        "numpy>=1.26",
        "nothing-like-it>=3",
        "scipy>=1.11; extra == 'calibrate'",
        'ray[default]>=2.40; extra == "fleet"',
        "pytest>=8.2; extra == 'dev'",
        "paceline[docs,monitor]; extra == 'dev'",
    ]
    monkeypatch.setattr(doctor, "requires", lambda name: lines)
    monkeypatch.setattr(doctor, "version", _version({"numpy": "1.25.9", "scipy": "1.11"}))
    base, extras = doctor.packages()
    assert base == (
        Package("numpy", ">=1.26", "1.25.9", False),
        Package("nothing-like-it", ">=3", "", False),
    )
    assert extras == {
        "calibrate": (Package("scipy", ">=1.11", "1.11", True),),
        "fleet": (Package("ray", ">=2.40", "", False),),
    }


def _version(installed):
    def version(name):
        if name not in installed:
            raise doctor.PackageNotFoundError(name)
        return installed[name]

    return version


def test_what_is_missing_comes_with_how_to_install_it(monkeypatch):
    lines = ["numpy>=1.26", "scipy>=1.11; extra == 'calibrate'", "torch>=2.5; extra == 'profile'"]
    monkeypatch.setattr(doctor, "requires", lambda name: lines)
    monkeypatch.setattr(doctor, "version", _version({"numpy": "2.0", "torch": "2.4"}))
    features = {feature.name: feature for feature in examine("0.2.0").features}
    calibrate = features["calibrate"]
    assert (calibrate.works, calibrate.missing) == (False, "scipy")
    assert calibrate.install == pip_install("calibrate")
    profile = next(f for name, f in features.items() if name.startswith("profile, "))
    assert profile.missing == "torch (here 2.4, needed >=2.5)"
    assert next(iter(features.values())).works


def test_a_gpu_that_pytorch_does_not_see_is_said(monkeypatch):
    monkeypatch.setattr(doctor, "find_gpus", lambda: (doctor.Gpu("NVIDIA H100", "nvidia 555"),))
    torch = {"version": "2.13.0+cpu", "problem": "", "cuda": None, "gpus": []}
    monkeypatch.setattr(doctor, "torch_says", lambda: torch)
    monkeypatch.setattr(doctor, "requires", lambda name: ["torch>=2.5; extra == 'profile'"])
    monkeypatch.setattr(doctor, "version", _version({"torch": "2.13.0+cpu"}))
    gpu = next(f for f in examine("0.2.0", ask_torch=True).features if "GPU" in f.name)
    assert (gpu.works, gpu.missing) == (False, "PyTorch sees no GPU")
    assert "pytorch.org" in gpu.install


def test_the_command_prints_the_same_as_json_and_imports_nothing_heavy(capsys):
    heavy = {"torch", "numba", "pyarrow", "matplotlib"} - set(sys.modules)
    assert run(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert not heavy & set(sys.modules)
    assert found["schema"] == doctor.SCHEMA
    assert found["healthy"]
    assert found["torch"] is None
    assert {package["name"] for package in found["base"]} >= {"numpy", "numba"}
    assert run(["doctor"]) == 0
    out = capsys.readouterr().out
    for feature in found["features"]:
        assert f"  {'yes' if feature['works'] else 'no '}  {feature['name']}\n" in out
        assert feature["works"] or (feature["missing"] and feature["install"])
        assert feature["install"] in out


def test_a_broken_base_install_is_no_success(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "requires", lambda name: ["nothing-like-it>=3"])
    assert run(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "nothing-like-it absent (needed >=3)\n" in out
    assert "pip install nothing-like-it" in out
