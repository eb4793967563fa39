//! Requests that two servers may read differently: the families of HTTP Request Smuggler (PortSwigger; Kettle, "HTTP Desync
//! Attacks", 2019, "Browser-Powered Desync Attacks", 2022, "HTTP/1.1 Must Die", 2025), of http-garden (Narf Industries, 2023)
//! and of "Funky chunks" (Weikop, 2025), and what RFC 9112 says in 2.2, 3.2, 5.1, 5.2, 6.1, 6.3, 7.1 and 11.2. nginx is asked
//! the same in the peers of the program.

/// One of them: its name, and its bytes. A second request, for `/api/smuggled`, is part of it where it is right to be.
pub(crate) type Case = (&'static str, &'static str);

/// No server may answer these with a success.
pub(crate) const WRONG: &[Case] = &[
    ("two lengths", "POST /api/x HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello"),
    ("a list of lengths that differ", "POST /api/x HTTP/1.1\r\nHost: h\r\nContent-Length: 5, 6\r\n\r\nhello"),
    ("a length with a sign", "POST /api/x HTTP/1.1\r\nHost: h\r\nContent-Length: +5\r\n\r\nhello"),
    ("a negative length", "POST /api/x HTTP/1.1\r\nHost: h\r\nContent-Length: -5\r\n\r\nhello"),
    ("a hexadecimal length", "POST /api/x HTTP/1.1\r\nHost: h\r\nContent-Length: 0x5\r\n\r\nhello"),
    ("a length with a point", "POST /api/x HTTP/1.1\r\nHost: h\r\nContent-Length: 5.0\r\n\r\nhello"),
    ("a length with a blank in it", "POST /api/x HTTP/1.1\r\nHost: h\r\nContent-Length: 5 0\r\n\r\nhello"),
    ("no length behind its name", "POST /api/x HTTP/1.1\r\nHost: h\r\nContent-Length:\r\n\r\nhello"),
    ("a length of 65 bits", "POST /api/x HTTP/1.1\r\nHost: h\r\nContent-Length: 18446744073709551621\r\n\r\nhello"),
    ("a blank before the colon", "POST /api/x HTTP/1.1\r\nHost: h\r\nContent-Length : 5\r\n\r\nhello"),
    ("a tab before the colon", "POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n"),
    (
        "a blank before chunked's name",
        "POST /api/x HTTP/1.1\r\nHost: h\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    ("a folded line", "POST /api/x HTTP/1.1\r\nHost: h\r\nX: a\r\n b\r\nContent-Length: 0\r\n\r\n"),
    ("chunked on a folded line", "POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n"),
    ("the first line is folded", "POST /api/x HTTP/1.1\r\n Host: h\r\nContent-Length: 0\r\n\r\n"),
    ("another coding", "POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    (
        "a coding behind chunked",
        "POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    ),
    ("a coding before chunked", "POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    ("chunked twice", "POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n"),
    (
        "two fields, chunked first",
        "POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n",
    ),
    (
        "two fields, chunked last",
        "POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    ("quoted", "POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n"),
    ("a vertical tab", "POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n"),
    ("chunks in HTTP/1.0", "POST /api/x HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("a NUL in a value", "GET /api/x HTTP/1.1\r\nHost: h\r\nX: a\0b\r\n\r\n"),
    ("a NUL in a name", "GET /api/x HTTP/1.1\r\nHost: h\r\nX\0: a\r\n\r\n"),
    ("a CR in a value", "GET /api/x HTTP/1.1\r\nHost: h\r\nX: a\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("a field without a name", "GET /api/x HTTP/1.1\r\nHost: h\r\n: a\r\n\r\n"),
    ("a line without a colon", "GET /api/x HTTP/1.1\r\nHost: h\r\nnonsense\r\n\r\n"),
    ("a blank in a name", "GET /api/x HTTP/1.1\r\nHost: h\r\nX Y: a\r\n\r\n"),
    ("no host", "GET /api/x HTTP/1.1\r\nX: a\r\n\r\n"),
    ("two hosts", "GET /api/x HTTP/1.1\r\nHost: h\r\nHost: i\r\n\r\n"),
    ("the same host twice", "GET /api/x HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n"),
    ("a blank in the target", "GET /api/x y HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("two versions", "GET /api/x HTTP/1.1 HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("two blanks", "GET  /api/x HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("a tab in the request line", "GET\t/api/x\tHTTP/1.1\r\nHost: h\r\n\r\n"),
    ("a control character in the target", "GET /api/x\x01 HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("another version", "GET /api/x HTTP/3.1\r\nHost: h\r\n\r\n"),
    ("a version of two digits", "GET /api/x HTTP/1.10\r\nHost: h\r\n\r\n"),
    ("a blank before the method", " GET /api/x HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("a method that is no token", "G(T /api/x HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("a target that is none", "GET api/x HTTP/1.1\r\nHost: h\r\n\r\n"),
    (
        "a size with a prefix",
        "POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
    ),
    (
        "a size with a sign",
        "POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n0\r\n\r\n",
    ),
    (
        "a negative size",
        "POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
    ),
    (
        "a size of 68 bits",
        "POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000005\r\nhello\r\n0\r\n\r\n",
    ),
    ("no size", "POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\r\nhello\r\n0\r\n\r\n"),
    (
        "a size that is too small",
        "POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhello\r\n0\r\n\r\n",
    ),
    (
        "a chunk without its end (SPILL.TERM)",
        "POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloXX0\r\n\r\n",
    ),
    (
        "a chunk that ends in LF",
        "POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\n0\r\n\r\n",
    ),
    (
        "a size that ends in CR",
        "POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\rhello\r\n0\r\n\r\n",
    ),
    (
        "an LF in an extension (TERM.EXT)",
        "POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5;\nx\r\nhello\r\n0\r\n\r\n",
    ),
];

/// Those that a server may take, as long as what follows is no request of its own but where RFC 9112 says so: name, bytes, and
/// how many answers there may be.
pub(crate) const ODD: &[(&str, &str, usize)] = &[
    (
        "length before chunks (CL.TE)",
        "POST /api/x HTTP/1.1\r\nHost: h\r\nContent-Length: 44\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /api/smuggled HTTP/1.1\r\nHost: h\r\n\r\n",
        1,
    ),
    (
        "chunks before length (TE.CL)",
        "POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\nGET /api/smuggled HTTP/1.1\r\nHost: h\r\n\r\n",
        1,
    ),
    (
        "chunks, and a length that is none",
        "POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: x\r\n\r\n0\r\n\r\nGET /api/smuggled HTTP/1.1\r\nHost: h\r\n\r\n",
        1,
    ),
    (
        "the same length twice",
        "POST /api/x HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello",
        1,
    ),
    (
        "an underscore in place of a hyphen",
        "POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer_Encoding: chunked\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello",
        1,
    ),
    (
        "chunked in capitals",
        "POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: CHUNKED\r\nConnection: close\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        1,
    ),
    (
        "a tab behind the colon",
        "POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding:\tchunked\r\nConnection: close\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        1,
    ),
    ("lines that end in LF", "POST /api/x HTTP/1.1\nHost: h\nContent-Length: 5\nConnection: close\n\nhello", 1),
    (
        "chunked behind an LF",
        "POST /api/x HTTP/1.1\r\nHost: h\r\nX: a\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        1,
    ),
    ("empty lines before", "\r\n\r\nGET /api/x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", 1),
    (
        "an extension of a chunk",
        "POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5;a=\"b\"\r\nhello\r\n0\r\n\r\n",
        1,
    ),
    (
        "a blank behind a size",
        "POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5 \r\nhello\r\n0\r\n\r\n",
        1,
    ),
    (
        "zeros before a size",
        "POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0005\r\nhello\r\n000\r\n\r\n",
        1,
    ),
    (
        "fields behind the body",
        "POST /api/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nhello\r\n0\r\nHost: evil\r\nContent-Length: 9\r\nX-Paceline-Priority: batch\r\n\r\n",
        1,
    ),
    (
        "a body behind GET (CL.0)",
        "GET /api/x HTTP/1.1\r\nHost: h\r\nContent-Length: 40\r\nConnection: close\r\n\r\nGET /api/smuggled HTTP/1.1\r\nHost: h\r\n\r\n\r\n",
        1,
    ),
    (
        "an expectation (0.CL)",
        "GET /api/x HTTP/1.1\r\nHost: h\r\nContent-Length: 40\r\nExpect: 100-continue\r\nConnection: close\r\n\r\nGET /api/smuggled HTTP/1.1\r\nHost: h\r\n\r\n\r\n",
        1,
    ),
    (
        "another expectation",
        "GET /api/x HTTP/1.1\r\nHost: h\r\nContent-Length: 40\r\nExpect: y 100-continue\r\nConnection: close\r\n\r\nGET /api/smuggled HTTP/1.1\r\nHost: h\r\n\r\n\r\n",
        1,
    ),
    (
        "an offer of HTTP/2",
        "GET /api/x HTTP/1.1\r\nHost: h\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nConnection: Upgrade, HTTP2-Settings, close\r\n\r\n",
        1,
    ),
    ("the target is an address", "GET http://127.0.0.1/api/x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", 1),
    (
        "fields that Connection names",
        "POST /api/x HTTP/1.1\r\nHost: h\r\nConnection: close, content-length, host\r\nContent-Length: 5\r\n\r\nhello",
        1,
    ),
    (
        "two requests at once",
        "GET /api/x HTTP/1.1\r\nHost: h\r\n\r\nGET /api/smuggled HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        2,
    ),
];

/// With the host of this machine, by which programs call a gateway.
pub(crate) fn named(case: &str) -> Vec<u8> {
    case.replace("Host: h\r", "Host: 127.0.0.1\r").replace("Host: h\n", "Host: 127.0.0.1\n").into_bytes()
}
