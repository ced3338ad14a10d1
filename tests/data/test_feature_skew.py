"""Clients whose inputs differ by noise, rotation or colour."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import ndimage
from scipy.stats import kstest

import atoll
from atoll import Experiment
from atoll.data.dealing.feature_skew import colour, level_of_rows, noise, rotation
from atoll.data.population import partition_as_bytes
from atoll.fleet.node.shards import read_shard, write_shards
from atoll.runs.export import load_module
from atoll.settings.plugins import remember
from atoll.settings.validation import validate
from atoll.support.errors import InputError


def experiment(seed: int = 0, **data: Any) -> Experiment:
    return Experiment(validate({"seed": seed, "data": {"clients": 12, **data}, "local": {"steps": 1}}))


@pytest.mark.parametrize("partition", ["one-label", "some-labels"])
def test_a_levels_test_clients_hold_all_classes(partition: str) -> None:
    made = experiment(skew="noise", skew_levels=2, partition=partition)
    assert (made.clients.test.class_counts() > 0).all()


def test_test_clients_hold_the_classes_of_all_clients() -> None:
    made = experiment(partition="one-label", clients=7, held_out_clients=2)
    assert len(made.clients.test) == 9


def pixels(channels: int = 1) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(0, 256, (5, channels, 9, 12)).astype(np.uint8)


def test_noise_grows_by_level_and_is_normal() -> None:
    inputs = np.full((50, 1, 20, 20), 100, np.uint8)
    for level in range(3):
        added = (noise(inputs, level, 3, 1 / 255, np.random.default_rng(level), 0.3) - 100.0) / 255
        assert kstest(added.ravel() / np.sqrt(0.3 * (level + 1) / 3), "norm").pvalue > 0.01


@pytest.mark.parametrize("degrees", [30.0, 77.0, -15.0, 360.0])
def test_rotation_is_that_of_scipy(degrees: float) -> None:
    images = pixels(3).astype(np.float32)
    expected = ndimage.rotate(images, degrees / 2, axes=(-2, -1), reshape=False, order=1)
    turned = rotation(images, 1, 2, degrees)
    inner = (slice(None), slice(None), slice(3, -3), slice(4, -4))  # at the edge SciPy has nothing between pixel and 0
    np.testing.assert_allclose(turned[inner], expected[inner], rtol=0, atol=1e-3)
    assert turned.dtype == np.float32


def test_quarter_turns_are_exact_and_bytes_stay_bytes() -> None:
    images = pixels()[..., :9]
    np.testing.assert_array_equal(rotation(images, 1, 4), np.rot90(images, axes=(-2, -1)))
    assert rotation(images, 1, 5).dtype == np.uint8


def test_colours_go_around_the_circle() -> None:
    images = pixels(3)
    red, green, blue = (colour(images, level, 3, 0.5) for level in range(3))
    for channel, tinted in enumerate((red, green, blue)):
        others = [c for c in range(3) if c != channel]
        np.testing.assert_array_equal(tinted[:, channel], images[:, channel])
        np.testing.assert_array_equal(tinted[:, others], np.rint(images[:, others] * 0.5))


@pytest.mark.parametrize("skew", ["noise", "rotation", "colour"])
def test_each_client_has_one_level_and_the_seed_decides(skew: str) -> None:
    made, again, other = (experiment(seed, skew=skew, skew_levels=3).clients.dealt for seed in (0, 0, 1))
    np.testing.assert_array_equal(made.data.inputs, again.data.inputs)
    assert (made.data.inputs != other.data.inputs).any()
    np.testing.assert_array_equal(made.groups(), np.repeat([0, 1, 2], 4))
    for client in range(12):
        assert set(made.data.groups_of(made.samples(client))) == {client // 4}
    assert made.data.test_groups is not None
    assert np.ptp(np.bincount(made.data.test_groups)) == 0  # 360 test samples, evenly over the levels


def test_samples_are_changed_once_and_by_their_clients_level() -> None:
    plain, turned = experiment().clients.dealt, experiment(skew="rotation", skew_levels=4).clients.dealt
    np.testing.assert_array_equal(plain.indices, turned.indices)
    for client in range(12):
        own = plain.data.inputs[plain.samples(client)]
        expected = np.rot90(own, client // 3, axes=(-2, -1))
        np.testing.assert_array_equal(turned.data.inputs[turned.samples(client)], expected)


def test_test_clients_have_a_level_each() -> None:
    made = experiment(skew="noise", skew_levels=3)
    tests = made.clients.test
    assert [set(tests.data.groups_of(tests.samples(k)).tolist()) for k in range(len(tests))] == [{0}, {1}, {2}]


def test_test_samples_of_clients_are_dealt_out_by_another_partition() -> None:
    data = atoll.Dataset(
        "own", np.ones((8, 2), np.float32), np.arange(8) % 2, np.ones((4, 2), np.float32), np.arange(4) % 2, 2,
        owners=np.repeat([0, 1], 4), test_owners=np.array([1, 0, 1, 0]),
    )  # fmt: skip
    made = Experiment(data={"dataset": data, "clients": 2, "skew": "noise"}, method={"name": "ifca"})
    assert sorted(made.clients.test.indices.tolist()) == [0, 1, 2, 3]


def test_training_and_test_samples_draw_noise_of_their_own() -> None:
    def drawn(inputs: Any, rng: np.random.Generator) -> Any:
        return rng.random(inputs.shape, np.float32)

    data = Experiment(data={"clients": 4, "skew": drawn, "skew_levels": 1}).clients.dealt.data
    assert (data.inputs[0] != data.test_inputs[0]).all()


def test_unset_levels_are_one_a_client() -> None:
    assert experiment(skew="noise").clients.dealt.groups().tolist() == list(range(12))


def test_natural_clients_take_their_test_samples_along() -> None:
    data = atoll.Dataset(
        "own", np.ones((8, 2), np.float32), np.arange(8) % 2, np.ones((4, 2), np.float32), np.arange(4) % 2, 2,
        owners=np.repeat([0, 1], 4), test_owners=np.array([1, 0, 1, 0]),
    )  # fmt: skip
    made = Experiment(data={"dataset": data, "partition": "natural", "clients": 2, "skew": "noise"}, local={"steps": 1})
    assert made.clients.dealt.data.test_groups is not None
    assert made.clients.dealt.data.test_groups.tolist() == [1, 0, 1, 0]


def test_a_partition_file_gives_the_same_clients(tmp_path: Path) -> None:
    first = experiment(skew="rotation", skew_levels=3, partition="dirichlet", alpha=0.5)
    file = tmp_path / "held.npz"
    file.write_bytes(partition_as_bytes(first.clients.dealt, first.clients.test))
    second = experiment(seed=1, skew="rotation", skew_levels=3, partition="file", partition_file=str(file))
    for name in ("dealt", "test"):
        one, other = getattr(first.clients, name), getattr(second.clients, name)
        np.testing.assert_array_equal(one.indices, other.indices)
        np.testing.assert_array_equal(one.data.inputs, other.data.inputs)
        np.testing.assert_array_equal(one.data.test_inputs, other.data.test_inputs)


def test_a_fleets_shards_and_exported_models_know_of_it(tmp_path: Path) -> None:
    made = experiment(skew="colour", skew_levels=3, standardise="pool")
    folders = write_shards(made, tmp_path)
    for client in (0, 11):
        shard = read_shard(made.settings, folders[client])
        np.testing.assert_array_equal(shard.inputs, made.clients.dealt.data.inputs[made.clients.dealt.samples(client)])
        assert (shard.scale, shard.standard) == (made.clients.dealt.data.scale, made.clients.dealt.data.standard)
    module = load_module(made.settings, dict(made.module.state_dict()))  # whose first layer has three channels
    assert [*module.state_dict()] == [*made.module.state_dict()]


def test_own_functions_are_skews() -> None:
    def dimmed(inputs: Any, level: int, levels: int, by: float = 0.5) -> Any:
        return inputs * (1 - by * level / levels)

    made = Experiment(data={"clients": 4, "skew": dimmed, "by": 1.0}, local={"steps": 1}).clients.dealt
    plain = Experiment(data={"clients": 4}, local={"steps": 1}).clients.dealt
    own = made.samples(3)
    np.testing.assert_allclose(made.data.inputs[own], plain.data.inputs[own] * 0.25)


def test_levels_whose_inputs_have_other_types_keep_their_values() -> None:
    def shifted(inputs: Any, level: int) -> Any:
        return inputs - 0.5 if level else inputs

    made = Experiment(data={"clients": 2, "skew": shifted}, local={"steps": 1}).clients.dealt
    plain = Experiment(data={"clients": 2}, local={"steps": 1}).clients.dealt
    for client in range(2):
        own = made.samples(client)
        np.testing.assert_array_equal(made.data.inputs[own], plain.data.inputs[own] - 0.5 * client)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"skew": "nois"}, r"data.skew = 'nois': .*did you mean 'noise'"),
        ({"skew_levels": 2}, r"data.skew_levels = 2: needs a data.skew"),
        ({"skew": "noise", "skew_levels": 13}, r"data.skew_levels = 13: must be at most the number of clients, 12"),
        ({"skew": "noise", "variance": -1.0}, r"data.variance = -1.0"),
        ({"angle": 90.0}, r"data.angle"),
        ({"skew": "colour", "strength": 2.0}, r"data.strength = 2.0"),
        ({"skew": "rotation", "partition": "rotated"}, r"data.skew = 'rotation': its levels are planted groups"),
        ({"skew": "rotation", "rotations": 2}, r"data.skew = 'rotation': its levels are planted groups"),
        ({"skew": "rotation", "dataset": "regression"}, r"its levels are planted groups, but regression"),
        (
            {"skew": "noise", "partition": "major-class", "rho_device": 0.9, "samples": 400},
            r"data.skew: clients of different levels hold the same sample",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        experiment(**given).clients.dealt  # noqa: B018


def test_a_client_without_samples_is_named() -> None:
    with pytest.raises(InputError, match=r"data.partition = '.*': client 11 has no samples"):
        experiment(skew="noise", partition=remember(lambda clients: [[k] for k in range(11)] + [[]])).clients.dealt  # noqa: B018
    assert level_of_rows([np.array([1]), np.array([], int)], np.array([1, 0]), np.zeros(2, int)).tolist() == [0, 1]


def test_samples_that_there_are_not_are_refused() -> None:
    with pytest.raises(InputError, match=r"data.partition: indices must be integers from 0 to 1436"):
        experiment(skew="noise", partition=remember(lambda clients: [[5000]] * clients)).clients.dealt  # noqa: B018


def test_data_that_are_no_images_are_refused() -> None:
    flat = atoll.Dataset("flat", np.ones((40, 3)), np.arange(40) % 2, np.ones((4, 3)), np.arange(4) % 2, 2)
    tokens = atoll.Dataset("words", np.ones((40, 3), np.int64), np.arange(40) % 2, np.ones((4, 3)), np.arange(4) % 2, 2)
    for data, skew, told in (
        (flat, "rotation", r"data.skew = 'rotation': needs images, inputs have the shape \[3\]"),
        (flat, "colour", r"data.skew = 'colour': needs images of one or three channels, flat has \[3\]"),
        (tokens, "noise", r"data.skew = 'noise': needs inputs that are pixels or real numbers, not int64"),
    ):
        with pytest.raises(InputError, match=told):
            Experiment(data={"dataset": data, "skew": skew, "clients": 4}).clients.dealt  # noqa: B018
