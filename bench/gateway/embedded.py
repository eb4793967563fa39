"""TensorZero's gateway, as its package for Python starts it. Prints its address, and serves until it is killed.

    embedded.py CONFIG.toml
"""

import signal
import sys

from tensorzero import _start_http_gateway

stores = {"clickhouse_url": None, "postgres_url": None, "valkey_url": None}
gateway = _start_http_gateway(config_file=sys.argv[1], async_setup=False, **stores)
print("listening on", gateway.base_url, flush=True)
signal.pause()
