"""The cluster's API as `ozy` sees it: any node will do, tried in the order of the context.

A problem document becomes a ProblemError. A node that refuses the connection, or that has itself
lost the store, is passed over once; when nobody is left, the problem says whom it tried.

A change that was sent and not answered may have been made. One that carries a key of its own
(``once``) is sent again, to another node if there is one: the cluster knows it by the key and does
not make it twice. Any other is not, and its outcome is unknown.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ozymandias.cli import context as contexts
from ozymandias.cli.options import settings
from ozymandias.cli.wire import Answer, ConnectFailed, NoAnswer, quoted, send

if TYPE_CHECKING:
    from ozymandias.problems import ProblemError

CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 15.0
CHANGE_SECONDS = 60.0
SILENCE_SECONDS = 30.0  # a stream carries a beat every few seconds
PAUSES_SECONDS = (0.2, 1.0, 3.0)  # before a change whose answer was lost is sent again
PAGES_MAX = 1000  # of a list; a page has up to 10,000 rows

Document = dict[str, Any]


class Request(NamedTuple):
    method: str
    path: tuple[str, ...]
    query: Mapping[str, object] = {}
    body: bytes = b""
    wait_seconds: float = ANSWER_SECONDS
    headers: Mapping[str, str] = {}

    @property
    def target(self) -> str:
        target = "/v1/" + "/".join(quoted(part) for part in self.path)
        given = [(k, str(v)) for k, v in self.query.items() if v not in (None, "", False)]
        return target + "?" * bool(given) + "&".join(f"{k}={quoted(v)}" for k, v in given)


class Client:
    def __init__(
        self, context: contexts.Context, *, connect_seconds: float = CONNECT_SECONDS
    ) -> None:
        self.context = context
        self._connect_seconds = connect_seconds
        self._endpoints = list(context.endpoints)

    def get(self, *path: str, timeout: float = ANSWER_SECONDS, **query: object) -> Any:
        return self._document(Request("GET", path, query, wait_seconds=timeout))

    def items(self, *path: str, **query: object) -> list[Any]:
        """All rows of a list, page after page."""
        found: list[Any] = []
        cursor = None
        for _ in range(PAGES_MAX):
            page = self._document(Request("GET", path, query | {"cursor": cursor}))
            found += page["items"]
            cursor = page.get("next")
            if not cursor:
                break
        return found

    def post(
        self,
        *path: str,
        body: bytes | Document = b"",
        timeout: float = CHANGE_SECONDS,
        once: bool = False,
        version: int | None = None,
        **query: object,
    ) -> Any:
        """``once``: safe to send again. ``version``: only if the job still has that one."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        key = {"Idempotency-Key": os.urandom(16).hex()} if once else {}
        request = Request("POST", path, query, data, timeout, _condition(version) | key)
        return self._until_known(request) if once else self._document(request)

    def change(
        self,
        method: str,
        *path: str,
        body: Document | None = None,
        revision: int | None = None,
        **query: object,
    ) -> Any:
        """PATCH, PUT or DELETE. ``revision``: only if the settings still have that one."""
        data = b"" if body is None else json.dumps(body).encode()
        request = Request(method, path, query, data, CHANGE_SECONDS, _condition(revision))
        return self._document(request)

    def delete(self, *path: str, version: int | None = None) -> Any:
        headers = _condition(version)
        return self._document(Request("DELETE", path, {}, b"", CHANGE_SECONDS, headers))

    def lines(self, *path: str, **query: object) -> Iterator[str]:
        """The lines of a stream until it ends; beats (empty lines) are left out."""
        answer = self._ask(Request("GET", path, query, wait_seconds=SILENCE_SECONDS))
        try:
            for line in answer.lines():
                if line.strip():
                    yield line.decode(errors="replace").rstrip("\r")
        except NoAnswer as error:
            raise unreachable([f"{self._endpoints[0]}: the stream broke off: {error}"]) from None
        finally:
            answer.close()

    def _until_known(self, request: Request) -> Any:
        """Send a change with a key until somebody says what became of it, within a limit."""
        from ozymandias.problems import OUTCOME_UNKNOWN, ProblemError

        doubt: ProblemError | None = None
        for pause in (*PAUSES_SECONDS, None):
            try:
                return self._document(request)
            except ProblemError as error:
                if error.problem.kind is OUTCOME_UNKNOWN:
                    doubt = error
                elif doubt is None or error.problem.kind.status != 503:
                    raise
            if pause is not None:
                self._endpoints.append(self._endpoints.pop(0))
                time.sleep(pause)
        assert doubt is not None
        raise doubt

    def raw(self, *path: str, timeout: float = ANSWER_SECONDS, **query: object) -> bytes:
        """An answer to the last byte, for what is kept as a file."""
        return self._body(Request("GET", path, query, wait_seconds=timeout))

    def _document(self, request: Request) -> Any:
        try:
            return json.loads(self._body(request))
        except ValueError as error:
            raise _unknown_outcome(request.method, self._endpoints[0], str(error)) from None

    def _body(self, request: Request) -> bytes:
        answer = self._ask(request)
        try:
            return answer.body()
        except NoAnswer as error:
            raise _unknown_outcome(request.method, self._endpoints[0], str(error)) from None
        finally:
            answer.close()

    def _ask(self, request: Request) -> Answer:
        """The first good answer; the node that gave it is asked first from then on."""
        method = request.method
        tried: list[str] = []
        refusal: ProblemError | None = None
        for endpoint in list(self._endpoints):
            try:
                answer = send(
                    endpoint,
                    method,
                    request.target,
                    {**self._headers(), **request.headers},
                    request.body,
                    connect_timeout=self._connect_seconds,
                    timeout=request.wait_seconds,
                    ca=self.context.ca,
                )
            except ConnectFailed as error:
                tried.append(f"{endpoint}: {error}")
                continue
            except NoAnswer as error:
                if method != "GET":
                    raise _unknown_outcome(method, endpoint, str(error)) from None
                tried.append(f"{endpoint}: {error}")
                continue
            if answer.status < 400:
                self._endpoints.sort(key=lambda other: other != endpoint)
                return answer
            refusal = _problem_of(answer)
            if answer.status != 503 or refusal.problem.kind.slug == "outcome-unknown":
                raise refusal
        raise refusal or unreachable(tried)

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "Ozymandias-By": _who()}
        if self.context.token:
            headers["Authorization"] = f"Bearer {self.context.token}"
        return headers


def connect() -> Client:
    """A client for the context that the options and the environment choose."""
    return Client(contexts.load(settings().context))


def _who() -> str:
    user = os.environ.get("SUDO_USER") or os.environ.get("USER") or f"uid {os.getuid()}"
    return f"{user}@{os.uname().nodename}"


def _condition(version: int | None) -> dict[str, str]:
    return {} if version is None else {"If-Match": f'"{version}"'}


def _problem_of(answer: Answer) -> "ProblemError":
    """The answer's problem document as the error it stands for."""
    from ozymandias.problems import CATALOGUE, EXIT_FAILED, Kind, Problem, ProblemError

    try:
        document = json.loads(answer.body())
        slug = str(document["type"]).rpartition("#")[2]
    except (NoAnswer, ValueError, KeyError, TypeError):
        document, slug = {}, "internal"
    finally:
        answer.close()
    title = str(document.pop("title", f"The API answered {answer.status}"))
    made = Kind(slug, title, answer.status, EXIT_FAILED)
    kind = next((kind for kind in CATALOGUE if kind.slug == slug), made)
    detail, hint = str(document.pop("detail", "")), str(document.pop("hint", ""))
    fields = {k: v for k, v in document.items() if k not in ("type", "status")}
    return ProblemError(Problem(kind=kind, detail=detail, hint=hint, fields=fields))


def unreachable(tried: list[str]) -> Exception:
    from ozymandias.problems import CLUSTER_UNREACHABLE, ProblemError

    return ProblemError(
        CLUSTER_UNREACHABLE(
            "Tried " + "; ".join(tried or ["nothing: the context names no endpoint"]) + ".",
            hint="`ozy doctor` looks for the cause; `ozy up` starts a cluster on this machine.",
            tried=tried,
        )
    )


def _unknown_outcome(method: str, endpoint: str, reason: str) -> Exception:
    if method == "GET":
        return unreachable([f"{endpoint}: {reason}"])
    from ozymandias.problems import OUTCOME_UNKNOWN, ProblemError

    return ProblemError(
        OUTCOME_UNKNOWN(
            f"{endpoint} took the request and did not answer: {reason}.",
            hint="`ozy status JOB` shows whether it was done; doing it again is safe.",
        )
    )
