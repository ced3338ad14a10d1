"""Which tensors a layer's name, or a place among the layers, stands for."""

from torch import nn

from atoll.local.travel import cut_before, frozen, layers_of, norms


def test_layers_are_those_that_have_parameters() -> None:
    module = nn.Sequential(nn.BatchNorm1d(2, affine=False), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    assert layers_of(module) == ["1", "3"]


def test_frozen_parameters_and_those_of_normalisation_are_named() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.BatchNorm1d(2, affine=False))
    module[0].bias.requires_grad_(False)
    assert frozen(module) == ("0.bias",)
    assert norms(module) == ("1.weight", "1.bias", "2.running_mean", "2.running_var", "2.num_batches_tracked")


def test_a_model_is_cut_between_layers_with_their_buffers() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    names = tuple(module.state_dict())
    assert [cut_before(module, layer)[0] for layer in range(4)] == [(), names[:2], names[:-2], names]
    assert all(sum(cut_before(module, layer), ()) == names for layer in range(4))
