"""Which cluster `ozy` talks to: a small JSON file of named contexts.

`$OZY_CONTEXT` names another file; `$OZY_API` (endpoints, with commas), `$OZY_TOKEN` and `$OZY_CA`
(a file) override it all. The file holds tokens, so only its owner may read it. Read at every start
of `ozy`: it must not import anything that takes time.
"""
# pathlib would cost as much as the rest of this module's work together:
# ruff: noqa: PTH103, PTH105, PTH111, PTH118, PTH120, PTH123

import json
import os
from typing import Any, NoReturn

DEFAULT_ENDPOINT = "http://127.0.0.1:7400"


class Context:
    """One cluster: where its API answers, the token to show, and where its ingress is."""

    __slots__ = ("ca", "endpoints", "ingress", "local_state_dir", "name", "token")

    def __init__(
        self,
        *,
        name: str,
        endpoints: tuple[str, ...],
        token: str = "",
        ingress: str = "",
        local_state_dir: str = "",
        ca: str = "",
    ) -> None:
        self.name = name
        self.endpoints = endpoints
        self.token = token
        self.ingress = ingress
        self.local_state_dir = local_state_dir
        self.ca = ca  # PEM of the cluster's authority; "": those of the machine

    def document(self) -> dict[str, Any]:
        """As it is in the file."""
        return {
            "endpoints": list(self.endpoints),
            "token": self.token,
            "local_state_dir": self.local_state_dir,
            "ingress": self.ingress,
            **({"ca": self.ca} if self.ca else {}),
        }


def context_file() -> str:
    given = os.environ.get("OZY_CONTEXT")
    if given:
        return given
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "ozymandias", "context.json")


def load(name: str = "") -> Context:
    """The context of that name, or the current one. ProblemError NO_CONTEXT when there is none."""
    given = os.environ.get("OZY_API", "")
    if given and not name:
        endpoints = tuple(part.strip().rstrip("/") for part in given.split(",") if part.strip())
        token = os.environ.get("OZY_TOKEN", "")
        return Context(name="$OZY_API", endpoints=endpoints, token=token, ca=_given_ca())
    current, contexts = read()
    chosen = name or current
    if not chosen:
        _no_context("No cluster is chosen and $OZY_API is not set.")
    if chosen not in contexts:
        known = f" It has {', '.join(sorted(contexts))}." if contexts else ""
        _no_context(f"{context_file()} has no context {chosen!r}.{known}")
    found = contexts[chosen]
    found.token = os.environ.get("OZY_TOKEN", found.token)
    found.ca = _given_ca() or found.ca
    return found


def _given_ca() -> str:
    """What the file of $OZY_CA says: whose certificates are believed."""
    file = os.environ.get("OZY_CA", "")
    try:
        if not file:
            return ""
        with open(file, encoding="ascii") as opened:
            return opened.read()
    except (OSError, ValueError) as error:
        _no_context(f"$OZY_CA: {error}")


def read() -> tuple[str, dict[str, Context]]:
    """The current context's name ("" if none) and all contexts; nothing when there is no file."""
    file = context_file()
    try:
        with open(file, encoding="utf-8") as opened:
            document = json.load(opened)
        contexts = {
            str(name): Context(
                name=str(name),
                endpoints=tuple(str(e).rstrip("/") for e in found.get("endpoints", ())),
                token=str(found.get("token", "")),
                ingress=str(found.get("ingress", "")).rstrip("/"),
                local_state_dir=str(found.get("local_state_dir", "")),
                ca=str(found.get("ca", "")),
            )
            for name, found in document.get("contexts", {}).items()
        }
        return str(document.get("current") or ""), contexts
    except FileNotFoundError:
        return "", {}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        _no_context(f"{file} can't be read: {error}")


def save(current: str, contexts: dict[str, Context]) -> None:
    """Write the file as a whole, readable by its owner only; a crash leaves the old one."""
    file = context_file()
    document = {
        "current": current,
        "contexts": {name: found.document() for name, found in sorted(contexts.items())},
    }
    os.makedirs(os.path.dirname(file) or ".", exist_ok=True)
    draft = f"{file}.{os.getpid()}"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as opened:
        json.dump(document, opened, indent=2)
        opened.write("\n")
    os.replace(draft, file)


def put(context: Context, *, make_current: bool = True) -> None:
    """Add or replace one context."""
    current, contexts = read()
    contexts[context.name] = context
    save(context.name if make_current else current, contexts)


def remove(name: str) -> None:
    """Forget one context; fine if it is not there."""
    current, contexts = read()
    if contexts.pop(name, None) is not None:
        left = next(iter(sorted(contexts)), "")
        save(left if current == name else current, contexts)


def _no_context(detail: str) -> NoReturn:
    from ozymandias.problems import NO_CONTEXT, ProblemError

    raise ProblemError(
        NO_CONTEXT(
            detail,
            hint="`ozy up` makes a cluster on this machine; `ozy context use NAME` chooses one.",
        )
    )
