"""Load by `wrk`: the same head again and again, or heads that never repeat; as fast as it goes, or
with pauses, so that every proxy is offered the same.
"""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bench.proxies import OTHER_CORES, ROUTES, Proxy

SCRIPT = """\
local number, kind, path, pause, thread = 0, "same", "/", 0, 0
local count = 0
function setup(t) count = count + 1; t:set("thread", count) end
function init(args)
  kind, path, pause = args[1], args[2], tonumber(args[3])
  math.randomseed(os.time() + thread)
end
local common = "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101\\r\\n"
  .. "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\\r\\n"
  .. "Accept-Language: en-US,en;q=0.5\\r\\nAccept-Encoding: gzip, deflate\\r\\n"
  .. "Referer: http://www.example/start\\r\\n"
local same = nil
function request()
  number = number + 1
  if kind == "same" then
    same = same or ("GET " .. path .. " HTTP/1.1\\r\\nHost: job7.localhost\\r\\n" .. common
      .. "Cookie: session=0123456789abcdef0123456789abcdef\\r\\n\\r\\n")
    return same
  end
  local mark = string.format("%08x%04x%d", math.random(0, 0x7fffffff), number % 65536, thread)
  return "GET " .. path .. "?n=" .. mark .. " HTTP/1.1\\r\\nHost: job"
    .. (number * 7 % ROUTES) .. ".localhost\\r\\n" .. common
    .. "Cookie: session=" .. mark .. mark .. "\\r\\nX-Request-Id: " .. mark .. "\\r\\n\\r\\n"
end
if PAUSED then
  function delay() return math.random(1, 2 * pause) end
end
function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '\\n{"requests": %d, "seconds": %f, "p50": %f, "p99": %f, "errors": %d}\\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e6,
    latency:percentile(99) / 1e6,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    requests: int
    seconds: float
    cpu_seconds: float  # of the proxy
    p50: float  # in seconds
    p99: float
    errors: int

    @property
    def per_cpu_second(self) -> float:
        return self.requests / self.cpu_seconds


def run(
    proxy: Proxy,
    directory: Path,
    kind: str,
    path: str = "/",
    *,
    seconds: int,
    connections: int = 64,
    pause_milliseconds: int = 0,
) -> Load:
    """``kind``: "same" or "varied". A pause lies between an answer and the next request."""
    script = directory / f"load-{bool(pause_milliseconds)}.lua"
    text = SCRIPT.replace("ROUTES", str(ROUTES))
    script.write_text(text.replace("PAUSED", "true" if pause_milliseconds else "false"))
    command = ["taskset", "-c", OTHER_CORES, "wrk", "-t1", f"-c{connections}", f"-d{seconds}s"]
    command += ["-s", str(script), f"http://127.0.0.1:{proxy.port}/"]
    command += ["--", kind, path, str(pause_milliseconds)]
    before = proxy.cpu_seconds()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    used = proxy.cpu_seconds() - before
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return Load(
        requests=found["requests"],
        seconds=found["seconds"],
        cpu_seconds=used,
        p50=found["p50"],
        p99=found["p99"],
        errors=found["errors"],
    )
