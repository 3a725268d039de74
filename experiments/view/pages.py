"""The viewer's pages that need no torch: the list of runs with its filters, one run, and messages.

    html = list_page(library, filters_of({"algorithm": ["fede"], "sort": ["leaks"]}))

Every text is escaped by the templates (`experiments.reporting.pages`): a run's name, its options and its clients are whatever
somebody wrote into a folder.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

import fkgsec
from attacks.figure import ALL, Figure
from experiments.cli.surface import Parameter, read_surface
from experiments.reporting.html.notation import SAYS_NOT, count, mebibytes, score_text
from experiments.reporting.pages import render_page
from experiments.view.summaries import Library, Summary, Viewed
from fkgsec.errors import SpecError
from fkgsec.text import printable, shown

FILTERED = ("algorithm", "data", "defense")
RESCORED = ("attack", "threat", "leak", "colluder", "inference", "shadows", "attack_seed")
"""Options of `fkgsec attack --run` that the page offers."""
BEYOND, EXPOSED, GIVEN, OPEN = (
    "beats its baseline",
    "exposed by the protocol",
    "baseline is at the upper bound",
    "not shown",
)


class Order(NamedTuple):
    """A column that the list is sorted by."""

    head: str
    key: Callable[[Viewed], Any]
    largest_first: bool = False


def _of(read: Callable[[Summary], Any]) -> Callable[[Viewed], Any]:
    return lambda run: read(run.whole)


ORDERS = {
    "run": Order("run", lambda run: run.name),
    "algorithm": Order("algorithm", _of(lambda one: one.algorithm)),
    "defense": Order("defense", _of(lambda one: one.defense)),
    "data": Order("data", _of(lambda one: (one.data.name, len(one.data.clients)))),
    "utility": Order("test utility", _of(lambda one: one.reached.value), largest_first=True),
    "leaks": Order("leaks", _of(lambda one: _severity(one)), largest_first=True),
    "bytes": Order("MiB", _of(lambda one: one.num_bytes), largest_first=True),
    "seconds": Order("s", _of(lambda one: one.seconds), largest_first=True),
}


def _severity(summary: Summary) -> tuple[bool, bool, float]:
    """What is shown to leak most comes first, what nobody attacked last."""
    return bool(summary.figures), summary.worst is not None, summary.worst.advantage if summary.worst else 0.0


class Filters(NamedTuple):
    """What a reader asks of the list."""

    text: str = ""
    algorithm: str = ""
    data: str = ""
    defense: str = ""
    sort: str = "run"
    reverse: bool = False

    def admits(self, run: Viewed) -> bool:
        """Whether a run is shown; broken ones have a name alone."""
        words = self.text.lower().split()
        if run.summary is None:
            return not any((self.algorithm, self.data, self.defense)) and all(one in run.name.lower() for one in words)
        chosen = ((self.algorithm, run.summary.algorithm), (self.data, run.summary.data.name))
        same = all(asked in ("", own) for asked, own in (*chosen, (self.defense, run.summary.defense)))
        return same and all(one in searched(run) for one in words)

    def address(self, sort: str) -> str:
        """The list sorted by this column; the other way when it is by that already."""
        asked = self._asdict() | {"sort": sort, "reverse": "yes" if sort == self.sort and not self.reverse else ""}
        return "/?" + urlencode({name: value for name, value in asked.items() if value})


def searched(run: Viewed) -> str:
    """What a text is looked for in."""
    one = run.whole
    return " ".join((run.name, one.algorithm, one.defense, one.data.name, one.model)).lower()


def filters_of(query: Mapping[str, Sequence[str]]) -> Filters:
    """What a query asks for. Raises `SpecError` for a column that there is not, or a word that is no filter."""
    if unknown := sorted(set(query) - set(Filters._fields)):
        raise SpecError(f"{shown(unknown[0])} is no filter; there are {', '.join(Filters._fields)}")
    found: dict[str, Any] = {name: values[-1] for name, values in query.items() if values[-1]}
    if found.get("sort", "run") not in ORDERS:
        raise SpecError(f"sort must be one of {', '.join(ORDERS)}; got {shown(found['sort'])}")
    reverse = bool(found.pop("reverse", ""))
    return Filters(**found, reverse=reverse)


def list_page(library: Library, filters: Filters) -> str:
    """Every run that the filters admit, audits of forgetting, and a line for each broken record."""
    everything = library.runs()
    whole = [run for run in everything if run.summary is not None]
    order = ORDERS[filters.sort]
    rows = [run for run in whole if filters.admits(run)]
    rows.sort(key=order.key, reverse=order.largest_first != filters.reverse)
    choices = {name: sorted({_chosen(run, name) for run in whole}) for name in FILTERED}
    broken = [run for run in everything if run.broken]
    audits = library.audits()
    parts = [count(len(whole), "run"), count(len(broken), "broken record") * bool(broken)]
    parts.append(f"{len(audits)} audit{'s' * (len(audits) != 1)} of forgetting" * bool(audits))
    return _render(
        "view-list.html.j2",
        title=f"Runs in {printable(str(library.root))}",
        about=", ".join(filter(None, parts)),
        rows=rows,
        num_runs=len(whole),
        broken=[run for run in broken if filters.admits(run)],
        audits=audits,
        filters=filters,
        choices=choices,
        orders=ORDERS,
        searched=searched,
    )


def _chosen(run: Viewed, name: str) -> str:
    return run.whole.data.name if name == "data" else getattr(run.whole, name)


def run_page(library: Library, run: Viewed, *, rescores: bool, token: str) -> str:
    """One run: what leaked, what it was good for, its options, further attacks on it, and how to score it again.

    Args:
        rescores: whether the page may start that; else it says the commands. token: what its forms are sent with.
    """
    one = run.whole
    others = [other for other in library.runs() if other is not run and other.trained == run.trained]
    spec = {name: value for name, value in sorted(one.spec.items()) if value not in (None, "", [])}
    folder = run.trained
    return _render(
        "view-run.html.j2",
        title=run.name,
        run=run,
        sentence=verdict_sentence(one),
        says_not=SAYS_NOT,
        figures=[(status_of(figure), whose(figure), figure) for figure in one.leading if not figure.reason],
        reasons=list(dict.fromkeys(figure.reason for figure in one.leading if figure.reason)),
        about_run=_facts(run),
        spec=[(name, _plain(value)) for name, value in spec.items()],
        others=others,
        rescores=rescores,
        token=token,
        options=rescored_options(),
        commands=[
            f"fkgsec attack --run {shlex.quote(str(folder))}",
            f"fkgsec verify-run {shlex.quote(str(run.file.parent))} --recompute",
        ],
    )


def verdict_sentence(one: Summary) -> str:
    """What attacks found, as the command line says it."""
    asked = [figure for figure in one.leading if not figure.reason]
    if not one.figures:
        return "No attack was run, so nobody knows what leaks."
    if not asked:
        return "Nothing to attack: the adversaries have nothing to work on."
    beyond, exposed = (sum(status_of(figure) == status for figure in asked) for status in (BEYOND, EXPOSED))
    beat = "beats its baseline" if beyond == 1 else "beat their baseline"
    leading = count(len(asked), "leading figure")
    if exposed and not beyond:
        return f"It is exposed: the protocol shows {exposed} of {leading}, whatever was trained."
    return (
        f"{'It leaks' if beyond else 'No leak is shown'}: {beyond} of {leading} {beat} (95 % CI excludes it)."
        f"{f' The protocol exposes {exposed} more, whatever was trained.' * (exposed > 0)}"
    )


def status_of(figure: Figure) -> str:
    """How the interval of a measured figure compares with its baseline."""
    if figure.given or not figure.beyond:
        return GIVEN if figure.given else OPEN
    return EXPOSED if figure.by_protocol else BEYOND


def whose(figure: Figure) -> str:
    """Whom a figure is of, and who attacked."""
    leak = "" if figure.leak is None else f", leak {figure.leak:g}"
    victims = "all victims" if figure.victim == ALL else f"worst victim {figure.victim}"
    return f"{figure.threat_model}{leak}; {victims}"


def _facts(run: Viewed) -> list[tuple[str, str]]:
    one = run.whole
    commit = one.environment.commit or "not recorded"
    return [
        ("algorithm", f"{one.algorithm}, {one.model}"),
        ("defense", one.defense),
        ("data", f"{one.data.name}, {count(len(one.data.clients), 'client')}, hash {one.data.hash}"),
        (f"test {one.metric}", score_text(one.reached)),
        ("bytes", f"{mebibytes(one.bytes.up)} MiB to the server, {mebibytes(one.bytes.down)} MiB back"),
        ("rounds", f"{len(one.rounds) - 1}, kept {one.best_round}; {one.seconds:.1f} s"),
        ("seed", str(one.seed)),
        ("commit", f"{commit}{' with uncommitted changes' * bool(one.environment.dirty)}"),
        ("command", one.environment.command or "not recorded (run from Python)"),
        ("record", printable(str(run.file))),
        *(("protection", line) for line in one.protection),
    ]


def _plain(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def rescored_options() -> list[Parameter]:
    """The options of an attack on a finished run that the page offers, with the command line's help."""
    (attack,) = (command for command in read_surface() if command.name == "attack")
    known = {one.name: one for one in attack.parameters}
    return [known[name] for name in RESCORED]


def message_page(title: str, line: str) -> str:
    """One line, and the way back."""
    return _render("view-said.html.j2", title=title, line=printable(line))


def job_page(title: str, command: Sequence[str], state: str, output: str, *, running: bool) -> str:
    """How scoring again goes on, with what the command printed."""
    said = printable(output, lines=True)
    values = {"command": shlex.join(command), "state": state, "output": said, "running": running}
    return _render("view-job.html.j2", title=title, **values)


def _render(template: str, **values: Any) -> str:
    return render_page(template, version=fkgsec.__version__, score=score_text, mebibytes=mebibytes, **values)
