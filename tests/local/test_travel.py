"""Which tensors a layer's name, or a place among the layers, stands for."""

from torch import nn

from atoll.local.travel import cut_before, layers_of


def test_layers_are_those_that_have_parameters() -> None:
    module = nn.Sequential(nn.BatchNorm1d(2, affine=False), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    assert layers_of(module) == ["1", "3"]


def test_a_model_is_cut_between_layers_with_their_buffers() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    names = tuple(module.state_dict())
    assert [cut_before(module, layer)[0] for layer in range(4)] == [(), names[:2], names[:-2], names]
    assert all(sum(cut_before(module, layer), ()) == names for layer in range(4))
