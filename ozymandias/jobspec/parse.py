"""A job file -> a complete Job, or one problem that holds every complaint about it.

`parse` is the package's door: the API, `ozy submit`, `ozy plan` and `ozy validate` all go through
it, so they say the same about a file. It reads no file and asks no cluster: whether a job fits or
its host is free is the scheduler's business.
"""

from collections.abc import Mapping

from ozymandias.jobspec.checks import attempt
from ozymandias.jobspec.job import JOB
from ozymandias.jobspec.loader import load
from ozymandias.jobspec.report import Place, Report
from ozymandias.model.job import Job
from ozymandias.problems import ProblemError, invalid_job


def parse(
    data: bytes, file: str = "<stdin>", *, priority_classes: Mapping[str, int] | None = None
) -> Job:
    """The job in `data`. Raises ProblemError of kind INVALID_JOB; `file` is named in it.

    ``priority_classes``: those of the cluster beside the predefined; None: no cluster is asked.
    """
    report = Report(priority_classes)
    root = load(data, report)
    job = attempt(JOB, root, Place(report)) if root is not None else None
    if report.count:
        raise ProblemError(invalid_job(file, report.errors()))
    assert isinstance(job, Job), "a file without complaints makes a job"
    return job
