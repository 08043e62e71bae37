"""Whose requests are to be answered: who counts, and how many are known."""

from __future__ import annotations

from rocketbox.broker.askers import Askers


def request(correlation_id: str) -> bytes:
    return f"CORRELATION_ID\x01{correlation_id}\x02REPLY_TO_CLIENT\x01c\x02".encode()


def test_the_first_user_of_a_correlation_id_counts() -> None:
    askers = Askers(10)
    for user in ("first", "second"):
        askers.note(request("a"), user)
    assert (askers.user_of(request("a")), askers.user_of(request("b"))) == ("first", None)


def test_the_oldest_are_forgotten_and_counted() -> None:
    askers = Askers(3)
    for number in range(5):
        askers.note(request(str(number)), "somebody")
    assert (len(askers), askers.forgotten) == (3, 2)
    known = [number for number in range(5) if askers.user_of(request(str(number)))]
    assert known == [2, 3, 4]


def test_nobody_pushes_out_the_requests_of_others() -> None:
    askers = Askers(10)
    for number in range(3):
        askers.note(request(f"a{number}"), "a")
    for number in range(100):
        askers.note(request(f"b{number}"), "b")
    assert (len(askers), askers.forgotten) == (10, 93)
    assert [askers.user_of(request(f"a{number}")) for number in range(3)] == ["a"] * 3
    assert [number for number in range(100) if askers.user_of(request(f"b{number}"))] == list(range(93, 100))
    for number in range(3, 50):
        askers.note(request(f"a{number}"), "a")
    assert len(askers) == 10
    assert [number for number in range(50) if askers.user_of(request(f"a{number}"))] == list(range(45, 50))


def test_long_ids_are_told_apart_and_take_no_more_room() -> None:
    askers = Askers(10)
    for end in "ab":
        askers.note(request("x" * 100_000 + end), end)
    assert [askers.user_of(request("x" * 100_000 + end)) for end in "abc"] == ["a", "b", None]


def test_what_is_known_is_read_back_as_it_was() -> None:
    askers, again = Askers(10), Askers(10)
    for number, user in enumerate(["a", None, "b\u4e2d"]):
        askers.note(request(f"{number}\u4e2d"), user)
    odd = b"CORRELATION_ID\x01\xff\x00\xed\xa0\x80\x02"
    for properties in (odd, request("x" * 1000)):
        askers.note(properties, "odd")
    again.load(b"".join(askers.pieces()).decode())
    for properties in (*(request(f"{number}\u4e2d") for number in range(3)), odd, request("x" * 1000)):
        assert again.knows(properties)
        assert again.user_of(properties) == askers.user_of(properties)
    assert not again.knows(request("another"))
    assert b"".join(again.pieces()) == b"".join(askers.pieces())


def test_an_id_that_is_none_is_not_kept() -> None:
    askers = Askers(3)
    askers.note(request(""), "somebody")
    askers.note(b"REPLY_TO_CLIENT\x01c\x02", "somebody")
    assert len(askers) == 0
    assert askers.user_of(b"") is None
    assert not askers.knows(b"")
