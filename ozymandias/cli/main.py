"""`ozy`: the command tree. A command's module is imported when that command runs, not before.

Starting up is a feature: `ozy --help` needs click and this table, nothing else. Every failure ends
here: a problem becomes text on stderr, or its document on stdout with `-o json`, and its exit code.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from ozymandias import __version__
from ozymandias.cli.options import context_option, namespace_option, output_option

# Section -> (command, module, function, one line of help).
SECTIONS: tuple[tuple[str, tuple[tuple[str, str, str, str], ...]], ...] = (
    (
        "Run jobs",
        (
            ("submit", "job", "submit", "Run a job file, or change the job that it describes."),
            ("plan", "job", "plan", "Show exactly what submit would do, and why."),
            ("what-if", "foresee", "what_if", "Show what would become of the cluster."),
            ("scale", "job", "scale", "Change how many instances a job has."),
            ("restart", "job", "restart", "Replace all instances, one at a time."),
            ("stop", "job", "stop", "Remove a job and its instances; its history stays."),
            ("validate", "jobfile", "validate", "Check job files, without a cluster."),
            ("schema", "jobfile", "schema", "Print the JSON Schema of job files, for editors."),
        ),
    ),
    (
        "See what is going on",
        (
            ("ps", "show", "ps", "List instances: where they are and how they are."),
            ("jobs", "show", "jobs", "List jobs."),
            ("status", "show", "status", "Show the cluster at a glance, or one job."),
            ("pools", "pools", "pools", "List jobs that scale themselves, and what is pending."),
            ("nodes", "show", "nodes", "List nodes and what is allocated on them."),
            ("why", "why", "why", "Explain why a job or instance is where and as it is."),
            ("why-not", "why", "why_not", "Explain why a job is not on a node."),
            ("drift", "balance", "drift", "List what jobs prefer and do without, and why."),
            ("logs", "logs", "logs", "Print what a job or instance has written."),
            ("exec", "look", "exec_", "Run a command inside an instance."),
            ("events", "look", "events", "List what happened, with reasons."),
            ("replay", "replay", "replay", "Run the scheduler over the state in a file."),
        ),
    ),
    (
        "Clusters",
        (
            ("up", "cluster", "up", "Start a cluster on this machine."),
            ("down", "cluster", "down", "Remove the cluster that `ozy up` made."),
            ("node", "node", "node", "Look after one node: cordon, drain, label."),
            ("freeze", "freeze", "freeze", "List or set times in which nothing is changed."),
            ("shed", "shed", "shed", "Show who leaves a host that is under pressure."),
            ("rebalance", "balance", "rebalance", "Move instances to where they are better off."),
            ("settings", "settings", "settings", "Show or change what holds for all jobs."),
            ("cluster", "founding_upkeep", "cluster", "Make several hosts one cluster."),
            ("doctor", "cluster", "doctor", "Find out what is missing or wrong."),
            ("install", "host", "install", "Make this host a node: units, settings, a token."),
            (
                "token",
                "tokens",
                "token",
                "Make tokens, with which people and programs use the API.",
            ),
            ("context", "about", "context", "Choose which cluster to talk to."),
            ("version", "about", "version", "Print the versions of ozy and of the cluster."),
            ("completion", "about", "completion", "Print shell completion."),
        ),
    ),
)
EXAMPLES = """\
Examples:
  ozy up                           a cluster of three nodes on this machine
  ozy plan web.yaml                what would happen, and why
  ozy submit web.yaml              run it and wait until it is healthy
  ozy scale web 5                  five instances
  ozy why web-3                    why is it there, or why is it pending?

Exit codes: 0 done, 1 failed, 2 bad usage or job file, 3 does not fit, 4 not found,
5 changed meanwhile, 6 cluster unreachable, 130 interrupted."""

_COMMANDS = {entry[0]: entry for _, entries in SECTIONS for entry in entries}


class Interrupted(Exception):
    """Ctrl-C, with a word about what goes on regardless; "" where it is the usual end."""


class LazyGroup(click.Group):
    """Knows its commands from the table, and imports one when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        _, module, function, _ = _COMMANDS[cmd_name]
        found: click.Command = getattr(import_module(f"ozymandias.cli.{module}"), function)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in _COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            from difflib import get_close_matches

            close = get_close_matches(name, _COMMANDS, n=3, cutoff=0.5)
            meant = f" Did you mean {' or '.join(close)}?" if close else ""
            ctx.fail(f"There is no command {name!r}.{meant}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, entries in SECTIONS:
            with formatter.section(title):
                formatter.write_dl([(name, text) for name, _, _, text in entries])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_paragraph()
        formatter.write(EXAMPLES + "\n")

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(name, help=entry[3])
            for name, entry in _COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return found or click.Command.shell_complete(self, ctx, incomplete)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@output_option
@namespace_option
@context_option
@click.version_option(__version__, message="%(prog)s %(version)s", help="Show ozy's own and exit.")
def cli() -> None:
    """Run containers on your machines as one computer."""


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """The whole command; the exit code."""
    stdout = sys.stdout
    try:
        result = cli.main(args=list(arguments), prog_name="ozy", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        return _usage_error(error, arguments)
    except (KeyboardInterrupt, click.Abort):
        _say("Interrupted.")
        return 130
    except Interrupted as stopped:
        _say(str(stopped))
        return 130
    except BrokenPipeError:
        return _seen_enough()
    except SystemExit:
        # So click ends a command that met a broken pipe, with 1 and an output that can't fail.
        if sys.stdout is stdout:
            raise
        return _seen_enough()
    except Exception as error:
        from ozymandias.problems import ProblemError

        if isinstance(error, ProblemError):
            return report(error, output_of(arguments))
        raise


def _seen_enough() -> int:
    """The reader is gone. Keep the interpreter from trying to flush again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def report(error: Any, output: str) -> int:
    """Show a problem: text on stderr, or its document on stdout. Its exit code."""
    if output == "table":
        from ozymandias.cli.complain import problem_text

        print(problem_text(error.problem, getattr(error, "source", None)), file=sys.stderr)
    else:
        from ozymandias.cli.render import print_document

        print_document(error.problem.document(), output)
    code: int = error.problem.kind.exit_code
    return code


def _usage_error(error: click.ClickException, arguments: Sequence[str]) -> int:
    output = output_of(arguments)
    if output == "table":
        error.show()
        return error.exit_code
    from ozymandias.problems import INVALID_REQUEST, ProblemError

    report(ProblemError(INVALID_REQUEST(error.format_message())), output)
    return error.exit_code


def output_of(arguments: Sequence[str]) -> str:
    """What `-o` says, found without parsing: also for arguments that could not be parsed."""
    found = "table"
    for number, argument in enumerate(arguments):
        if argument == "--":
            break
        if argument in ("-o", "--output") and number + 1 < len(arguments):
            found = arguments[number + 1]
        elif argument.startswith("--output="):
            found = argument.removeprefix("--output=")
        elif argument.startswith("-o") and len(argument) > 2:
            found = argument[2:].removeprefix("=")
    return found if found in ("json", "yaml") else "table"


def _say(text: str) -> None:
    sys.stderr.write(f"\n{text}\n" if text else "\n")
