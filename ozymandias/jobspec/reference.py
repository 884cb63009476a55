"""The field tables of `docs/jobspec.md`, drawn from the tables that the parser reads by.

`python -m ozymandias.jobspec.reference docs/jobspec.md` writes them anew between the page's
markers (`<!-- fields: container -->` … `<!-- end -->`); a test holds that they are up to date.
"""

import re
import sys
from pathlib import Path

from ozymandias.jobspec.autoscale import AUTOSCALE, FREEZE, PENDING
from ozymandias.jobspec.container import CONTAINER
from ozymandias.jobspec.forms import PORT_RECORD
from ozymandias.jobspec.job import INGRESS, JOB
from ozymandias.jobspec.parts import HEALTHCHECK, VOLUME
from ozymandias.jobspec.placement import PLACEMENT
from ozymandias.jobspec.records import Field, Record

RECORDS = {
    "job": JOB,
    "container": CONTAINER,
    "port": PORT_RECORD,
    "healthcheck": HEALTHCHECK,
    "volume": VOLUME,
    "ingress": INGRESS,
    "placement": PLACEMENT,
    "autoscale": AUTOSCALE,
    "pending": PENDING,
    "freeze": FREEZE,
}
_BLOCK = re.compile(r"(<!-- fields: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fields_table(record: Record) -> str:
    """One row per field; then those that are refused as not built yet."""
    rows = ["| field | what it is | value | default |", "| --- | --- | --- | --- |"]
    rows += [_row(field) for field in record.fields]
    text = "\n".join(rows) + "\n"
    if record.unbuilt:
        names = ", ".join(f"`{name}` ({what})" for name, what in record.unbuilt.items())
        text += f"\nNot built yet, and refused as such: {names}.\n"
    return text


def _row(field: Field) -> str:
    names = f"`{field.name}`"
    if field.aliases:
        names += " or " + " or ".join(f"`{alias}`" for alias in field.aliases)
    default = "**required**" if field.is_required else field.default or "none"
    cells = (names, field.doc, field.check.expects, default)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def updated(page: str) -> str:
    """The page with its tables written anew."""
    return _BLOCK.sub(lambda m: m[1] + fields_table(RECORDS[m[2]]) + m[3], page)


def main(arguments: list[str]) -> int:
    for name in arguments:
        page = Path(name)
        page.write_text(updated(page.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
