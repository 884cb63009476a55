"""The manual of `ozy`, made from its command tree: `docs/cli.md` and the man pages.

`python -m ozymandias.cli.manual docs` writes them; a test holds that they are up to date. The
help texts are the only source: paragraphs, and blocks that begin with a backspace line and are
printed as they are. Those that begin with "Example" become the examples.
"""

import inspect
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from ozymandias import __version__
from ozymandias.cli.main import EXAMPLES, SECTIONS, cli

MAN_SECTION = "1"
ENVIRONMENT = (
    ("OZY_CONTEXT", "The file of contexts, instead of ~/.config/ozymandias/context.json."),
    ("OZY_API", "Addresses of nodes, with commas between them; no context is needed then."),
    ("OZY_TOKEN", "The token to show, instead of the context's."),
    ("OZY_CA", "A file with the authority whose certificates are believed, for https."),
    ("NO_COLOR", "Not empty: print no colours."),
)
EXIT_CODES = (
    ("0", "done"),
    ("1", "failed"),
    ("2", "bad usage or job file"),
    ("3", "does not fit"),
    ("4", "not found"),
    ("5", "changed meanwhile"),
    ("6", "cluster unreachable"),
    ("130", "interrupted"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What there is to say about one command, before it is set."""

    words: tuple[str, ...]  # ("ozy", "node", "kill")
    summary: str
    usage: str
    paragraphs: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()  # lines
    options: tuple[tuple[str, str], ...] = ()
    commands: tuple[str, ...] = ()  # below it

    @property
    def command(self) -> str:
        return " ".join(self.words)

    @property
    def name(self) -> str:
        return "-".join(self.words)


def pages() -> Iterator[Page]:
    """All commands, in the order of the help."""
    root = click.Context(cli, info_name="ozy", **cli.context_settings)
    yield _page(cli, root, ("ozy",))
    for _, entries in SECTIONS:
        for name, *_ in entries:
            yield from _below(root, cli, name, ("ozy",))


def _below(
    parent: click.Context, group: click.Group, name: str, words: tuple[str, ...]
) -> Iterator[Page]:
    command = group.get_command(parent, name)
    assert command is not None
    ctx = click.Context(command, info_name=name, parent=parent)
    yield _page(command, ctx, (*words, name))
    if isinstance(command, click.Group):
        for other in command.list_commands(ctx):
            yield from _below(ctx, command, other, (*words, name))


def _page(command: click.Command, ctx: click.Context, words: tuple[str, ...]) -> Page:
    text = inspect.cleandoc(command.help or "")
    summary, *blocks = [block for block in text.split("\n\n") if block.strip()] or [""]
    paragraphs, examples = [], list[str]()
    for block in blocks:
        lines = [line.rstrip() for line in block.strip("\n").split("\n")]
        if lines[0] != "\b":
            paragraphs.append(" ".join(lines))
        elif lines[1].startswith("Example"):
            examples += [line.removeprefix("  ") for line in lines[2:]]
    if command is cli:
        examples = [line.removeprefix("  ") for line in EXAMPLES.split("\n\n")[0].split("\n")[1:]]
    options = [p for p in command.get_params(ctx) if isinstance(p, click.Option)]
    records = (option.get_help_record(ctx) for option in options)
    below = command.list_commands(ctx) if isinstance(command, click.Group) else []
    return Page(
        words=words,
        summary=" ".join(summary.split("\n")),
        usage=" ".join([ctx.command_path, *command.collect_usage_pieces(ctx)]),
        paragraphs=tuple(paragraphs),
        examples=tuple(examples),
        options=tuple(record for record in records if record is not None),
        commands=tuple(below),
    )


# Markdown -----------------------------------------------------------------------------------------


def markdown() -> str:
    found = {page.words: page for page in pages()}
    lines = [
        "# The command line",
        "",
        "Made from the help texts by `make docs`; `ozy COMMAND --help` and `man ozy-COMMAND` say"
        " the same.",
        "",
        *_block([found["ozy",].usage]),
        "`-o json` and `-o yaml` print documents for programs, errors too; a job of another"
        " namespace is `NAMESPACE/JOB` or `-n NAMESPACE JOB`. Colours and redrawing are for"
        " terminals; elsewhere the same comes as plain lines.",
        "",
        *_block(found["ozy",].examples, "text"),
        "| exit code | meaning |",
        "| --- | --- |",
        *(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES),
        "",
        "| variable | meaning |",
        "| --- | --- |",
        *(f"| `{name}` | {meaning} |" for name, meaning in ENVIRONMENT),
        "",
    ]
    for title, entries in SECTIONS:
        lines += [f"## {title}", ""]
        for name, *_ in entries:
            for words, page in found.items():
                if words[1:2] == (name,):
                    lines += _chapter(page)
    return "\n".join(lines).rstrip() + "\n"


def _chapter(page: Page) -> list[str]:
    lines = ["#" * (1 + len(page.words)) + f" {page.command}", ""]
    lines += [page.summary, "", *_block([page.usage])]
    for paragraph in page.paragraphs:
        lines += [paragraph, ""]
    if page.examples:
        lines += _block(page.examples, "text")
    lines += ["| option | |", "| --- | --- |"]
    lines += [f"| `{names.replace('|', chr(92) + '|')}` | {text} |" for names, text in page.options]
    return [*lines, ""]


def _block(lines: Sequence[str], language: str = "sh") -> list[str]:
    return [f"```{language}", *lines, "```", ""]


# Man pages ----------------------------------------------------------------------------------------


def man_page(page: Page) -> str:
    """In the macros that every man program knows."""
    about = f'"ozymandias {__version__}" "Ozymandias"'
    lines = [f'.TH {_bold(page.name.upper())} {MAN_SECTION} "" {about}']
    lines += [".SH NAME", f"{_roff(page.name)} \\- {_roff(page.summary.rstrip('.'))}"]
    lines += [".SH SYNOPSIS", f".B {_roff(page.usage)}"]
    if page.paragraphs:
        lines.append(".SH DESCRIPTION")
        lines += [line for text in page.paragraphs for line in (".PP", _roff(text))]
    if page.commands:
        lines.append(".SH COMMANDS")
        lines += _commands(page)
    lines.append(".SH OPTIONS")
    for names, text in page.options:
        lines += [".TP", f".B {_roff(names)}", _roff(text)]
    if len(page.words) == 1:
        for title, rows in (("ENVIRONMENT", ENVIRONMENT), ("EXIT STATUS", EXIT_CODES)):
            lines.append(f".SH {title}")
            for name, text in rows:
                lines += [".TP", f".B {_roff(name)}", _roff(text)]
    if page.examples:
        lines += [".SH EXAMPLES", ".nf", *(_roff(line) for line in page.examples), ".fi"]
    lines += [".SH SEE ALSO", _see_also(page)]
    return "\n".join(lines) + "\n"


def _commands(page: Page) -> Iterator[str]:
    summaries = {p.words: p.summary for p in pages()}
    if len(page.words) > 1:
        for name in page.commands:
            yield from (".TP", f".B {_roff(name)}", _roff(summaries[(*page.words, name)]))
        return
    for title, entries in SECTIONS:
        yield f".SS {_roff(title)}"
        for name, _, _, text in entries:
            yield from (".TP", f".B {_roff(name)}", _roff(text))


def _see_also(page: Page) -> str:
    names = [f"{page.name}-{name}" for name in page.commands]
    if len(page.words) > 1:
        names.insert(0, "-".join(page.words[:-1]))
    return ",\n".join(f"\\fB{_roff(name)}\\fR({MAN_SECTION})" for name in names)


def _bold(text: str) -> str:
    return f'"{_roff(text)}"'


def _roff(text: str) -> str:
    """Plain text that roff leaves alone; hyphens stay those that can be copied to a shell."""
    safe = text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...")
    return "\\&" + safe if safe[:1] in (".", "'") else safe


# Writing ------------------------------------------------------------------------------------------


def files() -> dict[str, str]:
    """Everything that is generated, by its path below the directory of the documentation."""
    made = {f"man/{page.name}.{MAN_SECTION}": man_page(page) for page in pages()}
    return {"cli.md": markdown(), **made}


def write(directory: Path) -> None:
    made = files()
    (directory / "man").mkdir(parents=True, exist_ok=True)
    for old in (directory / "man").glob(f"*.{MAN_SECTION}"):
        if f"man/{old.name}" not in made:
            old.unlink()
    for name, text in made.items():
        (directory / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "docs"))
