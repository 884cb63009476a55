"""The quick reading of heads: it reads nothing that the careful one reads otherwise, or refuses."""

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ozymandias.edge.framing import (
    FORWARDED_LINES,
    Request,
    Response,
    parse_request,
    parse_response,
    request_head,
)
from ozymandias.edge.headers import REQUEST_ROLES, RESPONSE_ROLES, Malformed
from ozymandias.edge.limits import Limits
from ozymandias.edge.quick import quick_request, quick_response
from tests.integration.edge.malformed import CORPUS, ODD

LIMITS = Limits()
FROM = b"1.2.3.4"
FIELDS = ("method", "target", "host", "minor", "length", "keep_alive", "upgrade")
FLAGS = ("expects_continue", "forwarded", "is_head", "is_replayable")
FIREFOX = (
    b"GET /a/b?c=%20d HTTP/1.1\r\nHost: web.localhost:8080\r\nUser-Agent: Mozilla/5.0 (X11)\r\n"
    b"Accept: */*;q=0.8\r\nAccept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\n"
    b"Cookie: a=b; c=d\r\nUpgrade-Insecure-Requests: 1\r\nPriority: u=0, i\r\n\r\n"
)
CHROME = (
    b"GET / HTTP/1.1\r\nHost: web.default.localhost\r\nConnection: keep-alive\r\n"
    b'sec-ch-ua: "Chromium";v="130"\r\nCache-Control: max-age=0\r\nX-Request-Id: 7\r\n\r\n'
)
CURL = b"HEAD /x HTTP/1.1\r\nHost: a\r\nUser-Agent: curl/7.88.1\r\nAccept: */*\r\n\r\n"
NGINX = (
    b"HTTP/1.1 200 OK\r\nServer: nginx/1.22.1\r\nDate: Mon, 16 Nov 2026 11:41:42 GMT\r\n"
    b"Content-Type: text/plain\r\nContent-Length: 23\r\nConnection: keep-alive\r\nETag: x\r\n\r\n"
)
GO = b"HTTP/1.1 404 Not Found\r\nDate: today\r\nContent-Length: 0\r\n\r\n"

# Pieces that are likely to make a difference; anything else comes from `binary`.
NAMES = [
    *(spelled for name in REQUEST_ROLES for spelled in (name, name.title(), name.upper())),
    *(b"Accept", b"Cookie", b"X-Request-Id", b"Content-Type", b"Te-x", b"Hostage", b"Contents"),
    *(
        b"X-Forwarded-For",
        b"x-forwarded-else",
        b"X_Forwarded_For",
        b"Content_Length",
        b"X-A_B",
        b"",
    ),
]
VALUES = [
    *(b"a", b"a b", b"keep-alive", b"close", b"Connection: keep-alive", b"7", b"007", b"chunked"),
    *(
        b"",
        b" ",
        b"a ",
        b"a\t",
        b" a",
        b"\ta",
        b"a\xe4",
        b"a\rb",
        b"a\nb",
        b"a\0",
        b"\x7f",
        b"a:80",
    ),
]
some_line = st.builds(
    lambda name, colon, value, end: name + colon + value + end,
    st.sampled_from(NAMES) | st.binary(max_size=4),
    st.sampled_from([b": ", b": ", b": ", b":", b" : ", b":\t", b""]),
    st.sampled_from(VALUES) | st.binary(max_size=4),
    st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b"\r\n "]),
)
some_lines = st.lists(some_line, max_size=5).map(b"".join)
some_host = st.sampled_from(
    [b"a", b"a.b-c_d", b"A", b"a.", b".a", b"a..b", b"a:80", b"a:", b"a:123456", b"a:x", b"[::1]"]
)
some_target = st.sampled_from([b"/", b"/a?b", b"*", b"http://a/", b"/#", b"/\xe4", b"", b"/ "])
some_method = st.sampled_from([b"GET", b"HEAD", b"DELETE", b"POST", b"PUT", b"get", b"OPTIONS"])
some_version = st.sampled_from([b"HTTP/1.1", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/1.2"])
some_requests = st.builds(
    lambda method, target, version, before, host, lines: (
        b"%b %b %b\r\n%bHost: %b\r\n%b\r\n" % (method, target, version, before, host, lines)
    ),
    *(some_method, some_target, some_version, st.just(b"") | some_lines, some_host, some_lines),
)
some_status = st.sampled_from(
    [b"HTTP/1.1 200 OK", b"HTTP/1.1 204 ", b"HTTP/1.1 200", b"HTTP/1.0 200 OK", b"HTTP/1.1 100 C"]
)
some_responses = st.builds(
    lambda status, lines, length, more: b"%b\r\n%b%b%b\r\n" % (status, lines, length, more),
    *(some_status, some_lines, st.sampled_from([b"Content-Length: 5\r\n", b""]), some_lines),
)


def meaning(request: Request) -> list[object]:
    return [getattr(request, name) for name in (*FIELDS, *FLAGS)]


def check_request(data: bytes) -> bool:
    """That both readings agree; True if the quick one read it at all."""
    found = quick_request(data, FORWARDED_LINES % FROM, LIMITS.head_lines_max)
    if found is None:
        return False
    request, end = found
    assert end == data.index(b"\r\n\r\n") + 4
    careful = parse_request(data[: end - 4], LIMITS)
    for is_trusted in (False, True):
        assert request.wire == request_head(careful, FROM, is_trusted)
    assert meaning(request) == meaning(careful)
    return True


def check_response(data: bytes) -> bool:
    found = quick_response(data)
    if found is None:
        return False
    response, end = found
    assert end == data.index(b"\r\n\r\n") + 4
    careful = parse_response(data[: end - 4])
    for name in ("status", "length", "keep_alive", "upgrade", "fixed", "plain"):
        assert getattr(response, name) == getattr(careful, name)
    return True


@given(some_requests)
@example(
    b"GET / HTTP/1.1\r\nHost: a\r\nX: Connection: keep-alive\r\nConnection: keep-alive\r\n\r\n"
)
@example(b"GET / HTTP/1.1\r\nHost: a\r\n" + b"Connection: keep-alive\r\n" * 2 + b"\r\n")
def test_requests_read_alike(data: bytes):
    """What the quick reading takes for a request is one, and the same, line by line."""
    check_request(data)


@given(some_responses)
@example(NGINX.replace(b"ETag", b"Content-Length: 23\r\nETag"))
def test_responses_read_alike(data: bytes):
    """What the quick reading takes for a response is one, and the same, line by line."""
    check_response(data)


@given(st.sampled_from([FIREFOX, CHROME, CURL]), st.data())
def test_altered_requests_read_alike(data: bytes, drawn: st.DataObject):
    """Usual heads with a few bytes put in, left out or changed are never read in two ways."""
    start = drawn.draw(st.integers(0, len(data)))
    end = drawn.draw(st.integers(start, min(len(data), start + 3)))
    check_request(data[:start] + drawn.draw(st.binary(max_size=3)) + data[end:] + b"\r\n\r\n")


@pytest.mark.parametrize("data", [FIREFOX, CHROME, CURL], ids=["firefox", "chrome", "curl"])
def test_usual_requests_are_read_quickly(data: bytes):
    """What browsers and curl send needs no closer look; what follows it is left alone."""
    assert check_request(data)
    assert check_request(data + b"GET /next")


@pytest.mark.parametrize("data", [NGINX, GO], ids=["nginx", "go"])
def test_usual_responses_are_read_quickly(data: bytes):
    """What servers send needs no closer look."""
    assert check_response(data + b"body")


def test_the_corpus_is_left_to_the_careful_reading():
    """None of the malformed requests is read quickly, and no odd one otherwise than carefully."""
    for name, data, _ in CORPUS:
        if len(data) > LIMITS.head_bytes_max:
            continue  # not even shown to it
        assert not check_request(data), name
    for _, data, _ in ODD:
        check_request(data)


@pytest.mark.parametrize("name", [*REQUEST_ROLES, b"x-forwarded-for", b"x-forwarded-"])
def test_special_names_need_a_closer_look(name: bytes):
    """No spelling of a name that frames or steers is passed on unread."""
    for spelled in (name, name.title(), name.upper(), name.replace(b"-", b"_")):
        line = b"%b: 7\r\n" % spelled
        assert not check_request(CURL.replace(b"Accept: */*\r\n", line)), line
        if name in RESPONSE_ROLES:
            assert not check_response(GO.replace(b"Date: today\r\n", line)), line
            assert not check_response(GO.replace(b"0\r\n\r\n", b"0\r\n" + line + b"\r\n")), line


def test_the_limit_on_lines_holds():
    """As many header lines as the careful reading allows, and not one more."""
    few = CURL[:-2] + b"A: b\r\n" * (LIMITS.head_lines_max - 3) + b"\r\n"
    assert check_request(few)
    with pytest.raises(Malformed):
        parse_request((few[:-2] + b"A: b\r\n\r\n")[:-4], LIMITS)
    assert not check_request(few[:-2] + b"A: b\r\n\r\n")


@pytest.mark.parametrize(
    "line", [b"A: b\r\n", b"X-A: b\r\n", b"A: " + b" b" * 100 + b"\r\n", b"A" * 200 + b": b\r\n"]
)
def test_time_grows_with_the_bytes_alone(line: bytes):
    """Ten times the head without a good end takes some ten times as long, not a hundred times."""

    def seconds(size: int) -> float:
        start, bad_end = CURL[:-2] + line * (size // len(line)), b"\0\r\n\r\n"
        best = 9e9
        for _ in range(5):
            began = time.process_time()
            for end in (bad_end, b"Connection: keep-alive\r\n" + line + bad_end, b" " * 200):
                assert quick_request(start + end, b"", 10**6) is None
            best = min(best, time.process_time() - began)
        return best

    assert seconds(400_000) < 40 * seconds(40_000)


def test_a_response_that_matches_in_part_is_no_response():
    """A head whose end has not come yet is not read."""
    for cut in range(len(NGINX)):
        assert quick_response(NGINX[:cut]) is None
    found = quick_response(NGINX)
    assert found is not None and isinstance(found[0], Response)
