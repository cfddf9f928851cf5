"""Text leaves in whole characters, never with a stop string or a part of one, whatever the tokens' borders."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_bin.llama.text import TextOut, check_stops


def feed(out: TextOut, pieces: list[bytes]) -> tuple[str, list[str]]:
    deltas: list[str] = []
    for piece in pieces:
        deltas.append(out.feed(piece))
        if out.stopped:
            break
    deltas.append(out.flush())
    return "".join(deltas), deltas


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    borders = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in zip(borders, borders[1:], strict=False)]


@given(st.text(), st.lists(st.integers(0, 1000)))
def test_without_stops_the_text_is_the_text(text: str, cuts: list[int]) -> None:
    whole, deltas = feed(TextOut(), split(text.encode(), cuts))
    assert whole == text
    assert all("\ufffd" not in delta for delta in deltas) or "\ufffd" in text


@given(
    st.text("abc😀é", max_size=40),
    st.lists(st.text("abc😀é", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(0, 200)),
)
def test_text_ends_before_the_first_stop_that_is_complete(text: str, stops: list[str], cuts: list[int]) -> None:
    pieces = split(text.encode(), cuts)
    whole, deltas = feed(TextOut(stops), pieces)
    found = [at for at in map(text.find, stops) if at >= 0]
    if not found:
        assert whole == text
        return
    # As soon as some stop is complete the text ends, at the earliest place where one begins in what is there by then.
    seen = ""
    for piece_end in range(len(pieces) + 1):
        seen = b"".join(pieces[:piece_end]).decode(errors="ignore")
        if any(stop in seen for stop in stops):
            break
    assert whole == seen[: min(at for at in map(seen.find, stops) if at >= 0)]
    sent = ""
    for delta in deltas:
        sent += delta
        assert not any(stop in sent for stop in stops)
        assert text.startswith(sent)


def test_a_stop_across_three_tokens() -> None:
    out = TextOut(["</answer>"])
    assert [out.feed(piece) for piece in (b"42 ", b"</", b"ans", b"wer> more")] == ["42 ", "", "", ""]
    assert out.stopped
    assert out.flush() == ""


def test_what_only_looked_like_a_stop_is_let_go() -> None:
    out = TextOut(["</answer>"])
    assert [out.feed(piece) for piece in (b"</", b"ans", b"x")] == ["", "", "</ansx"]
    assert out.feed(b"</a") == ""
    assert out.flush() == "</a"


def test_a_character_over_several_tokens_leaves_whole() -> None:
    out = TextOut()
    assert [out.feed(bytes([byte])) for byte in "数😀".encode()] == ["", "", "数", "", "", "", "😀"]


def test_an_incomplete_character_at_the_end_is_replaced() -> None:
    out = TextOut()
    assert out.feed("a😀".encode()[:3]) == "a"
    assert out.flush() == "\ufffd"


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert feed(TextOut(), [b"a\xff", b"b\x80"])[0] == "a\ufffdb\ufffd"


def test_the_tokenizers_own_space_is_dropped_once() -> None:
    out = TextOut(drop_space=True)
    assert [out.feed(piece) for piece in (b"", b" Hi", b" there")] == ["", "Hi", " there"]
    assert TextOut(drop_space=True).feed(b"Hi") == "Hi"


@pytest.mark.parametrize("stops", [[""], ["x" * 513], ["x"] * 65])
def test_stops_are_bounded(stops: list[str]) -> None:
    with pytest.raises(ValueError, match="stop string"):
        check_stops(stops)
