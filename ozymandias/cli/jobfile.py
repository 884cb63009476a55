"""Job files as a person has them: reading, checking offline, the schema.

`parse` is the very function the server uses, so what is valid here is valid there.
"""

import sys
from pathlib import Path
from typing import Any

import click

from ozymandias.cli.options import output_option, settings
from ozymandias.cli.render import print_document
from ozymandias.problems import Problem, ProblemError

BYTES_MAX = 2**20 + 1  # one more than the server takes, so that the server is the one to refuse


class FileProblem(ProblemError):
    """A problem with a job file, and the file's text to point into."""

    def __init__(self, problem: Problem, source: str) -> None:
        super().__init__(problem)
        self.source = source


def read_file(name: str) -> tuple[bytes, str]:
    """A job file's bytes and what to call it; ``-`` is standard input."""
    if name == "-":
        return sys.stdin.buffer.read(BYTES_MAX), "<stdin>"
    try:
        with Path(name).open("rb") as opened:
            return opened.read(BYTES_MAX), name
    except OSError as error:
        raise click.UsageError(f"{name}: {error.strerror or error}") from None


def with_source(error: ProblemError, data: bytes) -> ProblemError:
    """The same problem, able to show the lines it complains about."""
    if error.problem.kind.slug != "invalid-job":
        return error
    return FileProblem(error.problem, data.decode("utf-8", "replace"))


@click.command()
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(allow_dash=True)
)
@output_option
def validate(files: tuple[str, ...]) -> int:
    """Check job files, without a cluster.

    Every mistake is shown with its line and column. FILE may be - for standard input. Exit code 2
    when a file is not valid.

    \b
    Examples:
      ozy validate web.yaml
      ozy validate jobspecs/*.yaml -o json
    """
    documents: list[dict[str, Any]] = []
    worst = 0
    for name in files:
        data, shown = read_file(name)
        document, problem = _check(data, shown)
        documents.append(document)
        if problem is not None:
            worst = max(worst, problem.kind.exit_code)
        if settings().output == "table":
            _tell(document, problem, data)
    if settings().output != "table":
        print_document(documents[0] if len(documents) == 1 else documents, settings().output)
    return worst


def _check(data: bytes, file: str) -> tuple[dict[str, Any], Problem | None]:
    from ozymandias.jobspec.parse import parse

    try:
        job = parse(data, file)
    except ProblemError as error:
        return error.problem.document(), error.problem
    return {
        "file": file,
        "valid": True,
        "job": job.name,
        "namespace": job.namespace,
        "instances": job.instances,
    }, None


def _tell(document: dict[str, Any], problem: Problem | None, data: bytes) -> None:
    if problem is None:
        print(f"{document['file']}: valid (job {document['job']})")
        return
    from ozymandias.cli.complain import problem_text

    print(problem_text(problem, data.decode("utf-8", "replace")), file=sys.stderr)


@click.command()
@output_option
def schema() -> None:
    """Print the JSON Schema of job files, for editors.

    \b
    Examples:
      ozy schema > job.schema.json
      # in a job file, for editors with a YAML language server:
      # yaml-language-server: $schema=./job.schema.json
    """
    from ozymandias.jobspec.schema import schema as make

    print_document(make(), "yaml" if settings().output == "yaml" else "json")
