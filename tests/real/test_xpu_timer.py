"""Telemetry from pages of xpu_timer that its authors' jobs gave.

They are test data of intelligent-machine-learning/dlrover (Apache-2.0, commit 7c3e964), below
``dlrover/python/tests/data/xpu_timer``: eight GPUs of one worker, bf16, all of which hang.
"""

import re
from pathlib import Path

import pytest

import requires
from paceline.detect.gpu_health import gpu_health
from paceline.sources.telemetry.files import load_telemetry

FOLDER = "dlrover/python/tests/data/xpu_timer"


def page(folder: Path, name: str) -> tuple[Path, str]:
    repository = "intelligent-machine-learning/dlrover"
    text = requires.source(repository, "7c3e964", f"{FOLDER}/{name}")
    path = folder / "page.txt"
    path.write_text(text)
    return path, text


def test_level_gpus_have_no_sign(tmp_path: Path) -> None:
    path, text = page(tmp_path, "hang/xpu_timer_metric_all")
    telemetry = load_telemetry([path])
    assert gpu_health(telemetry) == ()
    fastest: dict[str, float] = {}
    for rank, value in re.findall(r'_FLOPS\{.*local_rank="(\d)".*\} (\S+)', text):
        fastest[rank] = max(float(value), fastest.get(rank, 0.0))
    assert len(fastest) == 8
    for gpu in telemetry.gpus:
        assert telemetry.of[gpu, "matmul_tflops"].value.tolist() == [fastest[gpu.number]]
    assert gpu.host == "aistudio-z1y0p6pq-edljob-worker-0"
    assert "kernels hang on 8 of 8 GPUs" in telemetry.notes[0]


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("normal/xpu_timer_metric_0", None),
        ("hang/xpu_timer_metric_some", "on 3 of 8 GPUs"),
    ],
)
def test_who_hangs(tmp_path: Path, name: str, note: str | None) -> None:
    path, _ = page(tmp_path, name)
    notes = load_telemetry([path]).notes
    if note is None:
        assert notes == ()
    else:
        (told,) = notes
        assert note in told
