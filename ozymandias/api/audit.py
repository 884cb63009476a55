"""One line per change that somebody with a token asked for: who, what, before and after, outcome.

JSON lines in a file that is only ever appended to; when it is full it is put aside and a new one
is begun, so two files of that size are the most there is. Strangers leave no line: they could
write the history of others out of the file. No specification, environment or command line is ever
written, so there is no secret to leak. A disk that is full does not stop the API: it is warned of.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ozymandias.telemetry import log, warn

BYTES_MAX = 10 * 2**20


class Audit:
    def __init__(self, file: Path | None = None, bytes_max: int = BYTES_MAX) -> None:
        self._file = file
        self._bytes_max = bytes_max

    def write(self, line: Mapping[str, Any]) -> None:
        log("audit", **line)
        if self._file is None:
            return
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        try:
            self._append(self._file, data)
        except OSError as error:
            warn("audit.not_written", file=str(self._file), reason=str(error))

    def _append(self, file: Path, data: bytes) -> None:
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            if os.fstat(descriptor).st_size + len(data) > self._bytes_max:
                file.replace(file.with_name(f"{file.name}.1"))
                os.close(descriptor)
                descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(descriptor, data)  # one write: lines of two writers never mix
        finally:
            os.close(descriptor)
