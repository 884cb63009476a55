"""Every limit of the HTTP ingress, with its unit, in one place.

Nothing that a stranger on the ingress port can send or hold back may last or grow without end.
"""

from dataclasses import dataclass

PIPELINE_BYTES_MAX = 65536  # of later requests, held while one is being answered
CHUNK_LINE_BYTES_MAX = 256
TRAILER_BYTES_MAX = 8192
RESPONSE_HEAD_BYTES_MAX = 65536
# A host that loses its power ends no connection. Its kernel's silence tells: TCP asks whoever said
# nothing for so long, and so many questions without an answer are the end.
PROBE_AFTER_SECONDS = 2
PROBE_SECONDS = 1  # between two questions
PROBES = 3
# While something is not acknowledged, TCP asks nothing but repeats it: after 0.2 s, and twice as
# long each time. What lasts is looked at, and so many repetitions without a word are the end.
REPEATS = 3
SILENCE_SECONDS = 1.0  # a word, be it that there is no room, tells of life for so long
LOOK_SECONDS = 2.0
LOOK_AGAIN_SECONDS = 0.5  # once something is being repeated
LINGER_SECONDS = 2.0  # reading on after a refusal, so that the client gets to see the answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    head_bytes_max: int = 32 * 1024
    head_lines_max: int = 100
    head_seconds: float = 10.0  # from the first byte of a head to its last
    idle_seconds: float = 60.0  # between two requests of a client
    body_bytes_max: int = 0  # 0: none
    body_seconds: float = 30.0  # in which at least body_progress_bytes must come
    body_progress_bytes: int = 4096
    stall_seconds: float = 60.0  # in which a client must read some of what waits for it
    connections_max: int = 16384
    connections_per_address_max: int = 4096
    # To an instance, which is a millisecond away: one that is silent lost its node's power.
    connect_seconds: float = 0.75
    connect_attempts_max: int = 3  # each on another instance
    response_seconds: float = 60.0  # from the request's last byte to the response's head
    stream_idle_seconds: float = 300.0  # between two pieces of a response's body
    tunnel_idle_seconds: float = 3600.0  # of a websocket, in both directions
    pool_idle_max: int = 256  # kept connections per instance
    pool_idle_seconds: float = 20.0
    # Servers close kept connections after 5 s or more. A request that can't be sent twice goes
    # only over one that was in use just now, so that the two never cross.
    pool_fresh_seconds: float = 2.0
    eject_seconds: float = 1.0  # doubled with each refused connection, up to the next
    eject_seconds_max: float = 16.0
    drain_seconds: float = 10.0  # for requests in flight at the end

    @property
    def tick_seconds(self) -> float:
        """Deadlines are looked at this often: one sweep is cheaper than a timer per request."""
        shortest = min(
            self.head_seconds,
            self.idle_seconds,
            self.body_seconds,
            self.stall_seconds,
            self.response_seconds,
            self.stream_idle_seconds,
            self.pool_idle_seconds,
        )
        return max(0.02, min(0.5, shortest / 4))
