"""Processes that the bench asks for things: one JSON line in, one JSON line back.

Each role (a peer, the simulated nodes, the raw writer) is a process of its own, so that CPU and
memory are counted for it alone. `Child` is the asking side, `serve` the answering one: an object
whose coroutines `do_<what>` are the questions it takes. What a process logs goes to the file that
$OZY_BENCH_LOG names, or nowhere.
"""

import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from typing import Any, Self

Answer = dict[str, Any]


class Child:
    def __init__(self, module: str, *arguments: str) -> None:
        command = [sys.executable, "-m", module, *arguments]
        self._name = f"{module} {' '.join(arguments)}"
        log = open(os.environ.get("OZY_BENCH_LOG", os.devnull), "a")  # noqa: SIM115
        with log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def tell(self, what: str, **arguments: Any) -> None:
        """Ask without waiting; `answer` waits."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"what": what, **arguments}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Answer:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._name} ended with {self._process.wait()}")
        answer: Answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{self._name}: {answer['error']}")
        return answer

    def ask(self, what: str, **arguments: Any) -> Answer:
        self.tell(what, **arguments)
        return self.answer()


async def serve(role: Any) -> None:
    """Answer until nobody asks any more. Questions are taken one after the other."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        question = json.loads(line)
        try:
            answer = await getattr(role, f"do_{question.pop('what')}")(**question)
        except Exception as error:
            answer = {"error": repr(error)}
        print(json.dumps(answer or {}), flush=True)


class Used:
    """Seconds of time and of this process's CPU since it was made."""

    def __init__(self) -> None:
        self._started, self._cpu = time.perf_counter(), time.process_time()

    def answer(self) -> Answer:
        return {
            "seconds": time.perf_counter() - self._started,
            "cpu_seconds": time.process_time() - self._cpu,
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
