"""Names that are not known, and what is meant by them."""

import pytest

from atoll.settings.experiment_file import make_runs, read_experiment
from atoll.support.errors import InputError
from atoll.support.wording import slug


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("local.learning_rate", "'lr'"),
        ("learning_rate", "local.lr"),
        ("epochs", "local.epochs"),
        ("local.local_epochs", "'epochs'"),
        ("local_steps", "local.steps"),
        ("data.num_clients", "'clients'"),
        ("local.rounds", "rounds"),
        ("method.lr", "local.lr"),
        ("run.gpu", "'device'"),
        ("random_state", "'seed'"),
    ],
)
def test_what_others_call_a_setting_is_understood(path: str, meant: str) -> None:
    *section, key = path.split(".")
    with pytest.raises(InputError) as caught:
        make_runs({section[0]: {key: 1}} if section else {key: 1})
    assert f"did you mean {meant}?" in str(caught.value)


@pytest.mark.parametrize(("given", "meant"), [("SCAFFOLD", "scaffold"), ("Fed-Avg", "fedavg"), ("CFL_MGD", "cfl-mgd")])
def test_other_spellings_of_a_name_are_understood(given: str, meant: str) -> None:
    with pytest.raises(InputError, match=f"did you mean '{meant}'"):
        make_runs({"method": {"name": given}})


@pytest.mark.parametrize(("name", "where"), [("scaffold", "method.name"), ("dirichlet", "data.partition")])
def test_a_method_in_the_place_of_a_recipe_is_told_how_it_is_run(name: str, where: str) -> None:
    with pytest.raises(InputError, match=f"atoll run quickstart --set {where}={name}"):
        read_experiment(name)


def test_names_of_files_are_at_most_150_bytes_long() -> None:
    assert slug("x" * 150) == "x" * 100
    assert slug("\U00020000" * 150) == "\U00020000" * 37
    assert slug("界" * 150) == "界" * 50
