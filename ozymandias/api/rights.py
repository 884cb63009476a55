"""Which right of a token each change needs: one table, and the questions that are asked of it.

Reading needs a token and nothing more. `permitted` of `api/guards.py` asks for the change that a
route makes and for a freeze that is not waited for. Whether a job is protected is known to the
decision alone, each time it is made: `Asked.guard` of `api/changes.py` asks there, `plan` asks the
same, and so does a command in an instance. What a peer passes on has the right of who asked the
peer: the peer says it in `RIGHT`, which is believed of peers and of nobody else.

What would help is told in words that fit the right (`advised`): nobody is told to do what would be
refused.
"""

from collections.abc import Mapping

from ozymandias.model.job import Job, JobKey, JobRecord
from ozymandias.model.record import replace
from ozymandias.problems import FORBIDDEN, Problem, ProblemError, Suggestion, resuggested
from ozymandias.store.tokens import Right

RIGHT = "Ozymandias-Right"  # set by a peer that passes a request on: the right of who asked it
PROTECTED = "job.protected"
OVERRIDE = "freeze.override"
BY_OTHERS = "have an administrator "  # begins what a token may not do by itself

# What is asked for, as the audit calls it. What is not here is for administrators.
NEEDS: Mapping[str, Right] = {
    "job.submit": Right.DEPLOY,
    "job.scale": Right.DEPLOY,
    "job.restart": Right.DEPLOY,
    "job.stop": Right.DEPLOY,
    "instance.exec": Right.DEPLOY,
    PROTECTED: Right.ADMIN,  # any of the above, if the job is protected or is to be
    OVERRIDE: Right.ADMIN,  # submit and restart, if they do not wait for the end of a freeze
    "node.cordon": Right.ADMIN,
    "node.uncordon": Right.ADMIN,
    "node.drain": Right.ADMIN,
    "node.undrain": Right.ADMIN,
    "node.label": Right.ADMIN,
    "settings.change": Right.ADMIN,
    "freeze.set": Right.ADMIN,
    "freeze.remove": Right.ADMIN,
    "rebalance": Right.ADMIN,
}

# The changes of suggestions that are not the job file's, and what they are in the table above. To
# start or add a host is no change of the API: it is for those who have the hosts.
OF_OPERATORS: Mapping[str, str] = {
    "uncordon": "node.uncordon",
    "undrain": "node.undrain",
    "label": "node.label",
    "start": "",
    "nodes": "",
}


def needed(what: str) -> Right:
    return NEEDS.get(what, Right.ADMIN)


def may(right: Right, what: str) -> bool:
    """Whether a holder of this right may do that: administrators may do everything."""
    return right is Right.ADMIN or needed(what) is right


def check(right: Right, what: str) -> None:
    """ProblemError FORBIDDEN."""
    if not may(right, what):
        raise ProblemError(_refused(right, what, f"{what} is for administrators."))


def check_override(right: Right) -> None:
    if not may(right, OVERRIDE):
        detail = "A freeze window is overridden by administrators."
        hint = "Without --override-freeze the change is taken, and rolled out when the freeze ends."
        raise ProblemError(_refused(right, OVERRIDE, detail, hint))


def refusal(
    right: Right, key: JobKey, record: JobRecord | None, wanted: Job | None = None
) -> Problem | None:
    """What to answer who may not touch protected jobs: one that is there, or is ``wanted``.

    A job whose current version can't be read might be protected: it counts as such.
    """
    if may(right, PROTECTED):
        return None
    detail = hint = ""
    if record is not None and record.current is None:
        detail = f"The current version of {key} can't be read here: it might be protected."
    elif record is not None and record.current and record.current.job.is_protected:
        detail = f"{key} is protected: administrators alone change it."
    elif wanted is not None and wanted.is_protected:
        detail = f"{key} is to be protected: `protected: true` is for administrators to say."
        hint = "Take `protected` out of the job file, or have an administrator submit it."
    if not detail:
        return None
    return _refused(right, PROTECTED, detail, hint, job=key.name, namespace=key.namespace)


def advised(right: Right, suggestion: Suggestion) -> Suggestion:
    """In words for who may follow it, or may only have it followed.

    What was passed on has been worded by the peer that answered, and stays as it is.
    """
    asked = [OF_OPERATORS[name] for name in suggestion.change if name in OF_OPERATORS]
    if all(may(right, what) for what in asked) or suggestion.text.startswith(BY_OTHERS):
        return suggestion
    return replace(suggestion, text=BY_OTHERS + suggestion.text)


def told(right: Right, problem: Problem) -> Problem:
    """The problem with advice that its reader may follow."""
    return resuggested(problem, lambda suggestion: advised(right, suggestion))


def _refused(right: Right, what: str, detail: str, hint: str = "", **fields: str) -> Problem:
    return FORBIDDEN(
        f"{detail} This token has the right {right}.",
        hint=hint or f"It takes a token with the right {needed(what)}, or root on a host.",
        right=right.value,
        needed=needed(what).value,
        operation=what,
        **fields,
    )
