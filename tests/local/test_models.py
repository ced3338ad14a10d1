import pytest
import torch
from torch import nn

from atoll import InputError
from atoll.local.layers import Standardize
from atoll.local.models import MODELS, alexnet, cnn, linear, lr, lr_linear, mlp
from atoll.local.weights import check_outputs

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)
SEQUENCES = ("lstm", "transformer")


def mebibytes(module: nn.Module) -> float:
    return sum(p.numel() * p.element_size() for p in module.parameters()) / 2**20


def test_the_three_sizes_of_the_feduc_paper() -> None:
    assert mebibytes(lr(MNIST, 10)) == pytest.approx(2.56, abs=0.01)
    assert mebibytes(cnn(MNIST, 10)) == pytest.approx(1.64, abs=0.01)
    assert mebibytes(cnn(CIFAR, 10)) == pytest.approx(3.35, abs=0.01)


def test_lr_without_activations_is_one_linear_map() -> None:
    module = lr_linear(MNIST, 10)
    one, other = torch.randn(2, 3, *MNIST)
    zero = module(torch.zeros(3, *MNIST))
    torch.testing.assert_close(module(one + other) - zero, module(one) + module(other) - 2 * zero)
    assert mebibytes(module) == mebibytes(lr(MNIST, 10))


def test_the_other_models() -> None:
    assert [tuple(p.shape) for p in mlp(MNIST, 10).parameters()] == [(200, 784), (200,), (10, 200), (10,)]
    assert sum(p.numel() for p in alexnet(CIFAR, 10).parameters()) == 1_068_298
    assert sum(p.numel() for p in linear((1, 8, 8), 10).parameters()) == 650


@pytest.mark.parametrize(
    ("name", "shape"),
    [(name, shape) for name in MODELS if name not in (*SEQUENCES, "pretrained") for shape in (MNIST, CIFAR)]
    + [(name, (6, 4)) for name in SEQUENCES],
)
def test_every_model_maps_its_inputs_to_classes(name: str, shape: tuple[int, ...]) -> None:
    module = MODELS[name](shape, 7)
    check_outputs(module, shape, 7, name)
    assert module.training  # the check leaves the mode as it was


def test_alexnet_crops_and_standardises() -> None:
    image = torch.rand(2, 3, 32, 32) * 9 + 4
    out = Standardize(28)(image)
    crop = image[:, :, 2:30, 2:30]
    expected = (crop - crop.mean(dim=(1, 2, 3), keepdim=True)) / crop.std(dim=(1, 2, 3), correction=0, keepdim=True)
    assert torch.allclose(out, expected, atol=1e-5)
    assert torch.isfinite(Standardize(28)(torch.zeros(1, 1, 28, 28))).all()


def test_response_norm_is_an_option() -> None:
    count = sum(isinstance(layer, nn.LocalResponseNorm) for layer in alexnet(CIFAR, 10, response_norm=True).modules())
    assert count == 2
    assert not any(isinstance(layer, nn.LocalResponseNorm) for layer in alexnet(CIFAR, 10).modules())


@pytest.mark.parametrize("name", ["cnn", "alexnet"])
def test_small_images_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=rf"model\.name = '{name}': needs images of at least .* shape \[1, 8, 8\]"):
        MODELS[name]((1, 8, 8), 10)


def test_outputs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match=r"must return shape \[2, 10\].*returned \[2, 9\]"):
        check_outputs(mlp(MNIST, 9), MNIST, 10, "mine")
    with pytest.raises(InputError, match="no parameters"):
        check_outputs(nn.Flatten(), MNIST, 784, "mine")
    with pytest.raises(InputError, match="cannot take inputs"):
        check_outputs(nn.Linear(3, 10), MNIST, 10, "mine")


@pytest.mark.parametrize("edges", [False, True])
def test_alexnet_takes_any_crop_from_7_pixels(edges: bool) -> None:
    for crop in range(7, 33):
        module = alexnet(CIFAR, 10, channels=2, crop=crop, edges=edges)
        assert module(torch.rand(2, *CIFAR)).shape == (2, 10)
    with pytest.raises(
        InputError, match=r"needs images of at least 33x33 pixels; the data set has shape \[3, 32, 32\]"
    ):
        alexnet(CIFAR, 10, crop=33)


def test_ifcas_network_pools_24_pixels_to_6() -> None:
    """TensorFlow's pooling, "SAME": 24 to 12 to 6, the last window over the edge; as many parameters as at 28."""
    inputs = torch.rand(2, 3, 32, 32)
    module = alexnet(CIFAR, 10, response_norm=True, crop=24, edges=True)
    assert sum(each.numel() for each in module.parameters()) == 1_068_298
    (first, *_) = (layer for layer in module.modules() if isinstance(layer, nn.MaxPool2d))
    padded = nn.functional.pad(inputs[..., :24, :24], (0, 1, 0, 1), value=-torch.inf)
    assert torch.equal(first(inputs[..., :24, :24]), nn.functional.max_pool2d(padded, 3, 2))
