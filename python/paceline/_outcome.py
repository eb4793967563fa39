"""What a result or an error says about a call: its answer, as the provider's table reads it, or why there is none."""

from ._engine import answer, no_answer, without_keys

# Why there is no answer, by the names of errors: without importing the libraries that they belong to. The first name in the order
# of an error's bases decides.
_NO_ANSWER = {
    "builtins.ConnectionRefusedError": "connect",
    "socket.gaierror": "connect",
    "builtins.ConnectionError": "reset",
    "builtins.TimeoutError": "timeout",
    "asyncio.exceptions.TimeoutError": "timeout",
    "concurrent.futures._base.TimeoutError": "timeout",
    "ssl.SSLEOFError": "reset",
    "ssl.SSLZeroReturnError": "reset",
    "http.client.IncompleteRead": "truncated",
    "http.client.HTTPException": "malformed",
    "urllib.error.URLError": "connect",
    "httpx.ConnectError": "connect",
    "httpx.ConnectTimeout": "connect",
    "httpx.PoolTimeout": "connect",
    "httpx.TimeoutException": "timeout",
    "httpx.RemoteProtocolError": "reset",
    "httpx.TransportError": "reset",
    "requests.exceptions.ConnectTimeout": "connect",
    "requests.exceptions.ChunkedEncodingError": "truncated",
    "requests.exceptions.Timeout": "timeout",
    "requests.exceptions.ConnectionError": "reset",
    "urllib3.exceptions.NewConnectionError": "connect",
    "urllib3.exceptions.ConnectTimeoutError": "connect",
    "urllib3.exceptions.TimeoutError": "timeout",
    "urllib3.exceptions.ProtocolError": "reset",
    "aiohttp.client_exceptions.ClientConnectorError": "connect",
    "aiohttp.client_exceptions.ClientPayloadError": "truncated",
    "aiohttp.client_exceptions.ServerTimeoutError": "timeout",
    "aiohttp.client_exceptions.ClientConnectionError": "reset",
    "botocore.exceptions.ConnectTimeoutError": "connect",
    "botocore.exceptions.EndpointConnectionError": "connect",
    "botocore.exceptions.ReadTimeoutError": "timeout",
    "botocore.exceptions.HTTPClientError": "reset",
    "openai.APITimeoutError": "timeout",
    "openai.APIConnectionError": "reset",
    "anthropic.APITimeoutError": "timeout",
    "anthropic.APIConnectionError": "reset",
    "trio.TooSlowError": "timeout",
}


def kind_of(error):
    """Why there is no answer, or `None` where the error says something else."""
    for cause in (error.__cause__, error):
        for base in type(cause).__mro__ if cause is not None else ():
            name = f"{base.__module__}.{base.__name__}"
            # httpx2 has the names of httpx, and both hide their modules.
            if name.startswith(("httpx2.", "httpx.")):
                name = f"httpx.{base.__name__}"
            kind = _NO_ANSWER.get(name)
            if kind is not None:
                return kind
    return None


def of_error(permit, error):
    """Reports a call that ended with an error: `((again, delay, bound), outcome, reason)`."""
    if not isinstance(error, Exception):
        return permit._end("abandoned"), "abandoned", None
    parts = parts_of_error(error)
    if parts is not None:
        return answer(permit, *parts)
    kind = kind_of(error)
    if kind is not None:
        return no_answer(permit, kind, f"{type(error).__name__}: {error}")
    try:
        again = _is_to_be_retried(permit._retry, error)
    except BaseException:
        permit._end("abandoned")
        raise
    if again:
        said = without_keys(str(error))
        return permit._end("transient", None, said), "transient", said
    # A mistake of the program, or an error that is not known here: it says nothing about the server.
    return permit._end("abandoned"), "abandoned", str(error)


def of_result(permit, result):
    """Reports a call that returned. A response is read; any other value is a success."""
    parts = parts_of_response(result)
    if parts is None:
        permit._succeed()
        return (False, 0.0, None), "success", None
    status, headers, body = parts
    if body is None:
        return answer(permit, status, headers, b"", None, True)
    return answer(permit, status, headers, body)


def _is_to_be_retried(retry, error):
    if retry is None:
        return False
    if isinstance(retry, (type, tuple)):
        return isinstance(error, retry)
    return retry(error)


def parts_of_error(error):
    """Status, fields and body of the answer that an error stands for."""
    response = getattr(error, "response", None)
    if isinstance(response, dict) and "ResponseMetadata" in response:
        return _of_aws(response)
    if response is not None:
        parts = parts_of_response(response)
        if parts is not None:
            status, headers, body = parts
            return status, headers, body or b""
    # aiohttp and urllib have the status on the error, google-genai as `code`.
    for name in ("status", "status_code", "code"):
        status = getattr(error, name, None)
        if isinstance(status, int) and 300 <= status < 600:
            return status, fields(getattr(error, "headers", None)), _details(error)
    return None


def parts_of_response(response):
    """Status, fields and body of a response of httpx, requests, aiohttp or urllib; the body is `None` where it is not read."""
    status = getattr(response, "status_code", None)
    if status is None:
        status = getattr(response, "status", None)
    headers = getattr(response, "headers", None)
    if not isinstance(status, int) or headers is None or not 100 <= status < 600:
        return None
    for name in ("_content", "_body"):
        body = getattr(response, name, None)
        if isinstance(body, bytes):
            return status, fields(headers), body
    return status, fields(headers), None


def fields(headers):
    """Header fields as bytes."""
    if headers is None:
        return []
    raw = getattr(headers, "raw", None)
    if isinstance(raw, list):
        return raw
    items = headers.items() if hasattr(headers, "items") else headers
    return [(_bytes(name), _bytes(value)) for name, value in items]


def _bytes(text):
    return text if isinstance(text, bytes) else str(text).encode("latin-1", "replace")


def _of_aws(response):
    import json

    metadata, error = response["ResponseMetadata"], response.get("Error", {})
    body = {"__type": error.get("Code", ""), "message": error.get("Message", "")}
    return metadata.get("HTTPStatusCode", 400), fields(metadata.get("HTTPHeaders")), json.dumps(body).encode()


def _details(error):
    import json

    details = getattr(error, "details", None)
    if not isinstance(details, (dict, list)):
        return b""
    return json.dumps(details, default=str).encode()
