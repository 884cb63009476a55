"""About `ozy` itself: contexts, completion, versions."""

import click

from ozymandias import __version__
from ozymandias.cli import context as contexts
from ozymandias.cli.complete import complete_context
from ozymandias.cli.options import context_option, output_option, settings
from ozymandias.cli.render import print_document, print_table, show


@click.group(invoke_without_command=True)
@output_option
@click.pass_context
def context(ctx: click.Context) -> None:
    """Choose which cluster to talk to.

    \b
    Examples:
      ozy context            which ones there are
      ozy context use local
    """
    if ctx.invoked_subcommand is None:
        _list()


@context.command("list")
@output_option
def list_() -> None:
    """List the contexts; the current one is marked.

    \b
    Example:
      ozy context list
    """
    _list()


def _list() -> None:
    current, found = contexts.read()
    rows = [
        {"name": name, "current": name == current, "endpoints": list(one.endpoints)}
        for name, one in sorted(found.items())
    ]

    def draw(rows: list[dict[str, object]]) -> None:
        cells = [("*" if r["current"] else " ", r["name"], _joined(r["endpoints"])) for r in rows]
        print_table((" ", "NAME", "ENDPOINTS"), cells, empty="No contexts. `ozy up` makes one.")

    show(rows, draw)


def _joined(values: object) -> str:
    return ", ".join(values) if isinstance(values, list) else ""


@context.command()
@click.argument("name", shell_complete=complete_context)
@output_option
def use(name: str) -> None:
    """Make a context the current one.

    \b
    Example:
      ozy context use local
    """
    _, found = contexts.read()
    contexts.load(name)  # says what there is, if not this
    contexts.save(name, found)
    show({"current": name}, lambda _: print(f"ozy now talks to {name}."))


@context.command("show")
@output_option
def show_(**_: object) -> None:
    """Show the current context, without its token.

    \b
    Example:
      ozy context show -o json
    """
    one = contexts.load(settings().context)
    document = {
        "name": one.name,
        "endpoints": list(one.endpoints),
        "has_token": bool(one.token),
        "ingress": one.ingress,
        "local_state_dir": one.local_state_dir,
        "file": contexts.context_file(),
    }
    show(document, lambda d: print("\n".join(f"{k}: {_plain(v)}" for k, v in d.items())))


def _plain(value: object) -> object:
    return ", ".join(value) if isinstance(value, list) else value


@click.command()
@context_option
@output_option
def version() -> None:
    """Print the versions of ozy and of the cluster.

    \b
    Example:
      ozy version
    """
    from ozymandias.cli.client import connect
    from ozymandias.problems import ProblemError

    document: dict[str, object] = {"client": __version__, "server": None}
    try:
        info = connect().get("info", timeout=3.0)
        document |= {"server": info["version"], "node": info["node"], "cluster": info["cluster"]}
        said = f"{info['version']} (node {info['node']})"
    except ProblemError as error:
        document["problem"] = error.problem.document()
        said = f"not reached: {error.problem.kind.title.lower()}"
    show(document, lambda _: print(f"ozy {__version__}\ncluster {said}"))


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@output_option
def completion(shell: str) -> None:
    """Print shell completion.

    The names of jobs, instances, nodes and contexts are completed as well, asked of the cluster
    when the tab key is pressed.

    \b
    Examples:
      source <(ozy completion bash)                      for this shell
      ozy completion bash > /etc/bash_completion.d/ozy   for all
      ozy completion zsh > ~/.zfunc/_ozy
      ozy completion fish > ~/.config/fish/completions/ozy.fish
    """
    from click.shell_completion import get_completion_class

    from ozymandias.cli.main import cli

    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"no completion for {shell}")
    script = found(cli, {}, "ozy", "_OZY_COMPLETE").source()
    if settings().output == "table":
        print(script)
    else:
        print_document({"shell": shell, "script": script}, settings().output)
