"""The timeline of one life as a page: a lane per node, one for etcd, one for users.

One file without anything from elsewhere: a drawing above (time runs from left to right; faults and
commits are marks, pods are bars; scroll it sideways, the lanes' names stay), the whole story below.
A mark and its line in the story belong together: point at one to see the other, click to go there.
"""

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ozymandias.sim.scenario import Outcome
from ozymandias.sim.trace import COMMIT, FAULT, HEAL, POD, USER, VIOLATION, Entry

PIXELS_PER_SECOND = 24.0
TICK_SECONDS = 5
NAMES_WIDTH = 64
LEFT = 14  # of the first second
MARKS_HEIGHT = 34  # of a lane without pods
BAR_HEIGHT = 13
FOOT = 20
LETTER = 5.6  # width of one, in a bar
COLOURS = {
    FAULT: "#c0392b",
    HEAL: "#27ae60",
    COMMIT: "#2c6fbb",
    USER: "#b8860b",
    VIOLATION: "#000000",
}
ROWS = {FAULT: 11, HEAL: 11, USER: 17, COMMIT: 25, VIOLATION: 17}
JOB_COLOURS = ("#d5c4ea", "#c3dbf2", "#cfe8cf", "#f6dfb8", "#f3cbc6", "#c9e6e4", "#e2e2c0", "#ddd")

STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 1.5rem; color: #222; background: #fff; }
h1 { font-size: 1.3rem; margin: 0 0 .3rem; } .bad { color: #c0392b; font-weight: 600; }
.timeline { display: flex; border: 1px solid #ccc; margin: 1rem 0; background: #fff; color: #222; }
.drawing { overflow-x: auto; flex: 1; } .names { border-right: 1px solid #ccc; flex: none; }
svg { display: block; font: 11px system-ui, sans-serif; }
.key span { display: inline-block; margin-right: 1.2em; }
.key i { display: inline-block; width: .8em; height: .8em; border-radius: 50%; }
.key b { display: inline-block; width: 2em; height: .7em; background: #d5c4ea; }
table { border-collapse: collapse; font: 12px/1.45 ui-monospace, monospace; }
td { padding: 0 .8em 0 0; vertical-align: top; white-space: pre-wrap; overflow-wrap: anywhere; }
td:first-child { text-align: right; color: #888; }
tr.violation { background: #fadbd8; font-weight: 600; } tr.fault { color: #a93226; }
tr.heal { color: #1e8449; } tr.user { color: #8a6500; } tr:target, tr.lit { background: #fff3c4; }
circle { cursor: pointer; } circle.lit { stroke: #222; stroke-width: 3; }
@media (prefers-color-scheme: dark) {
  body { background: #1c1c1e; color: #ddd; } tr.fault { color: #ec7063; }
  tr.heal { color: #58d68d; } tr.user { color: #e0b84c; }
  tr.violation { background: #641e16; } tr.lit, tr:target { background: #574b1c; }
}
"""

SCRIPT = """
const drawing = document.querySelector('.drawing');
document.querySelectorAll('[data-n]').forEach(mark => {
  const row = document.getElementById('e' + mark.dataset.n);
  const light = is => () => [mark, row].forEach(e => e.classList.toggle('lit', is));
  [mark, row].forEach(e => {
    e.addEventListener('mouseenter', light(true));
    e.addEventListener('mouseleave', light(false));
  });
  mark.addEventListener('click', () => row.scrollIntoView({block: 'center'}));
  row.addEventListener('click', () => {
    drawing.scrollIntoView({block: 'nearest'});
    drawing.scrollLeft = mark.getAttribute('cx') - drawing.clientWidth / 2;
  });
});
const first = document.querySelector('.violation-line');
if (first) drawing.scrollLeft = first.getAttribute('x1') - drawing.clientWidth / 2;
"""


@dataclass(frozen=True, slots=True)
class Bar:
    """A pod with a live process, from its start to its end."""

    pod: str
    start: float
    end: float
    row: int


@dataclass(slots=True)
class Lane:
    name: str
    top: int = 0
    bars: list[Bar] = field(default_factory=list)

    @property
    def height(self) -> int:
        rows = max((bar.row + 1 for bar in self.bars), default=0)
        return MARKS_HEIGHT + rows * BAR_HEIGHT + (4 if rows else 0)

    def add(self, pod: str, start: float, end: float) -> None:
        """Where there is a free row; bars come in the order of their starts."""
        taken = {bar.row for bar in self.bars if bar.end > start}
        row = next(row for row in range(len(taken) + 1) if row not in taken)
        self.bars.append(Bar(pod, start, end, row))


def render(outcome: Outcome) -> str:
    entries = outcome.story
    title = f"Seed {outcome.seed}"
    verdict = "".join(f'<p class="bad">{html.escape(v)}</p>' for v in outcome.violations)
    if not outcome.violations:
        verdict = "<p>Nothing was violated.</p>"
    key = "".join(
        f'<span><i style="background:{colour}"></i> {kind}</span>'
        for kind, colour in COLOURS.items()
    )
    lanes = _lanes(entries, outcome.seconds)
    rows = "\n".join(_row(number, entry) for number, entry in enumerate(entries))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head><body><h1>{title}</h1>"
        f"<p>{html.escape(str(outcome.options))}<br>trace {outcome.fingerprint},"
        f" {outcome.seconds:.1f} s, {outcome.revisions} revisions</p>{verdict}"
        f'<p class="key">{key}<span><b></b> a pod with a live process, one colour per job'
        f'</span></p><div class="timeline"><div class="names">{_names(lanes)}</div>'
        f'<div class="drawing">{_drawing(entries, lanes, outcome.seconds)}</div></div>'
        f"<table>{rows}</table><script>{SCRIPT}</script></body></html>\n"
    )


# Laying out -------------------------------------------------------------------------------------


def _lanes(entries: Sequence[Entry], seconds: float) -> dict[str, Lane]:
    """Users and etcd above, then the machines by name; each as high as its pods need."""
    machines = sorted({e.lane for e in entries} - {"", "etcd", "users"})
    lanes = {name: Lane(name) for name in ("users", "etcd", *machines)}
    for lane, pod, start, end in sorted(_lives(entries, seconds), key=lambda life: life[2]):
        lanes[lane].add(pod, start, end)
    top = 0
    for lane_ in lanes.values():
        lane_.top = top
        top += lane_.height
    return lanes


def _lives(entries: Sequence[Entry], seconds: float) -> Iterator[tuple[str, str, float, float]]:
    """Lane and pod, from its start to its end."""
    running: dict[tuple[str, str], float] = {}
    for entry in entries:
        if entry.kind == POD:
            pod, _, what = entry.text.rpartition(": ")
            if what in ("start", "first start"):
                running.setdefault((entry.lane, pod), entry.time)
            elif what in ("ended", "kill") and (entry.lane, pod) in running:
                yield entry.lane, pod, running.pop((entry.lane, pod)), entry.time
        elif entry.text in ("power cut", "is switched off"):
            for lane, pod in [pair for pair in running if pair[0] == entry.lane]:
                yield lane, pod, running.pop((lane, pod)), entry.time
    for (lane, pod), start in running.items():
        yield lane, pod, start, seconds


def _x(seconds: float) -> float:
    return LEFT + seconds * PIXELS_PER_SECOND


def _height(lanes: dict[str, Lane]) -> int:
    return sum(lane.height for lane in lanes.values()) + FOOT


# Drawing ----------------------------------------------------------------------------------------


def _svg(width: float, height: int, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}">'
    return "".join([head, *parts, "</svg>"])


def _grounds(lanes: dict[str, Lane], width: float) -> Iterator[str]:
    for number, lane in enumerate(lanes.values()):
        fill = "#f6f6f6" if number % 2 else "#ffffff"
        yield f'<rect y="{lane.top}" width="{width:.0f}" height="{lane.height}" fill="{fill}"/>'


def _names(lanes: dict[str, Lane]) -> str:
    parts = list(_grounds(lanes, NAMES_WIDTH))
    for lane in lanes.values():
        name = html.escape(lane.name)
        parts.append(f'<text x="8" y="{lane.top + 21}" font-weight="600">{name}</text>')
    return _svg(NAMES_WIDTH, _height(lanes), parts)


def _drawing(entries: Sequence[Entry], lanes: dict[str, Lane], seconds: float) -> str:
    width, height = _x(seconds) + 40, _height(lanes)
    parts = list(_grounds(lanes, width))
    for second in range(0, int(seconds) + 1, TICK_SECONDS):
        x = _x(second)
        parts.append(
            f'<line x1="{x}" y1="0" x2="{x}" y2="{height - FOOT}" stroke="#ddd"/>'
            f'<text x="{x}" y="{height - 6}" text-anchor="middle">{second} s</text>'
        )
    for lane in lanes.values():
        parts += [_bar(lane, bar) for bar in lane.bars]
    parts += _marks(entries, lanes, height - FOOT)
    return _svg(width, height, parts)


def _bar(lane: Lane, bar: Bar) -> str:
    x, y = _x(bar.start), lane.top + MARKS_HEIGHT + bar.row * BAR_HEIGHT
    width = max(2.0, (bar.end - bar.start) * PIXELS_PER_SECOND - 1)
    name = _short(bar.pod)
    colour = JOB_COLOURS[sum(_job(name).encode()) % len(JOB_COLOURS)]
    text = name if len(name) * LETTER + 6 < width else ""
    return (
        f"<g><title>{html.escape(bar.pod)}, {bar.start:.3f} to {bar.end:.3f}</title>"
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT - 2}" rx="2"'
        f' fill="{colour}" stroke="#888" stroke-width=".5"/>'
        f'<text x="{x + 3:.1f}" y="{y + 9}" font-size="10">{html.escape(text)}</text></g>'
    )


def _short(pod: str) -> str:
    """Without node and namespace in front and the job's id behind: `web-0-v1.0`."""
    parts = pod.split("-")
    return "-".join(parts[2:-1]) if len(parts) > 4 else pod


def _job(name: str) -> str:
    """Of `web-0-v1.0`: the job."""
    return "-".join(name.split("-")[:-2]) or name


def _marks(entries: Sequence[Entry], lanes: dict[str, Lane], height: int) -> Iterator[str]:
    for number, entry in enumerate(entries):
        colour = COLOURS.get(entry.kind)
        if colour is None:
            continue
        x = _x(entry.time)
        if entry.kind == VIOLATION:
            yield (
                f'<line class="violation-line" x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{height}"'
                f' stroke="#c0392b" stroke-width="2"/>'
            )
        lane = lanes.get(entry.lane) or lanes["users"]
        radius = 3 if entry.kind == COMMIT else 4.5
        yield (
            f'<circle data-n="{number}" cx="{x:.1f}" cy="{lane.top + ROWS[entry.kind]}"'
            f' r="{radius}" fill="{colour}">'
            f"<title>{entry.time:.3f} {html.escape(entry.text)}</title></circle>"
        )


def _row(number: int, entry: Entry) -> str:
    return (
        f'<tr id="e{number}" class="{entry.kind}"><td>{entry.time:.3f}</td>'
        f"<td>{html.escape(entry.lane)}</td><td>{html.escape(entry.text)}</td></tr>"
    )
