"""``paceline layers``: the table, the file, and what it refuses."""

import pytest

from paceline.cli.main import run
from paceline.networks.layers_json import read_layers
from paceline.networks.presets import network_preset


def test_a_preset_is_printed_and_written(tmp_path, capsys):
    path = tmp_path / "net.layers.json"
    assert run(["layers", "resnet18", "--input", "3x64x64", "-o", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "layer1.0.conv1" in printed
    assert "68 layers, 11,689,512 parameters, 297,115,648 FLOPs forward" in printed
    assert read_layers(path) == network_preset("resnet18", (3, 64, 64))
    assert run(["layers", str(path)]) == 0
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resnet51"], "the nearest are resnet50"),
        (["resnet18", "--input", "3xwide"], "--input '3xwide' is no shape"),
        (["net.py:build"], "needs --input"),
        (["weights.pt"], "a pickle, which is never opened"),
        (["absent.layers.json"], "absent.layers.json"),
        (["absent.onnx"], "absent.onnx"),
    ],
)
def test_what_cannot_be_read_is_one_line(arguments, message, capsys):
    assert run(["layers", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_table_with_several_networks_asks_which(tmp_path, capsys):
    path = tmp_path / "layers.csv"
    head = "model,input,index,kind,in_channels,in_shape,out_channels,out_shape,kernel,stride,"
    rows = [f"{name},3x8,0,relu,3,8,3,8,1,1,0,0" for name in ("a", "b")]
    path.write_text("\n".join([head + "parameters,shortcut", *rows]))
    assert run(["layers", str(path)]) == 2
    assert "holds a at 3x8, b at 3x8; name one" in capsys.readouterr().err
    assert run(["layers", f"{path}:b"]) == 0
