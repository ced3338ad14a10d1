"""The protocol of secure sums by itself: the sum is right whoever is lost, and nothing else is told."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, chisquare

from atoll.secure import field
from atoll.secure.collector import Collector
from atoll.secure.crypto import Forged, agree, is_signed, make_pair, mask, seal, sign, unseal
from atoll.secure.field import PRIME, join, recover, split
from atoll.secure.participant import Participant, Revealed, own_mask_key, pair_mask
from atoll.secure.roster import Keys, NotSummed, Roster, threshold_of
from tests.secure.nodes import STEPS, Meeting, drawn, identities, instance, names_of, plain
from tests.tiers import part_of, thinned


@given(secret=st.binary(min_size=32, max_size=32), count=st.integers(1, 12), data=st.data())
def test_any_shares_at_the_threshold_give_the_secret(secret: bytes, count: int, data: st.DataObject) -> None:
    threshold = data.draw(st.integers(1, count))
    shares = dict(enumerate(split(secret, threshold, count), start=1))
    chosen = data.draw(st.sets(st.sampled_from(sorted(shares)), min_size=threshold))
    assert join({place: shares[place] for place in chosen}) == secret


def test_fewer_shares_than_the_threshold_tell_nothing() -> None:
    """Of one secret, split again and again, two of the three shares needed are spread evenly, also as a pair."""
    drawn = [split(b"s" * 32, 3, 5)[:2] for _ in range(4000)]
    pairs = np.array([[share >> 252 for share in pair] for pair in drawn]) @ [16, 1]
    assert chisquare(np.bincount(pairs, minlength=256)).pvalue > 1e-6


def test_a_false_share_gives_another_secret_or_none() -> None:
    shares = dict(enumerate(split(b"s" * 32, 2, 3), start=1))
    with pytest.raises(ValueError, match="false shares"):
        join({1: PRIME - 1, 2: 0})  # whose line is at -2 at 0
    assert join({1: shares[1], 2: shares[2] + 1}) != b"s" * 32
    with pytest.raises(ValueError, match="32 bytes"):
        split(b"short", 1, 1)


@pytest.mark.more
@settings(max_examples=part_of(40))
@given(data=st.data(), count=st.integers(2, 7), size=st.integers(1, 40), share=st.floats(0.5, 1.0))
def test_the_sum_is_that_of_the_numbers_that_came(data: st.DataObject, count: int, size: int, share: float) -> None:
    """Whoever is lost, as long as as many are left as must be; to the bit, also where sums wrap around."""
    names, numbers = names_of(count), drawn(count, size, data.draw(st.integers(0, 9)))
    numbers[names[0]] = np.full(size, 2**64 - 1, np.uint64)
    spare = count - threshold_of(share, count)
    going = data.draw(st.lists(st.sampled_from(names), max_size=spare, unique=True))
    steps = [data.draw(st.sampled_from(STEPS)) for _ in going]
    lost = {step: [name for name, at in zip(going, steps, strict=True) if at == step] for step in STEPS}
    meeting = Meeting(numbers, lost, share)
    total = meeting.carry_out()
    before = {name for step in STEPS[:3] for name in lost[step]}
    assert total.tolist() == plain(numbers, [name for name in names if name not in before]).tolist()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("count", [3, 6])
def test_so_many_may_be_lost_at_each_step_and_no_more(step: str, count: int) -> None:
    numbers, threshold = drawn(count, 5), threshold_of(2 / 3, count)
    assert threshold == {3: 2, 6: 4}[count]
    names = names_of(count)
    Meeting(numbers, {step: names[: count - threshold]}).carry_out()
    with pytest.raises(NotSummed, match=rf"{threshold - 1} of {count} nodes .+, {threshold} must") as caught:
        Meeting(numbers, {step: names[: count - threshold + 1]}).carry_out()
    assert caught.value.code == "too_few"


def test_thresholds_are_more_than_half() -> None:
    assert [threshold_of(2 / 3, n) for n in range(2, 10)] == [2, 2, 3, 4, 4, 5, 6, 6]
    assert [threshold_of(0.5, n) for n in range(2, 10)] == [2, 2, 3, 3, 4, 4, 5, 5]
    assert threshold_of(1.0, 7) == 7
    assert threshold_of(0.56, 25) == 14, "the product is 14.000000000000002, rounded up 15"


def looks_uniform(numbers: np.ndarray) -> bool:
    """Whether each of the 8 bytes is spread evenly: a chi-square test of each, at one in a million together."""
    parts = numbers.view(np.uint8).reshape(-1, 8)
    return all(chisquare(np.bincount(column, minlength=256)).pvalue > 1e-6 / 8 for column in parts.T)


def test_masked_numbers_look_uniform_and_others_do_not() -> None:
    """Of 50,000 numbers the test finds bytes whose odds are wrong by 8 % with probability 0.99 and more.

    Byte odds of (1 +- d) / 256 make the statistic a noncentral chi-square one with n d^2 as its noncentrality.
    """
    from scipy.stats import ncx2

    count, off = 50_000, 0.08
    limit = chi2.isf(1e-6 / 8, 255)
    assert ncx2.sf(limit, 255, count * off**2) > 0.99
    numbers = drawn(3, count)
    meeting = Meeting(numbers)
    total = meeting.carry_out()
    assert all(looks_uniform(each) for each in meeting.masked.values())
    assert not looks_uniform(numbers["node-0"])
    assert not looks_uniform(total)
    # Half the masks are not enough: numbers with all but one byte hidden are found out.
    assert not looks_uniform(meeting.masked["node-0"] & np.uint64(2**63 - 1))


def test_what_a_node_sends_tells_nothing_of_its_numbers_while_one_mask_stays() -> None:
    """The server with all of the others' secrets has not taken out the node's own mask; nor the other way round."""
    numbers = {name: np.zeros(2000, np.uint64) for name in names_of(3)}
    meeting = Meeting(numbers)
    first = meeting.nodes["node-0"]
    private, secret = first._masking[0], first._secret
    meeting.carry_out()
    assert (first._masking, first._sealing, first._secret, first._held) == ((b"", b""), (b"", b""), b"", {}), (
        "forgotten"
    )
    roster, masked = meeting.collector.roster, meeting.masked["node-0"]
    public = {keys.name: keys.masking for keys in roster.keys}
    pairs = sum(pair_mask(roster, "node-0", other, private, public[other], 2000) for other in ("node-1", "node-2"))
    own = mask(own_mask_key(roster, "node-0", secret), 2000)
    assert (masked == own + pairs).all()
    for left in (masked - own, masked - pairs):
        assert looks_uniform(left)


def test_masks_of_two_nodes_cancel_and_differ_by_sum() -> None:
    who = identities(names_of(2))
    sides = {name: Participant(each, instance(), 0.5, 2) for name, each in who.items()}
    keys = tuple(each.advertise() for each in sides.values())
    masks = []
    for changed in (instance(), instance(event=4), instance(repeat=2), instance(cluster=3), instance(token="bb")):
        roster = Roster(changed, 2, keys)
        ours, theirs = (
            pair_mask(roster, name, other, sides[name]._masking[0], roster.by_name[other].masking, 100)
            for name, other in (("node-0", "node-1"), ("node-1", "node-0"))
        )
        assert not (ours + theirs).any()
        masks.append(ours)
    assert all(not np.isin(one, other).any() for k, one in enumerate(masks) for other in masks[:k])


def test_no_two_sums_have_keys_in_common() -> None:
    who = identities(names_of(2))["node-0"]
    first, second = (Participant(who, instance(), 0.5, 2).advertise() for _ in range(2))
    assert len({first.sealing, first.masking, first.commitment, second.sealing, second.masking, second.commitment}) == 6


def begun(count: int = 3) -> tuple[dict[str, Participant], tuple[Keys, ...]]:
    """Return nodes that have advertised, and their keys."""
    who = identities(names_of(count))
    nodes = {name: Participant(each, instance(), 2 / 3, 2) for name, each in who.items()}
    return nodes, tuple(each.advertise() for each in nodes.values())


def signed_as(name: str, keys: Keys) -> Keys:
    return replace(keys, signature=sign(identities([name])[name].key, keys.text(instance())))


SWAPS: dict[str, Callable[[tuple[Keys, ...]], tuple[Keys, ...]]] = {
    "a masking key": lambda keys: (*keys[:2], replace(keys[2], masking=make_pair()[1])),
    "a sealing key": lambda keys: (*keys[:2], replace(keys[2], sealing=make_pair()[1])),
    "a commitment": lambda keys: (*keys[:2], replace(keys[2], commitment=bytes(32))),
    "all keys, signed by another": lambda keys: (*keys[:2], signed_as("stranger", replace(keys[2], masking=bytes(32)))),
    "another's name": lambda keys: (*keys[:2], replace(keys[2], name="node-1")),
    "a node that nobody knows": lambda keys: (*keys[:2], signed_as("stranger", replace(keys[2], name="stranger"))),
    "the node's own keys": lambda keys: (signed_as("node-0", replace(keys[0], masking=make_pair()[1])), *keys[1:]),
    "the node itself missing": lambda keys: keys[1:],
    "a signature for another sum": lambda keys: (
        *keys[:2],
        replace(keys[2], signature=sign(identities(["node-2"])["node-2"].key, keys[2].text(instance(event=9)))),
    ),
}


@pytest.mark.parametrize("what", SWAPS)
def test_a_server_that_swaps_keys_is_refused(what: str) -> None:
    nodes, keys = begun()
    with pytest.raises(NotSummed) as caught:
        nodes["node-0"].deal(SWAPS[what](keys), 2)
    assert caught.value.code == "wrong_keys"
    nodes, keys = begun()
    assert nodes["node-0"].deal(keys, 2).keys() == {"node-1", "node-2"}, "unswapped they are taken"


def test_a_key_that_agrees_with_all_is_refused() -> None:
    """Its owner's signature is good, but everybody knows the masks."""
    nodes, keys = begun()
    keys = (*keys[:2], signed_as("node-2", replace(keys[2], masking=bytes(32))))
    dealt = {name: nodes[name].deal(keys, 2) for name in nodes if name != "node-2"}
    nodes["node-0"].take({"node-1": dealt["node-1"]["node-0"]})
    nodes["node-0"].mask(np.zeros(3, np.uint64))  # without node-2, whose shares have not come
    with pytest.raises(Forged):
        agree(make_pair()[0], bytes(32), b"")
    keys = (*keys[:2], signed_as("node-2", replace(keys[2], sealing=bytes(32))))
    nodes, fresh = begun()
    with pytest.raises(NotSummed, match="the key of node 'node-2' is invalid"):
        nodes["node-0"].deal((*fresh[:2], keys[2]), 2)


@pytest.mark.parametrize(("threshold", "least"), [(1, 2), (4, 2), (2, 4)], ids=["low", "high", "few nodes"])
def test_a_node_insists_on_its_threshold_and_on_company(threshold: int, least: int) -> None:
    who = identities(names_of(3))
    nodes = {name: Participant(each, instance(), 2 / 3, least) for name, each in who.items()}
    keys = tuple(each.advertise() for each in nodes.values())
    with pytest.raises(NotSummed) as caught:
        nodes["node-0"].deal(keys, threshold)
    assert caught.value.code == "too_few"


def test_a_node_is_never_alone_in_a_sum() -> None:
    node = Participant(identities(["node-0"])["node-0"], instance(), 2 / 3, 1)
    with pytest.raises(NotSummed, match="1 nodes in a sum"):
        node.deal((node.advertise(),), 1)


def test_nodes_that_are_told_different_thresholds_take_no_shares() -> None:
    """Else a server could need fewer shares of one node than others believe."""
    nodes, keys = begun()
    every = {name: node.deal(keys, 2 if name == "node-2" else 3) for name, node in nodes.items()}
    with pytest.raises(NotSummed, match="'node-2' has not sealed its shares for this sum"):
        nodes["node-0"].take({name: every[name]["node-0"] for name in ("node-1", "node-2")})


def test_shares_of_another_length_are_refused() -> None:
    nodes, shares = dealt()
    liar = nodes["node-1"]
    short = seal(liar._sealing_key(liar._roster, "node-1", "node-0"), b"short", liar._roster.context)
    with pytest.raises(NotSummed, match="the shares of node 'node-1' are malformed"):
        nodes["node-0"].take(shares["node-0"] | {"node-1": short})


def dealt(count: int = 3) -> tuple[dict[str, Participant], dict[str, dict[str, bytes]]]:
    """Return nodes that have dealt, and what each was dealt."""
    nodes, keys = begun(count)
    every = {name: each.deal(keys, threshold_of(2 / 3, count)) for name, each in nodes.items()}
    return nodes, {name: {other: every[other][name] for other in every if other != name} for name in nodes}


def test_shares_that_are_another_nodes_or_older_are_refused() -> None:
    nodes, shares = dealt()
    with pytest.raises(NotSummed, match="has not sealed"):
        nodes["node-0"].take({"node-1": shares["node-0"]["node-2"], "node-2": shares["node-0"]["node-1"]})
    nodes, shares = dealt()
    with pytest.raises(NotSummed, match="has not sealed"):  # what it has sealed itself: each way has a key of its own
        nodes["node-0"].take({"node-1": shares["node-1"]["node-0"], "node-2": shares["node-2"]["node-0"]})
    _, older = dealt()
    nodes, _ = dealt()
    with pytest.raises(NotSummed, match="has not sealed"):
        nodes["node-0"].take(older["node-0"])
    nodes, shares = dealt()
    with pytest.raises(NotSummed, match="is not in this sum"):
        nodes["node-0"].take(shares["node-0"] | {"stranger": b"x"})
    nodes, _ = dealt()
    with pytest.raises(NotSummed, match="1 of 3 nodes dealt shares, 2 must"):
        nodes["node-0"].take({})


def masked(count: int = 3) -> dict[str, Participant]:
    nodes, shares = dealt(count)
    for name, each in nodes.items():
        each.take(shares[name])
        each.mask(np.zeros(2, np.uint64))
    return nodes


def test_a_node_never_gives_both_shares_of_a_node_away() -> None:
    """Asked again, for other survivors or the same, it says nothing more; and one answer has one share of each."""
    nodes = masked()
    everyone, fewer = names_of(3), ["node-0", "node-1"]
    signed = {name: each.sign_survivors(everyone) for name, each in nodes.items()}
    given_away = nodes["node-0"].reveal(signed)
    assert given_away.own.keys() == set(everyone)
    assert not given_away.others
    for again in (lambda: nodes["node-0"].reveal(signed), lambda: nodes["node-0"].sign_survivors(fewer)):
        with pytest.raises(NotSummed) as caught:
            again()
        assert caught.value.code == "replayed"
    nodes = masked()
    signed = {name: nodes[name].sign_survivors(fewer) for name in fewer}
    given_away = nodes["node-0"].reveal(signed)
    assert (given_away.own.keys(), given_away.others.keys()) == (set(fewer), {"node-2"})


def test_survivors_must_be_the_same_for_all() -> None:
    """A server that tells nodes of different survivors gets no share of any."""
    nodes = masked()
    signed = {
        "node-0": nodes["node-0"].sign_survivors(["node-0", "node-1"]),
        "node-1": nodes["node-1"].sign_survivors(names_of(3)),
    }
    with pytest.raises(NotSummed, match="has signed another list of survivors"):
        nodes["node-0"].reveal(signed)
    nodes = masked()
    alone = {"node-0": nodes["node-0"].sign_survivors(names_of(3))}
    with pytest.raises(NotSummed, match="1 of 3 nodes agree on whose numbers have come, 2 must"):
        nodes["node-0"].reveal(alone)


@pytest.mark.parametrize(
    ("survivors", "told"),
    [
        (["node-0"], "1 of 3 nodes sent masked numbers, 2 must"),
        (["node-1", "node-2"], "this node is not among the survivors"),
        (["node-0", "stranger"], "is not in this sum"),
    ],
)
def test_survivors_that_cannot_be_are_not_signed(survivors: list[str], told: str) -> None:
    with pytest.raises(NotSummed, match=told):
        masked()["node-0"].sign_survivors(survivors)


def test_steps_are_taken_once_and_in_order() -> None:
    nodes, keys = begun()
    node = nodes["node-0"]
    steps: list[Callable[[], object]] = [
        node.advertise,
        lambda: node.take({}),
        lambda: node.mask(np.zeros(1, np.uint64)),
        lambda: node.sign_survivors([]),
        lambda: node.reveal({}),
    ]
    for step in steps:
        with pytest.raises(NotSummed, match="the next step of this sum is deal"):
            step()
    node.deal(keys, 2)
    with pytest.raises(NotSummed, match="the next step of this sum is take"):
        node.deal(keys, 2)


def test_a_step_that_is_being_taken_is_not_taken_beside_it() -> None:
    """Of two lists of survivors that come at once one is signed: both together would open a node's numbers."""
    node, refused = masked()["node-0"], list[str]()

    class Meanwhile(list[str]):
        def __iter__(self) -> Iterator[str]:
            if not refused:
                with pytest.raises(NotSummed, match="asked to sign_survivors") as caught:
                    node.sign_survivors(names_of(3))
                refused.append(caught.value.code)
            return super().__iter__()

    node.sign_survivors(Meanwhile(["node-0", "node-1"]))
    assert refused == ["replayed"]


def test_who_lies_to_the_server_is_out_or_found_out() -> None:
    meeting = Meeting(drawn(3, 4))
    sides = {name: each.advertise() for name, each in meeting.nodes.items()}
    forged = sides | {"node-1": replace(sides["node-1"], masking=make_pair()[1])}
    kept = Collector(instance(), identities(names_of(3))["node-0"].peers, 2 / 3)
    assert [keys.name for keys in kept.take_keys(forged)] == ["node-0", "node-2"]
    assert kept.left == ("node-0", "node-2")
    with pytest.raises(NotSummed, match="0 of 3 nodes dealt shares"):
        kept.take_dealt({"node-0": {"node-1": b""}, "node-2": {}})


def by_chance(node: Participant) -> int:
    return int.from_bytes(node._identity.name.encode())


def lying(
    kind: str, error: Callable[[Participant], int] = by_chance
) -> Callable[[Participant, dict[str, bytes]], Revealed]:
    """Return the last step of a node that changes all shares of one kind."""
    plainly = Participant.reveal

    def reveal(self: Participant, signatures: dict[str, bytes]) -> Revealed:
        found = plainly(self, signatures)
        shares = getattr(found, kind).items()
        return replace(found, **{kind: {name: (share + error(self)) % PRIME for name, share in shares}})

    return reveal


@pytest.mark.parametrize("kind", ["own", "others"])
@pytest.mark.parametrize("liars", [["node-0"], ["node-0", "node-4"]])
def test_false_shares_are_found_as_long_as_enough_are_true(kind: str, liars: list[str]) -> None:
    numbers = drawn(9, 4)
    meeting = Meeting(numbers, {"mask": ["node-8"]})
    for name in liars:
        meeting.nodes[name].reveal = lying(kind).__get__(meeting.nodes[name])  # type: ignore[method-assign]
    total = meeting.carry_out()
    assert (total == plain(numbers, names_of(8))).all()
    assert sorted(meeting.collector.false) == liars


def test_liars_together_do_not_have_others_blamed() -> None:
    """Here their errors cancel in the secret that some sets of shares give, into which other shares do not fit."""
    meeting = Meeting(drawn(9, 4), {"mask": ["node-8"]})
    for name in ("node-0", "node-4"):
        told = lying("own", lambda _: 1)
        meeting.nodes[name].reveal = told.__get__(meeting.nodes[name])  # type: ignore[method-assign]
    meeting.carry_out()
    assert meeting.collector.false.keys() <= {"node-0", "node-4"}


def test_where_too_many_shares_are_false_there_is_no_sum() -> None:
    meeting = Meeting(drawn(4, 4))
    for name in ("node-0", "node-1"):
        meeting.nodes[name].reveal = lying("own").__get__(meeting.nodes[name])  # type: ignore[method-assign]
    with pytest.raises(NotSummed, match=r"node 'node-0' dealt false shares of its mask"):
        meeting.carry_out()


def test_who_deals_false_shares_is_found() -> None:
    """Its mask is made from a secret other than the one that it has committed itself to."""
    meeting = Meeting(drawn(6, 4))
    plainly = meeting.nodes["node-2"].deal

    def dealing(keys: Collection[Keys], threshold: int) -> dict[str, bytes]:
        meeting.nodes["node-2"]._secret = b"7" * 32
        return plainly(keys, threshold)

    meeting.nodes["node-2"].deal = dealing  # type: ignore[method-assign]
    with pytest.raises(NotSummed, match=r"node 'node-2' dealt false shares of its mask") as caught:
        meeting.carry_out()
    assert caught.value.about == "node-2"
    assert meeting.collector.false == {"node-2": "dealt false shares of its mask"}


@pytest.mark.more
def test_false_shares_of_many_nodes_are_found_by_trying() -> None:
    """Too many sets of shares to try them all."""
    secret = b"s" * 32
    shares = dict(enumerate(split(secret, 67, 100), start=1))
    assert recover(shares | {3: 1, 50: 2, 99: 3}, 67, secret.__eq__) == (secret, {3, 50, 99})
    few = dict(enumerate(split(secret, 20, 30), start=1))
    assert recover(few | dict.fromkeys(range(1, 6), 5), 20, secret.__eq__) == (secret, set(range(1, 6)))
    assert recover(few | dict.fromkeys(range(1, 13), 5), 20, secret.__eq__) is None


@pytest.mark.more
@pytest.mark.parametrize("liars", thinned([4, 9], 1))
def test_nobody_else_is_blamed_where_most_sets_of_shares_are_not_tried(liars: int) -> None:
    """Of 24 nodes, with 16 true shares needed: four liars are found, nine can spoil the sum."""
    numbers = drawn(24, 4)
    meeting = Meeting(numbers)
    lie = names_of(24)[-liars:]
    for name in lie:
        meeting.nodes[name].reveal = lying("own").__get__(meeting.nodes[name])  # type: ignore[method-assign]
    if liars == 4:
        assert (meeting.carry_out() == plain(numbers, names_of(24))).all()
        assert sorted(meeting.collector.false) == sorted(lie)
    else:
        with pytest.raises(NotSummed, match="too many false shares of the mask of node 'node-0'"):
            meeting.carry_out()
        assert meeting.collector.false == {}


def test_liars_that_know_the_first_set_tried_are_all_that_is_found() -> None:
    """Two errors that cancel in it give the secret with true shares, which fit no other polynomial."""
    secret = b"s" * 32
    shares = dict(enumerate(split(secret, 16, 24), start=1))
    first = next(field._drawn(tuple(shares), 16))
    one, other = field._weights(first)[:2]
    error = 5 * one * pow(other, -1, field.PRIME)
    found = recover(shares | {first[0]: shares[first[0]] - 5, first[1]: shares[first[1]] + error}, 16, secret.__eq__)
    assert found is not None
    assert found[0] == secret
    assert found[1] <= set(first[:2])
    assert recover(shares | {3: shares[3] + field.PRIME, 4: 7}, 16, secret.__eq__) == (secret, {4})


def test_who_may_have_dealt_true_shares_is_not_blamed() -> None:
    """Of three nodes one is lost and one lies, so that the two needed are not there."""
    meeting = Meeting(drawn(3, 4), {"reveal": ["node-2"]})
    meeting.nodes["node-1"].reveal = lying("own").__get__(meeting.nodes["node-1"])  # type: ignore[method-assign]
    with pytest.raises(NotSummed, match=r"too many false shares of the mask of node 'node-0'"):
        meeting.carry_out()
    assert meeting.collector.false == {}


def test_seals_and_signatures_hold() -> None:
    key, other = (agree(make_pair()[0], make_pair()[1], b"") for _ in range(2))
    assert unseal(key, seal(key, b"text", b"here"), b"here") == b"text"
    for wrong in ((other, b"here"), (key, b"there")):
        with pytest.raises(Forged):
            unseal(wrong[0], seal(key, b"text", b"here"), wrong[1])
    who = identities(["node-0"])["node-0"]
    assert is_signed(who.peers["node-0"], sign(who.key, b"text"), b"text")
    assert not is_signed(who.peers["node-0"], sign(who.key, b"text"), b"other")


def test_a_node_that_answers_with_anothers_keys_is_left_out() -> None:
    own = identities(names_of(3))
    keys = {name: Participant(own[name], instance(), 0.6, 2).advertise() for name in own}
    kept = Collector(instance(), own["node-0"].peers, 0.6).take_keys(keys | {"node-0": keys["node-1"]})
    assert [each.name for each in kept] == ["node-1", "node-2"]
