"""The timeline of one life as a page: a lane per node, one for etcd, one for users.

One file without anything from elsewhere: a drawing above (time runs from left to right; faults,
commits, pods as marks and bars; scroll it sideways), the whole story below. A mark and its line
in the story belong together: point at one to see the other.
"""

import html
from collections.abc import Iterator, Sequence

from ozymandias.sim.scenario import Outcome
from ozymandias.sim.trace import COMMIT, FAULT, HEAL, POD, USER, VIOLATION, Entry

LANE_HEIGHT = 54
LEFT = 70
PIXELS_PER_SECOND = 9.0
COLOURS = {
    FAULT: "#c0392b",
    HEAL: "#27ae60",
    COMMIT: "#2c6fbb",
    POD: "#8e6bb0",
    USER: "#b8860b",
    VIOLATION: "#000000",
}
ROWS = {FAULT: 12, HEAL: 12, USER: 22, COMMIT: 24, POD: 36, VIOLATION: 22}

STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 1.5rem; color: #222; background: #fff; }
h1 { font-size: 1.3rem; margin: 0 0 .3rem; } .bad { color: #c0392b; font-weight: 600; }
.drawing { overflow-x: auto; border: 1px solid #ccc; margin: 1rem 0; }
.key span { display: inline-block; margin-right: 1.2em; }
.key i { display: inline-block; width: .8em; height: .8em; border-radius: 50%; }
table { border-collapse: collapse; font: 12px/1.35 ui-monospace, monospace; }
td { padding: 0 .8em 0 0; vertical-align: top; white-space: pre-wrap; overflow-wrap: anywhere; }
tr.violation { background: #fadbd8; font-weight: 600; } tr.fault { color: #a93226; }
tr.heal { color: #1e8449; } tr.user { color: #8a6500; } tr:target, tr.lit { background: #fff3c4; }
circle, rect.mark { cursor: pointer; }
@media (prefers-color-scheme: dark) {
  body { background: #1c1c1e; color: #ddd; } tr.fault { color: #ec7063; }
  tr.violation { background: #641e16; } tr.lit, tr:target { background: #574b1c; }
  .drawing { background: #eee; }
}
"""

SCRIPT = """
document.querySelectorAll('[data-n]').forEach(mark => {
  const row = document.getElementById('e' + mark.dataset.n);
  mark.addEventListener('click', () => row.scrollIntoView({block: 'center'}));
  mark.addEventListener('mouseenter', () => row.classList.add('lit'));
  mark.addEventListener('mouseleave', () => row.classList.remove('lit'));
});
const drawing = document.querySelector('.drawing');
const first = document.querySelector('.violation-line');
if (first) drawing.scrollLeft = first.getAttribute('x1') - drawing.clientWidth / 2;
"""


def render(outcome: Outcome) -> str:
    entries = outcome.story
    lanes = _lanes(entries)
    title = f"Seed {outcome.seed}"
    verdict = "".join(f'<p class="bad">{html.escape(v)}</p>' for v in outcome.violations)
    if not outcome.violations:
        verdict = "<p>Nothing was violated.</p>"
    key = "".join(
        f'<span><i style="background:{colour}"></i> {kind}</span>'
        for kind, colour in COLOURS.items()
    )
    rows = "\n".join(_row(number, entry) for number, entry in enumerate(entries))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head><body><h1>{title}</h1>"
        f"<p>{html.escape(str(outcome.options))}<br>trace {outcome.fingerprint},"
        f" {outcome.seconds:.1f} s, {outcome.revisions} revisions</p>{verdict}"
        f'<p class="key">{key}<span>bar: a pod with a live process</span></p>'
        f'<div class="drawing">{_drawing(entries, lanes, outcome.seconds)}</div>'
        f"<table>{rows}</table><script>{SCRIPT}</script></body></html>\n"
    )


def _lanes(entries: Sequence[Entry]) -> list[str]:
    """Users and etcd above, then the machines by name."""
    machines = sorted({e.lane for e in entries} - {"", "etcd", "users"})
    return ["users", "etcd", *machines]


def _drawing(entries: Sequence[Entry], lanes: list[str], seconds: float) -> str:
    width = LEFT + seconds * PIXELS_PER_SECOND + 40
    height = LANE_HEIGHT * len(lanes) + 24
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height}">']
    for number, lane in enumerate(lanes):
        top = number * LANE_HEIGHT
        fill = "#f6f6f6" if number % 2 else "#ffffff"
        parts.append(
            f'<rect x="0" y="{top}" width="{width:.0f}" height="{LANE_HEIGHT}" fill="{fill}"/>'
            f'<text x="8" y="{top + 30}" font-weight="600">{html.escape(lane)}</text>'
        )
    for second in range(0, int(seconds) + 1, 10):
        x = LEFT + second * PIXELS_PER_SECOND
        parts.append(
            f'<line x1="{x}" y1="0" x2="{x}" y2="{height - 20}" stroke="#ddd"/>'
            f'<text x="{x}" y="{height - 6}" font-size="11" text-anchor="middle">{second} s</text>'
        )
    parts += _bars(entries, lanes, seconds)
    parts += _marks(entries, lanes, height)
    return "".join([*parts, "</svg>"])


def _bars(entries: Sequence[Entry], lanes: list[str], seconds: float) -> Iterator[str]:
    """From the first start of a pod to its end, one thin bar each."""
    running: dict[tuple[str, str], float] = {}
    rows: dict[str, dict[str, int]] = {}
    for entry in entries:
        if entry.kind == POD:
            pod, _, what = entry.text.rpartition(": ")
            if what in ("start", "first start"):
                running.setdefault((entry.lane, pod), entry.time)
            elif what in ("ended", "kill") and (entry.lane, pod) in running:
                yield _bar(entry.lane, pod, running.pop((entry.lane, pod)), entry.time, lanes, rows)
        elif entry.text == "power cut":
            for lane, pod in [pair for pair in running if pair[0] == entry.lane]:
                yield _bar(lane, pod, running.pop((lane, pod)), entry.time, lanes, rows)
    for (lane, pod), start in running.items():
        yield _bar(lane, pod, start, seconds, lanes, rows)


def _bar(
    lane: str,
    pod: str,
    start: float,
    end: float,
    lanes: list[str],
    rows: dict[str, dict[str, int]],
) -> str:
    own = rows.setdefault(lane, {})
    row = own.setdefault(pod, len(own)) % 6
    x, y = LEFT + start * PIXELS_PER_SECOND, lanes.index(lane) * LANE_HEIGHT + 33 + row * 3
    width = max(1.0, (end - start) * PIXELS_PER_SECOND)
    return (
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="2" fill="{COLOURS[POD]}"'
        f' fill-opacity=".6"><title>{html.escape(pod)}</title></rect>'
    )


def _marks(entries: Sequence[Entry], lanes: list[str], height: int) -> Iterator[str]:
    for number, entry in enumerate(entries):
        colour = COLOURS.get(entry.kind)
        if colour is None:
            continue
        x = LEFT + entry.time * PIXELS_PER_SECOND
        if entry.kind == VIOLATION:
            yield (
                f'<line class="violation-line" x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{height - 20}"'
                f' stroke="#c0392b" stroke-width="2"/>'
            )
        lane = lanes.index(entry.lane) if entry.lane in lanes else 0
        y = lane * LANE_HEIGHT + ROWS[entry.kind]
        radius = 4 if entry.kind in (FAULT, HEAL, USER, VIOLATION) else 2.5
        yield (
            f'<circle data-n="{number}" cx="{x:.1f}" cy="{y}" r="{radius}" fill="{colour}">'
            f"<title>{entry.time:.3f} {html.escape(entry.text)}</title></circle>"
        )


def _row(number: int, entry: Entry) -> str:
    return (
        f'<tr id="e{number}" class="{entry.kind}"><td>{entry.time:.3f}</td>'
        f"<td>{html.escape(entry.lane)}</td><td>{html.escape(entry.text)}</td></tr>"
    )
