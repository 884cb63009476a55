"""Requests that have two readings, or none: name, bytes, the status that refuses them.

And some that only look so: name, bytes, the requests that they are.

``H`` stands for a good Host line. Every one of them ends in a marker request which must never be
taken for a request of its own by anybody.
"""

H = b"Host: a\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"

CORPUS: list[tuple[str, bytes, int]] = [
    # The request line
    ("no version", b"GET /\r\n" + H + b"\r\n", 400),
    ("two spaces", b"GET  / HTTP/1.1\r\n" + H + b"\r\n", 400),
    ("space at the end", b"GET / HTTP/1.1 \r\n" + H + b"\r\n", 400),
    ("tab for space", b"GET\t/\tHTTP/1.1\r\n" + H + b"\r\n", 400),
    ("space in the target", b"GET /a b HTTP/1.1\r\n" + H + b"\r\n", 400),
    ("version 2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    ("version 1.2", b"GET / HTTP/1.2\r\n" + H + b"\r\n", 400),
    ("version 0.9", b"GET / HTTP/0.9\r\n" + H + b"\r\n", 400),
    ("version in small letters", b"GET / http/1.1\r\n" + H + b"\r\n", 400),
    ("version 01.1", b"GET / HTTP/01.1\r\n" + H + b"\r\n", 400),
    ("bad method", b"G(T / HTTP/1.1\r\n" + H + b"\r\n", 400),
    ("empty method", b" / HTTP/1.1\r\n" + H + b"\r\n", 400),
    ("endless method", b"G" * 100 + b" / HTTP/1.1\r\n" + H + b"\r\n", 400),
    ("CONNECT", b"CONNECT a:80 HTTP/1.1\r\n" + H + b"\r\n", 405),
    ("TRACE", b"TRACE / HTTP/1.1\r\n" + H + b"\r\n", 405),
    ("relative target", b"GET x HTTP/1.1\r\n" + H + b"\r\n", 400),
    ("asterisk for GET", b"GET * HTTP/1.1\r\n" + H + b"\r\n", 400),
    ("fragment", b"GET /#x HTTP/1.1\r\n" + H + b"\r\n", 400),
    ("NUL in the target", b"GET /\0 HTTP/1.1\r\n" + H + b"\r\n", 400),
    ("DEL in the target", b"GET /\x7f HTTP/1.1\r\n" + H + b"\r\n", 400),
    ("raw UTF-8 in the target", b"GET /\xc3\xa4 HTTP/1.1\r\n" + H + b"\r\n", 400),
    ("other host in the target", b"GET http://b/ HTTP/1.1\r\n" + H + b"\r\n", 400),
    ("user in the target", b"GET http://u@a/ HTTP/1.1\r\n" + H + b"\r\n", 400),
    ("https target", b"GET https://a/ HTTP/1.1\r\n" + H + b"\r\n", 400),
    ("two empty lines first", b"\r\n\r\nGET / HTTP/1.1\r\n" + H + b"\r\n", 400),
    ("CR in the request line", b"GET /\r HTTP/1.1\r\n" + H + b"\r\n", 400),
    # Hosts
    ("no Host", b"GET / HTTP/1.1\r\n\r\n", 400),
    ("two Hosts", b"GET / HTTP/1.1\r\n" + H + b"Host: b\r\n\r\n", 400),
    ("two equal Hosts", b"GET / HTTP/1.1\r\n" + H + H + b"\r\n", 400),
    ("empty Host", b"GET / HTTP/1.1\r\nHost:\r\n\r\n", 400),
    ("two Hosts in one line", b"GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", 400),
    ("space in Host", b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
    ("user in Host", b"GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", 400),
    ("path in Host", b"GET / HTTP/1.1\r\nHost: a/x\r\n\r\n", 400),
    ("port not a number", b"GET / HTTP/1.1\r\nHost: a:80x\r\n\r\n", 400),
    ("two ports", b"GET / HTTP/1.1\r\nHost: a:80:81\r\n\r\n", 400),
    ("open bracket in Host", b"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", 400),
    ("dots in Host", b"GET / HTTP/1.1\r\nHost: a..b\r\n\r\n", 400),
    ("backslash in Host", b"GET / HTTP/1.1\r\nHost: a\\b\r\n\r\n", 400),
    # Header lines
    ("space before colon", b"GET / HTTP/1.1\r\n" + H + b"X-A : b\r\n\r\n", 400),
    ("space before Host's colon", b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
    ("tab before colon", b"GET / HTTP/1.1\r\n" + H + b"X-A\t: b\r\n\r\n", 400),
    ("no colon", b"GET / HTTP/1.1\r\n" + H + b"X-A\r\n\r\n", 400),
    ("empty name", b"GET / HTTP/1.1\r\n" + H + b": b\r\n\r\n", 400),
    ("folded line", b"GET / HTTP/1.1\r\n" + H + b"X-A: b\r\n c\r\n\r\n", 400),
    ("folded by tab", b"GET / HTTP/1.1\r\n" + H + b"X-A: b\r\n\tc\r\n\r\n", 400),
    ("folded first line", b"GET / HTTP/1.1\r\n X: y\r\n" + H + b"\r\n", 400),
    ("bare LF", b"GET / HTTP/1.1\nHost: a\n\n", 400),
    ("bare LF in one line", b"GET / HTTP/1.1\r\n" + H + b"X-A: b\nX-B: c\r\n\r\n", 400),
    ("bare LF at the end", b"GET / HTTP/1.1\r\n" + H + b"\n", 400),
    ("bare CR", b"GET / HTTP/1.1\r\n" + H + b"X-A: b\rX-B: c\r\n\r\n", 400),
    ("NUL in a value", b"GET / HTTP/1.1\r\n" + H + b"X-A: b\0c\r\n\r\n", 400),
    ("NUL in a name", b"GET / HTTP/1.1\r\n" + H + b"X-A\0: b\r\n\r\n", 400),
    ("escape in a value", b"GET / HTTP/1.1\r\n" + H + b"X-A: \x1b[0m\r\n\r\n", 400),
    ("quoted name", b"GET / HTTP/1.1\r\n" + H + b'"X": b\r\n\r\n', 400),
    ("name beyond ASCII", b"GET / HTTP/1.1\r\n" + H + b"X-\xe4: b\r\n\r\n", 400),
    ("101 lines", b"GET / HTTP/1.1\r\n" + H + b"X: y\r\n" * 100 + b"\r\n", 431),
    ("head too large", b"GET / HTTP/1.1\r\n" + H + b"X: " + b"y" * 33000 + b"\r\n\r\n", 431),
    ("head without end", b"GET / HTTP/1.1\r\n" + H + b"X: " + b"y" * 40000, 431),
    ("target too large", b"GET /" + b"y" * 33000 + b" HTTP/1.1\r\n" + H + b"\r\n", 431),
    ("unknown expectation", b"GET / HTTP/1.1\r\n" + H + b"Expect: cake\r\n\r\n", 400),
    ("two upgrades", b"GET / HTTP/1.1\r\n" + H + b"Upgrade: a\r\nUpgrade: b\r\n\r\n", 400),
    # Framing of the body
    ("CL and TE", b"POST / HTTP/1.1\r\n" + H + b"Content-Length: 4\r\n" + CHUNKED + b"\r\n", 400),
    ("TE and CL", b"POST / HTTP/1.1\r\n" + H + CHUNKED + b"Content-Length: 4\r\n\r\n", 400),
    (
        "two lengths",
        b"POST / HTTP/1.1\r\n" + H + b"Content-Length: 0\r\nContent-Length: 44\r\n\r\n",
        400,
    ),
    (
        "two equal lengths",
        b"POST / HTTP/1.1\r\n" + H + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\nx",
        400,
    ),
    ("length list", b"POST / HTTP/1.1\r\n" + H + b"Content-Length: 1, 1\r\n\r\nx", 400),
    ("length with sign", b"POST / HTTP/1.1\r\n" + H + b"Content-Length: +1\r\n\r\nx", 400),
    ("negative length", b"POST / HTTP/1.1\r\n" + H + b"Content-Length: -1\r\n\r\nx", 400),
    ("hexadecimal length", b"POST / HTTP/1.1\r\n" + H + b"Content-Length: 0x1\r\n\r\nx", 400),
    ("length with underscore", b"POST / HTTP/1.1\r\n" + H + b"Content-Length: 1_0\r\n\r\n", 400),
    ("empty length", b"POST / HTTP/1.1\r\n" + H + b"Content-Length:\r\n\r\n", 400),
    (
        "huge length",
        b"POST / HTTP/1.1\r\n" + H + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n",
        400,
    ),
    (
        "length in full-width digits",
        b"POST / HTTP/1.1\r\n" + H + b"Content-Length: \xb2\r\n\r\n",
        400,
    ),
    ("TE list", b"POST / HTTP/1.1\r\n" + H + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 400),
    ("TE identity", b"POST / HTTP/1.1\r\n" + H + b"Transfer-Encoding: identity\r\n\r\n", 400),
    ("TE xchunked", b"POST / HTTP/1.1\r\n" + H + b"Transfer-Encoding: xchunked\r\n\r\n", 400),
    ("TE quoted", b"POST / HTTP/1.1\r\n" + H + b'Transfer-Encoding: "chunked"\r\n\r\n', 400),
    (
        "TE after vertical tab",
        b"POST / HTTP/1.1\r\n" + H + b"Transfer-Encoding: \x0bchunked\r\n\r\n",
        400,
    ),
    ("TE twice", b"POST / HTTP/1.1\r\n" + H + CHUNKED + CHUNKED + b"\r\n0\r\n\r\n", 400),
    ("TE empty", b"POST / HTTP/1.1\r\n" + H + b"Transfer-Encoding:\r\n\r\n", 400),
    (
        "TE with a space before the colon",
        b"POST / HTTP/1.1\r\n" + H + b"Transfer-Encoding : chunked\r\n\r\n",
        400,
    ),
    ("TE in HTTP/1.0", b"POST / HTTP/1.0\r\n" + H + CHUNKED + b"\r\n0\r\n\r\n", 400),
]

# These have a good head, so the instance may see it; but never a whole request.
BAD_CHUNKS: list[tuple[str, bytes]] = [
    ("not hexadecimal", b"z\r\n"),
    ("empty size", b"\r\nabc\r\n"),
    ("0x prefix", b"0x3\r\nabc\r\n"),
    ("plus sign", b"+3\r\nabc\r\n"),
    ("minus sign", b"-3\r\nabc\r\n"),
    ("underscore", b"0_3\r\nabc\r\n"),
    ("space before", b" 3\r\nabc\r\n"),
    ("space behind", b"3 \r\nabc\r\n"),
    ("bare LF after the size", b"3\nabc\r\n"),
    ("bare LF after the data", b"3\r\nabc\n"),
    ("bare CR after the size", b"3\rabc\r\n0\r\n\r\n"),
    ("data too long", b"3\r\nabcd\r\n0\r\n\r\n"),
    ("size overflows", b"fffffffffffffffff\r\nabc"),
    ("endless size line", b"0" * 1000),
    ("endless extension", b"3;" + b"x" * 1000),
    ("LF in the extension", b"3;x\ny\r\nabc\r\n"),
    ("NUL in the extension", b"3;x\0\r\nabc\r\n"),
    ("trailer without colon", b"0\r\nabc\r\n\r\n"),
    ("folded trailer", b"0\r\nA: b\r\n c\r\n\r\n"),
    ("space before a trailer's colon", b"0\r\nA : b\r\n\r\n"),
    ("endless trailers", b"0\r\n" + b"A: b\r\n" * 2000),
    ("bare LF in the trailers", b"0\r\n\n"),
]

END = b"Connection: close\r\n\r\n"
# These are good requests, though some server might read more or others into them.
ODD: list[tuple[str, bytes, list[str]]] = [
    ("one empty line first", b"\r\nGET /odd HTTP/1.1\r\n" + H + END, ["GET /odd"]),
    ("name in mixed case, no space", b"GET /odd HTTP/1.1\r\nhOsT:a\r\n" + END, ["GET /odd"]),
    ("spaces around Host", b"GET /odd HTTP/1.1\r\nHost: \t a \t\r\n" + END, ["GET /odd"]),
    ("absolute form", b"GET http://a/odd HTTP/1.1\r\n" + H + END, ["GET /odd"]),
    ("absolute form, no path", b"GET http://a?odd HTTP/1.1\r\n" + H + END, ["GET /?odd"]),
    ("odd target", b"GET /odd|^`{} HTTP/1.1\r\n" + H + END, ["GET /odd|^`{}"]),
    ("empty value", b"GET /odd HTTP/1.1\r\n" + H + b"X-A:\r\n" + END, ["GET /odd"]),
    ("bytes in a value", b"GET /odd HTTP/1.1\r\n" + H + b"X-A: \xe4\r\n" + END, ["GET /odd"]),
    ("length 0", b"GET /odd HTTP/1.1\r\n" + H + b"Content-Length: 0\r\n" + END, ["GET /odd"]),
    (
        "length with zeros",
        b"POST /odd HTTP/1.1\r\n" + H + b"Content-Length: 0003\r\n" + END + b"abc",
        ["POST /odd"],
    ),
    (
        "GET with a body",
        b"GET /odd HTTP/1.1\r\n" + H + b"Content-Length: 20\r\n" + END + SMUGGLED[:20],
        ["GET /odd"],
    ),
    (
        "a request as the body",
        b"POST /odd HTTP/1.1\r\n" + H + b"Content-Length: %d\r\n" % len(SMUGGLED) + END + SMUGGLED,
        ["POST /odd"],
    ),
    (
        "a request as a chunk",
        b"POST /odd HTTP/1.1\r\n"
        + H
        + b"Transfer-Encoding: CHUNKED\r\n"
        + END
        + b"%x;a=b\r\n%b\r\n0\r\nX: y\r\n\r\n" % (len(SMUGGLED), SMUGGLED),
        ["POST /odd"],
    ),
    (
        "length with an underscore for a hyphen",
        b"GET /odd HTTP/1.1\r\n" + H + b"Content_Length: 100\r\n" + END,
        ["GET /odd"],
    ),
    (
        "coding with an underscore for a hyphen",
        b"GET /odd HTTP/1.1\r\n" + H + b"Transfer_Encoding: chunked\r\n" + END,
        ["GET /odd"],
    ),
    (
        "length named by Connection",
        b"POST /odd HTTP/1.1\r\n"
        + H
        + b"Content-Length: 3\r\nConnection: close, Content-Length\r\n\r\nabc",
        ["POST /odd"],
    ),
    (
        "Host named by Connection",
        b"GET /odd HTTP/1.1\r\n" + H + b"Connection: close, Host\r\n\r\n",
        ["GET /odd"],
    ),
    (
        "Upgrade that is refused",
        b"GET /odd HTTP/1.1\r\n"
        + H
        + b"Connection: Upgrade\r\nUpgrade: x\r\n\r\nGET /two HTTP/1.1\r\n"
        + H
        + END,
        ["GET /odd", "GET /two"],
    ),
    (
        "h2c",
        b"GET /odd HTTP/1.1\r\n"
        + H
        + b"Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\n"
        + b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n",
        ["GET /odd"],
    ),
    (
        "pipelined",
        b"GET /odd HTTP/1.1\r\n"
        + H
        + b"\r\nPOST /two HTTP/1.1\r\n"
        + H
        + b"Content-Length: 3\r\n\r\nabcGET /three HTTP/1.1\r\n"
        + H
        + END,
        ["GET /odd", "POST /two", "GET /three"],
    ),
    (
        "nothing after the last request's end",
        b"POST /odd HTTP/1.1\r\n" + H + CHUNKED + END + b"0\r\n\r\n" + SMUGGLED,
        ["POST /odd"],
    ),
]
