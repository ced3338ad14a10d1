"""Networks by name: seconds by hand from rates and latencies, and what is refused in one sentence."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

from atoll import InputError
from atoll.network.links import LinksFile, Way, read_links
from atoll.network.network import Network
from atoll.network.network_records import read_records
from atoll.network.routes import linked_network
from atoll.planner.plan_costs import merge_prices, training_joules, training_prices

MB = 1_000_000  # of a model: 8 Mbit, so that it takes 8 / rate seconds
CLIENTS = """client,seconds_per_sample,samples,compute_watts,send_watts,receive_watts
anna,0.01,100,3,1,0.5
ben,0.02,50,2,1,0.5
carl,0.03,20,4,2,0.5
"""
# Three tiers above the clients: the region passes on.
LINKS = """from,to,up_mbps,up_ms,down_mbps,down_ms
anna,north,8,100,16,50
ben,north,4,,16,
ben,south,2,,8,
carl,south,16,,16,
*,north,6,,40,
north,region,80,10,40,10
south,region,40,10,40,10
region,server,4,200,8,100
"""
SAME = """
[devices.sensor]
seconds_per_sample = 0.01
compute_watts = 3
send_watts = 1
receive_watts = 0.5
up_mbps = 8
up_ms = 100
down_mbps = 16
down_ms = 50

[[clients]]
client = "anna"
device = "sensor"
samples = 100

[[clients]]
client = "ben"
device = "sensor"
seconds_per_sample = 0.02
samples = 50
compute_watts = 2

[[clients]]
client = "carl"
device = "sensor"
seconds_per_sample = 0.03
samples = 20
compute_watts = 4
send_watts = 2
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("clients.csv").write_text(CLIENTS)
    Path("links.csv").write_text(LINKS)
    return tmp_path


def with_clients(links: str, clients: str) -> LinksFile:
    return read_links(links).with_clients(read_records(Path(clients)))


def network_of(
    links: str = "links.csv", clients: str | None = "clients.csv", share: float = 1.0, **other: bool
) -> Network:
    file = read_links(links) if clients is None else with_clients(links, clients)
    assert file.table is not None
    assert file.table.names is not None
    zeta, samples = file.table.seconds_per_sample, file.table.samples
    assert zeta is not None
    assert samples is not None
    return linked_network(
        links, file.links(MB), file.table.names, file.server, zeta * samples, share, file.table.power, **other
    )


def test_seconds_by_hand() -> None:
    network = network_of(needs_server=True)
    assert network.client_names == ("anna", "ben", "carl")
    assert network.aggregator_names == ("north", "south")
    assert network.compute_seconds.tolist() == pytest.approx([1.0, 1.0, 0.6])
    # north's pipe has 6 Mbit/s for all. To the other aggregator the way leads over the region, in 0.11 + 0.21 s or
    # back in 0.21 + 0.21 s; whoever is of north then counts for its pipe.
    assert network.upload_seconds.ravel() == pytest.approx(
        [0.1 + 8 / 6, 0.1 + 8 / 6 + 0.32, 2.0, 2.0 + 0.32, 8 / 6, 0.5]
    )
    assert network.download_seconds is not None
    assert network.download_seconds.ravel() == pytest.approx([0.55, 0.55 + 0.42, 0.5, 0.5 + 0.42, 0.5 + 0.32, 0.5])
    assert network.transfer_seconds.tolist() == pytest.approx([0.11 + 2.2, 0.21 + 2.2])
    assert network.return_seconds is not None
    assert network.return_seconds.tolist() == pytest.approx([1.1 + 0.21] * 2)
    assert network.exchange_seconds.ravel() == pytest.approx([0, 0.32, 0.42, 0])
    assert network.neighbours == ((), ())


def test_the_latency_of_a_pipe_is_of_all_that_send_through_it() -> None:
    late = LINKS.replace("*,north,6,,40,", "*,north,6,1000,40,3000")
    Path("links.csv").write_text(late + "*,server,100,5000,100,7000\n")
    network = network_of()
    assert network.upload_seconds[0] == pytest.approx([1.1 + 8 / 6, 1.1 + 8 / 6 + 0.32])
    assert network.download_seconds is not None
    assert network.download_seconds[0] == pytest.approx([3.55, 3.55 + 0.42])
    assert network.transfer_seconds.tolist() == pytest.approx([5 + 0.11 + 2.2, 5 + 0.21 + 2.2])
    assert network.return_seconds is not None
    assert network.return_seconds.tolist() == pytest.approx([7 + 1.1 + 0.21] * 2)


def test_an_aggregators_model_passes_its_pipe_whatever_the_way_on() -> None:
    """Carl has north's model over the region and south in 0.92 s, if it were not for north's pipe of 2 Mbit/s."""
    Path("links.csv").write_text(LINKS.replace("*,north,6,,40,", "*,north,6,,2,"))
    found = network_of().download_seconds
    assert found is not None
    assert found[2] == pytest.approx([8 / 2, 0.5])


def test_what_is_shared() -> None:
    sharing = network_of().sharing
    assert sharing is not None
    assert sharing.up_seconds.tolist() == pytest.approx([8 / 6, 0])
    assert sharing.down_seconds.tolist() == pytest.approx([8 / 40, 0])
    assert sharing.crosses.tolist() == [[True, True]]
    assert sharing.trunk_up_seconds.tolist() == [8 / 4]
    assert sharing.trunk_down_seconds.tolist() == [8 / 8]


def test_an_update_that_is_coded_takes_its_share() -> None:
    half, whole = network_of(share=0.5), network_of()
    assert half.upload_seconds[0] == pytest.approx([0.1 + 4 / 6, 0.12 + 4 / 6 + 0.15])
    assert half.transfer_seconds.tolist() == whole.transfer_seconds.tolist()
    assert half.sharing is not None
    assert half.sharing.up_seconds.tolist() == pytest.approx([4 / 6, 0])


def test_without_a_way_down_downloads_are_free() -> None:
    lines = [",".join(line.split(",")[:4]) for line in LINKS.splitlines()]
    Path("up.csv").write_text("\n".join(lines) + "\n")
    network = network_of("up.csv")
    assert network.download_seconds is network.return_seconds is None
    assert network.upload_seconds.tolist() == network_of().upload_seconds.tolist()


def test_a_latency_alone_says_no_way_down() -> None:
    Path("up.csv").write_text("from,to,up_seconds,down_ms\nanna,a,1,50\na,server,1,\n")
    with pytest.raises(InputError, match=r"row 1: has neither of 'down_mbps' and 'down_seconds'; it must have one"):
        read_links("up.csv").links(MB)


def test_rows_that_a_spreadsheet_leaves_empty_say_nothing() -> None:
    before = network_of()
    Path("links.csv").write_text(LINKS + ",,,,,\n , ,,,,\n\n")
    assert network_of().upload_seconds.tolist() == before.upload_seconds.tolist()


def test_links_between_aggregators_make_them_neighbours() -> None:
    Path("links.csv").write_text(LINKS + "north,south,8,,8,\n")
    network = network_of()
    assert network.neighbours == ((1,), (0,))
    assert network.exchange_seconds[0, 1] == pytest.approx(0.32)  # over the region it is still quicker


def test_measured_seconds_stand_for_rates() -> None:
    Path("links.csv").write_text("from,to,up_seconds\n0,a,1.5\n1,a,0.5\n1,b,0.25\na,server,2\nb,server,0\n")
    file = read_links("links.csv")
    assert file.table is None
    network = linked_network("links.csv", file.links(MB), ["0", "1"], file.server, np.ones(2))
    assert network.upload_seconds.tolist() == [[1.5, 3.5], [0.5, 0.25]]
    assert network.transfer_seconds.tolist() == [2.0, 0.0]


def test_a_links_own_seconds_stand_for_its_devices_rate() -> None:
    device = "[devices.sensor]\nup_mbps = 8\nup_ms = 100\ndown_mbps = 16\n"
    links = 'links = [{from = "anna", to = "north", up_seconds = 2}]\n'
    Path("site.toml").write_text(f'{links}{device}[[clients]]\nclient = "anna"\ndevice = "sensor"\n')
    (link,) = read_links("site.toml").links(MB)
    assert (link.up, link.down) == (Way(0.0, 2.0), Way(0.0, 0.5))


def test_of_equally_quick_routes_the_first_ones_price_counts() -> None:
    Path("links.csv").write_text("from,to,up_seconds,up_price\n0,a,1,1000\n0,b,1,5000\na,b,0,\n")
    file = read_links("links.csv")
    prices = linked_network("links.csv", file.links(MB), ["0"], file.server, np.ones(1), has_prices=True).prices
    assert prices is not None
    assert prices.upload.tolist() == [[1.0, 1.0]]


def test_a_client_may_draw_no_power() -> None:
    Path("clients.csv").write_text(CLIENTS.replace("ben,0.02,50,2,1,0.5", "ben,0.02,50,0,0,0"))
    power = network_of().power
    assert power is not None
    assert (power.computing.tolist(), power.sending.tolist()) == ([3, 0, 4], [1, 0, 2])


def test_clients_of_numbers_may_stand_in_any_order() -> None:
    Path("numbers.csv").write_text("client,samples\n1,10\n0,20\n")
    table = with_clients("links.csv", "numbers.csv").table
    assert table is not None
    assert (table.names, table.samples is not None and table.samples.tolist()) == (("0", "1"), [20, 10])


def test_toml_and_json_say_the_same() -> None:
    """A device's numbers hold where the row has none: anna's link is the sensors'."""
    links = LINKS.replace("anna,north,8,100,16,50", "anna,north,,,,")
    Path("rows.csv").write_text(links)
    Path("site.toml").write_text('links = "rows.csv"\n' + SAME)
    from_toml, from_csv = network_of("site.toml", None), network_of()
    rows = [
        dict(zip(LINKS.split("\n")[0].split(","), line.split(","), strict=True)) for line in links.split("\n")[1:-1]
    ]
    numbers = [{k: v if k in ("from", "to") else float(v) for k, v in row.items() if v} for row in rows]
    Path("site.json").write_text(json.dumps({**tomllib.loads(SAME), "links": numbers, "server": "server"}))
    for network in (from_toml, network_of("site.json", None)):
        for name in ("compute_seconds", "upload_seconds", "download_seconds", "transfer_seconds"):
            assert getattr(network, name).tolist() == getattr(from_csv, name).tolist()
        assert network.power is not None
        assert network.power.computing.tolist() == [3, 2, 4]


def test_joules_by_hand() -> None:
    """Power by seconds, of one training with its transfers, or what happens of it; a client left out takes none."""
    joules = training_joules(network_of(), np.array([0, 1, -1]))
    assert joules is not None
    up, down = 0.1 + 8 / 6, 0.05 + 0.5
    answers, late, dropped = joules.tolist()
    assert answers == pytest.approx([3 * 1 + up + 0.5 * down, 2 * 1 + 2.32 + 0.5 * 0.92, 0])
    assert late == pytest.approx([3 * 1 + 0.5 * down, 2 * 1 + 0.5 * 0.92, 0])
    assert dropped == pytest.approx([0.5 * down, 0.5 * 0.92, 0])


PRICED = """from,to,up_seconds,up_price,down_seconds,down_price
anna,north,1,1000,1,2000
ben,north,1,,1,
ben,south,1,5000,1,
carl,south,1,3000,1,
*,north,0.5,100,0.5,200
north,region,1,10,1,20
south,region,1,40,1,80
region,server,1,7,1,9
"""


def test_prices_by_hand() -> None:
    """A model is a thousandth of a gigabyte. Ben is nearest to both; anna reaches south over north and the region."""
    Path("priced.csv").write_text(PRICED)
    file = with_clients("priced.csv", "clients.csv")
    assert file.has_prices
    assert not with_clients("links.csv", "clients.csv").has_prices
    network = network_of("priced.csv", has_prices=True)
    prices = network.prices
    assert prices is not None
    assert (1000 * prices.upload).ravel() == pytest.approx([1100, 1100 + 10 + 80, 100, 5000, 3000 + 40 + 20, 3000])
    assert (1000 * prices.download).ravel() == pytest.approx([2200, 2200 + 20 + 40, 200, 0, 10 + 80, 0])
    labels = np.array([0, 1, -1])
    paid = training_prices(network, labels)
    assert paid is not None
    lost = pytest.approx([2200, 0, 0])
    assert (1000 * paid).tolist() == [pytest.approx([1100 + 2200, 5000, 0]), lost, lost]
    merged = merge_prices(network, labels, has_server=True)
    assert merged is not None
    assert (1000 * merged).tolist() == pytest.approx([10 + 7 + 20 + 9, 40 + 7 + 80 + 9])
    assert training_prices(network_of(), labels) is merge_prices(network_of(), labels, has_server=True) is None


def test_neighbours_pay_for_each_model_that_they_send_each_other() -> None:
    Path("priced.csv").write_text(PRICED + "north,south,1,300,1,500\n")
    network = network_of("priced.csv", has_prices=True)
    merged = merge_prices(network, np.array([0, 1, -1]), has_server=False)
    assert merged is not None
    assert (1000 * merged).tolist() == pytest.approx([300, 500])


def test_downloads_without_seconds_have_no_price() -> None:
    up = "from,to,up_seconds,up_price\nanna,a,1,1000\nben,a,1,1000\ncarl,a,1,1000\na,server,1,10\n"
    Path("priced.csv").write_text(up)
    prices = network_of("priced.csv", share=0.5, has_prices=True).prices
    assert prices is not None
    assert [float(each.sum()) for each in (prices.upload, prices.download, prices.transfer, prices.back)] == [
        pytest.approx(1.5),
        0.0,
        pytest.approx(0.01),
        0.0,
    ]
    Path("priced.csv").write_text(up.replace("up_price", "down_price"))
    with pytest.raises(InputError, match=r"row 1: has neither of 'down_mbps' and 'down_seconds'"):
        network_of("priced.csv", has_prices=True)


REFUSED: list[tuple[str, str, list[str]]] = [
    ("anna,north,8,", "anna,north,0,", ["row 1", "'up_mbps' is '0'", "greater than 0"]),
    ("anna,north,8,", "anna,north,fast,", ["row 1", "'up_mbps' is 'fast'", "greater than 0"]),
    ("anna,north,8,", "anna,north,,", ["row 1", "has neither of 'up_mbps' and 'up_seconds'"]),
    ("ben,north,4,,16,", "ben,north,4,,,", ["row 2", "has neither of 'down_mbps' and 'down_seconds'"]),
    ("north,8,100", "north,8,-1", ["row 1", "'up_ms' is '-1'", "at least 0"]),
    ("carl,south", "karl,south", ["client 'carl' has no link to an aggregator"]),
    ("ben,south", "bne,south", ["row 3", "unknown id 'bne'"]),
    ("south,region", "south,regoin", ["unknown id 'regoin'"]),
    ("*,north", "*,nort", ["row 5", "'to' is 'nort'; a link from '*' must lead to an aggregator"]),
    ("carl,south,16,,16,\n", "", ["client 'carl' has no link to an aggregator"]),
    ("carl,south", "carl,server", ["client 'carl' has no link to an aggregator"]),
    ("south,region,40,10,40,10\n", "", ["aggregator 'south' has no path to 'server'"]),
    ("region,server,4,200,8,100\n", "", ["no aggregator's link leads to 'server'"]),
    ("ben,south", "ben,north", ["row 3", "'ben' and 'north' are already linked"]),
    ("north,region", "north,anna", ["row 6", "'to' is the client 'anna'"]),
    ("carl,south", "carl,carl", ["row 4", "joins 'carl' with itself"]),
    ("down_ms", "down_s", ["unknown column 'down_s'", "down_ms"]),
]


@pytest.mark.parametrize(("words", "instead", "told"), REFUSED, ids=[" ".join(told) for *_, told in REFUSED])
def test_links_that_are_refused(words: str, instead: str, told: list[str]) -> None:
    assert LINKS.count(words) == 1
    Path("links.csv").write_text(LINKS.replace(words, instead))
    with pytest.raises(InputError) as error:
        network_of(needs_server=True)
    assert "\n" not in str(error.value)
    for part in ("links.csv", *told):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("words", "instead", "told"),
    [
        ("ben,0.02", "anna,0.02", ["client 'anna' is given twice"]),
        ("ben,0.02", "ben,0", ["row 2", "'seconds_per_sample' is '0'"]),
        ("ben,0.02", "ben,", ["row 2", "has no 'seconds_per_sample'"]),
        ("carl,0.03,20", "carl,0.03,2.5", ["row 3", "'samples' must be a whole number"]),
        ("carl,0.03,20", "carl,0.03,1e30", ["row 3", "'samples' must be a whole number"]),
        ("ben,0.02", ",0.02", ["row 2", "'client' is", "must be a name"]),
        ("send_watts", "send_watt", ["unknown column 'send_watt'"]),
    ],
)
def test_clients_that_are_refused(words: str, instead: str, told: list[str]) -> None:
    Path("clients.csv").write_text(CLIENTS.replace(words, instead))
    with pytest.raises(InputError) as error:
        network_of()
    for part in ("clients.csv", *told):
        assert part in str(error.value)


def test_documents_that_are_refused() -> None:
    for text, told in (
        ("links = 3\n", "'links' must be tables"),
        ("link = []\n", "unknown key 'link'"),
        ('links = "absent.csv"\n', "absent.csv"),
        ('links = "links.csv"\n[[clients]]\nclient = "anna"\ndevice = "phone"\n', "'device' is 'phone'"),
        ('links = "links.csv"\n[[clients]]\nclient = "a"\ndevice = ["x"]\n', "'device' is ['x']; it must be a name"),
        ('links = "links.csv"\n[devices.phone]\nwatts = 3\n', "unknown column 'watts'"),
        ("links = [", "cannot be read"),
    ):
        Path("site.toml").write_text(text)
        with pytest.raises(InputError, match=r"site\.toml|absent\.csv") as error:
            read_links("site.toml")
        assert told in str(error.value)
    Path("site.toml").write_text('links = "links.csv"\nclients = "clients.csv"\n')
    with pytest.raises(InputError, match="give one of them"):
        with_clients("site.toml", "clients.csv")
    with pytest.raises(InputError, match=r"must be a .csv, .toml or .json file"):
        read_links("links.txt")
