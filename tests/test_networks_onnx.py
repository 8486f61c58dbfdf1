"""Layers out of ONNX files, made with onnx itself."""

import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper

from paceline.errors import ModelError
from paceline.networks.from_onnx import read_onnx
from paceline.networks.layer import NETWORK_INPUT
from paceline.networks.layers_json import check_joints
from paceline.networks.read import read_source


def weight(name, *shape):
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
    tensor.raw_data = bytes(4)  # too few: nobody decodes it
    return tensor


@pytest.fixture
def written(tmp_path):
    def write(nodes, weights=(), shape=("N", 3, 8, 8)):
        graph = helper.make_graph(
            nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            list(weights),
        )
        path = tmp_path / "net.onnx"
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
        path.write_bytes(model.SerializeToString())
        return path

    return write


def node(op, inputs, output, **attributes):
    return helper.make_node(op, inputs.split(), [output], name=output, **attributes)


def test_a_residual_network(written):
    path = written(
        [
            node("Conv", "x w b", "a", pads=[1, 1, 1, 1], strides=[2, 2]),
            node("BatchNormalization", "a s t m v", "n"),
            node("Relu", "n", "r"),
            node("Conv", "r u", "c", group=2),
            node("Add", "c r", "j"),
            node("GlobalAveragePool", "j", "g"),
            node("Flatten", "g", "f"),
            node("Gemm", "f h", "y", transB=1),
        ],
        [
            *(weight(name, 4) for name in "bstmv"),
            *(weight("w", 4, 3, 3, 3), weight("u", 4, 2, 1, 1), weight("h", 5, 4)),
        ],
    )
    network = read_source(str(path))
    kinds = [layer.kind for layer in network.layers]
    assert kinds == ["conv", "norm", "activation", "conv", "add", "pool", "view", "linear"]
    assert network.input_shape == (3, 8, 8)
    assert network.layers[0].inputs == (NETWORK_INPUT,)
    assert network.layers[4].inputs == (3, 2)
    assert network.layers[0].out_shape == (4, 4, 4)
    assert network.layers[0].window.padding == ((1, 0), (1, 0))
    assert network.parameters == 108 + 4 + 8 + 8 + 20
    assert [x.flops for x in network.layers if x.flops] == [*(2 * 64 * 27, 2 * 64 * 2, 2 * 5 * 4)]
    assert network.layers[0].grad_input_flops == 0
    check_joints(network)


def test_a_product_with_weights_is_linear_and_others_are_not(written):
    nodes = [
        node("MatMul", "x w", "q"),
        node("Transpose", "q", "t", perm=[0, 2, 1]),
        node("MatMul", "q t", "y"),
    ]
    network = read_onnx(written(nodes, [weight("w", 6, 7)], shape=(2, 5, 6)))
    first, _, second = network.layers
    assert (first.kind, first.out_shape, first.parameters) == ("linear", (7, 5), ((7, 6),))
    assert (first.flops, first.grad_input_flops) == (2 * 5 * 6 * 7, 0)
    assert first.grad_weight_flops == first.flops
    assert (second.kind, second.out_shape) == ("matmul", (5, 5))
    assert second.grad_input_flops == 2 * second.flops == 4 * 5 * 5 * 7
    check_joints(network)


def test_an_operator_without_a_shape_is_named(written):
    with pytest.raises(ModelError, match="'y' has no shape, and none follows from its inputs"):
        read_onnx(written([node("Mystery", "x", "y")]))


def test_open_sizes_are_refused(written):
    with pytest.raises(ModelError, match="'x' has no shape"):
        read_onnx(written([node("Relu", "x", "y")], shape=("N", 3, "H", "W")))


def test_shapes_that_do_not_join_up_are_refused(written):
    with pytest.raises(ModelError, match="'y' has no shape"):
        read_onnx(written([node("MatMul", "x w", "y")], [weight("w", 3, 7)], shape=(2, 5, 6)))


def test_a_file_that_is_no_onnx_is_refused(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(b"\x08nonsense")
    with pytest.raises(ModelError, match="is no ONNX file"):
        read_onnx(path)
    with pytest.raises(FileNotFoundError):
        read_onnx(tmp_path / "absent.onnx")
