"""Names of precisions: those of NVIDIA's tables, torchtitan's, MLPerf's logs and torch's dtypes."""

import pytest

from paceline.errors import ModelError
from paceline.model.precision_names import precision_of


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("MXFP8", "fp8"),
        ("FP8-CS (FP8-MX)", "fp8"),
        ("FP8_CS", "fp8"),
        ("float8 tensorwise", "fp8"),
        ("fp8-delayed", "fp8"),
        ("NVFP4", "nvfp4"),
        ("BF16", "bf16"),
        ("torch.bfloat16".removeprefix("torch."), "bf16"),
        ("float32", "fp32"),
        ("fp16", "fp16"),
    ],
)
def test_names(name, precision):
    assert precision_of(name) == precision


@pytest.mark.parametrize("name", ["", "tf32", "MXFP4", "int8", "8"])
def test_what_is_not_modelled_is_refused(name):
    with pytest.raises(ModelError, match="cannot be expressed; BF16"):
        precision_of(name)
