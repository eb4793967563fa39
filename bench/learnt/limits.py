"""The limits that have to be learnt, the best that a client that knows them can do, and what Paceline is held to."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from servers import Haproxy, Litellm, Nginx

BUCKET_REFUSAL = """
        location @limited {
            default_type application/json;
            add_header Retry-After 1 always;
            return 429 '{"error":{"message":"slow down","type":"rate_limit","code":"rate_limited"}}';
        }"""


@dataclass
class Limit:
    """A server with a limit, and what a client that knows the limit would do."""

    name: str
    server: Callable
    latency: float
    # What the script with a fixed pace is told.
    truth: tuple
    # Seconds for so many items at that latency.
    oracle: Callable
    # Least share of the oracle's speed (None: only reported), and most refused calls for each item.
    least_speed: float | None
    most_refused: float


def limits(litellm_python):
    def bucket(folder):
        zone = "limit_req_zone $http_authorization zone=key:1m rate=20r/s; limit_req_status 429;"
        limit = "limit_req zone=key burst=20 nodelay; error_page 429 @limited;"
        return Nginx(folder, zone, limit, BUCKET_REFUSAL)

    def cap(folder):
        zone = "limit_conn_zone $http_authorization zone=key:1m; limit_conn_status 429;"
        return Nginx(folder, zone, "limit_conn key 8;")

    def in_flight(items, latency):
        return items * latency / 8 + latency

    def haproxy(retry_after):
        return lambda folder: Haproxy(folder, 200, retry_after)

    def estimated_window(items, latency):
        return items / 200 * 10 + latency

    return [
        Limit(
            name="nginx 20/s, burst 20",
            server=bucket,
            latency=0.020,
            truth=("rate", 20),
            oracle=lambda items, latency: max(0, items - 20) / 20 + latency,
            least_speed=0.95,
            most_refused=0.02,
        ),
        Limit("nginx 8 in flight, 300 ms", cap, 0.300, ("cap", 8), in_flight, 0.9, 0.02),
        Limit("nginx 8 in flight, 20 ms", cap, 0.020, ("cap", 8), in_flight, None, 0.02),
        Limit(
            name="LiteLLM 300 per 10 s",
            server=lambda folder: Litellm(folder, litellm_python, 300, 10, 0.020),
            latency=0.020,
            truth=("rate", 30),
            oracle=lambda items, latency: (math.ceil(items / 300) - 1) * 10 + latency,
            least_speed=None,
            most_refused=0.07,
        ),
        Limit("HAProxy 200 per 10 s, hint 1 s", haproxy(1), 0.020, ("rate", 20), estimated_window, 0.75, 0.05),
        Limit("HAProxy 200 per 10 s, hint 10 s", haproxy(10), 0.020, ("rate", 20), estimated_window, 0.75, 0.05),
    ]
