"""Aggregation that bounds what one client can do to a row: `--defense robust:rule=clip`, `median`, `trim`.

    parse_defense("robust:rule=clip,c=1.5")           # no row moves further than c times a usual change
    parse_defense("robust:rule=median")               # each number of a row: the median over its holders
    parse_defense("robust:rule=trim,f=1")             # their mean without the f largest and the f smallest
    parse_defense("secagg,robust:rule=clip,by=clients")

Rows of a knowledge graph have few holders, which limits what a rule can do:

- `clip` works for any number of holders. A row's change since the last broadcast is clipped to `c` times a bound: the median over
  clients of the median norm of their rows' changes in the round. Half of the clients cannot raise the bound. They can lower it to
  zero unnoticed, by uploading what they received; of two clients in a round, either can. A client that uploads alone sets it. A
  client states its own weight in a mean (its number of graphs in graph classification), and the weight is not bounded.
- `median` needs 3 holders, `trim` 2 f + 1. A row with fewer gets the median of those it has: of two their mean, of one its
  row. Such rows are not protected.

Every rule bounds what a malicious client does; none stops it: a false change of usual size passes. `clip` also clips the change
of an unlearning, so rows remember more than without it. Re-training is not affected.

With secure aggregation the server sees no single upload. Then clients clip their own changes (`by=clients`, to `c` times the
median norm of their own). This keeps unusual rows of an honest client from standing out in a sum. Nobody can enforce it: a
malicious client does not clip.

Source: coordinate median and trimmed mean, Yin et al. 2018, row by row over the holders of each; clipping by the round's median
norm as in centered clipping with a bound from the data (Karimireddy et al. 2021).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from fkgsec.defenses.options import MOST, DefenseOptions
from fkgsec.errors import SpecError
from fkgsec.federation.recipes import RECIPES, Table

if TYPE_CHECKING:
    from torch import Tensor

    from fkgsec.exchange import Delivery, Screened, Upload
    from fkgsec.federation.options import RunOptions
    from fkgsec.protocols.core.prg import Randomness

Rule = Literal["clip", "median", "trim"]
# At 1, half of all honest rows are clipped, which costs 5 to 10 % of test MRR (results/attacks/matrix).
USUAL = 1.5
# Numbers of all clients' rows that are sorted at once; bounds the memory.
CHUNK = 1 << 24


class RobustOptions(DefenseOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Aggregation that bounds what one client can do to a row.

    Attributes:
        rule: how the server combines the uploads of a row.
        c: for `clip`: multiple of the usual norm of a row's change. f: for `trim`: values left out at each end.
        by: who clips, the "server", or the "clients" if the server learns only sums.
    """

    about: ClassVar[str] = "bounds what one client does to a row"

    rule: Rule
    c: float = USUAL
    f: int = 1
    by: Literal["server", "clients"] = "server"

    def __post_init__(self) -> None:
        if not 0 < self.c <= MOST:
            raise SpecError(f"c must be above 0 and at most {MOST:,.0f}; got {self.c}")
        if not 1 <= self.f <= MOST:
            raise SpecError(f"f must be at least 1 and at most {MOST:,.0f}; got {self.f}")
        for name, rule, default in (("c", "clip", USUAL), ("f", "trim", 1)):
            if self.rule != rule and getattr(self, name) != default:
                raise SpecError(f"{name} applies to rule={rule}; leave it out")
        if self.by == "clients" and self.rule != "clip":
            raise SpecError(f"by=clients applies to rule=clip: rule={self.rule} compares the clients' rows")

    def check(self, options: RunOptions, delivers: Delivery) -> None:
        """Check that the rule fits the run.

        Args:
            options: of the run.
            delivers: what the server receives.

        Raises:
            SpecError: the server gets only sums, or does not get whole rows to average.
        """
        if delivers == "sum" and self.by == "server":
            raise SpecError(
                "the server learns sums alone, and cannot compare uploads; rule=clip,by=clients lets clients clip"
            )
        if not _takes_whole_rows(options.algorithm):
            raise SpecError(
                f"{options.algorithm} does not upload whole rows of which all get the same mean; allowed: "
                + ", ".join(name for name, recipe in RECIPES.items() if recipe.shared and _takes_whole_rows(name))
            )

    def protect(self, round: int, table: Table, rows: Tensor, received: Tensor, randomness: Randomness) -> Tensor:
        """Clip the changes of a client's rows if clients clip.

        Args:
            rows, received: `[num_uploaded, width]`, as trained and as last received.
        """
        if self.by == "server":
            return rows
        changes = rows - received
        return received + clipped(changes, self.c * float(_usual(changes)))

    def screen(self, round: int, table: Table, uploads: Mapping[str, Upload], previous: Tensor) -> Screened:
        """Return the uploads that the server aggregates, with clipped changes or with the rule's value at every holder.

        Args:
            uploads: by party. previous: the rows as they were last sent, `[N, width]`.
        """
        from fkgsec.exchange import Screened

        if self.by == "clients":
            return Screened(uploads)
        if self.rule == "clip":
            return _clip(uploads, previous, self.c)
        value = _by_rank(uploads, previous, 0 if self.rule == "median" else self.f, median=self.rule == "median")
        return Screened({party: upload._replace(rows=value[upload.places]) for party, upload in uploads.items()})

    def statement(self) -> str:
        """State what the rule does, and what it does not."""
        what = {
            "clip": f"a row moves by at most {self.c:g} times a usual change of the round",
            "median": "each number of a row is the median over its holders; rows of 1 or 2 holders are not protected",
            "trim": f"the {self.f} largest and smallest uploads of each number are left out; rows of fewer than "
            f"{2 * self.f + 1} holders get the median of those they have",
        }[self.rule]
        who = ", as each client does by itself, which nobody can enforce" if self.by == "clients" else ""
        cut = "; it cuts what an unlearning changes, too" if self.rule == "clip" else ""
        return f"{what}{who}; it bounds what a malicious client does, and stops none{cut}"


def clipped(changes: Tensor, bound: float) -> Tensor:
    """Scale rows that are longer than the bound down to it.

    Args:
        changes: `[n, width]`.
        bound: largest l2 norm of a row.
    """
    # The command line reads options without torch.
    import torch

    norms = changes.norm(dim=1, keepdim=True)
    return torch.where(norms > bound, changes * (bound / norms.clamp_min(torch.finfo(changes.dtype).tiny)), changes)


def _usual(changes: Tensor) -> Tensor:
    """Return the median norm of the rows that changed; 0 if none did."""
    norms = changes.norm(dim=1)
    norms = norms[norms > 0]
    return norms.median() if len(norms) else norms.new_zeros(())


def _clip(uploads: Mapping[str, Upload], previous: Tensor, c: float) -> Screened:
    import torch

    from fkgsec.exchange import Screened

    # Karimireddy et al. 2021, centered clipping: clip the change since the last broadcast, not the row. Differs: the bound is
    # a multiple of the round's median norm, not a constant.
    changes = {party: upload.rows - previous[upload.places] for party, upload in uploads.items()}
    # Median over clients of their median norms: half of the clients cannot raise it. Of two, `median` returns the lower.
    bound = c * float(torch.stack([_usual(upload) for upload in changes.values()]).median())
    cut = {party: clipped(upload, bound) for party, upload in changes.items()}
    screened = {
        party: upload._replace(rows=previous[upload.places] + cut[party])
        if not torch.equal(cut[party], changes[party])
        else upload
        for party, upload in uploads.items()
    }
    return Screened(screened, {party: int((cut[party] != changes[party]).any(dim=1).sum()) for party in uploads})


def _by_rank(uploads: Mapping[str, Upload], previous: Tensor, f: int, *, median: bool) -> Tensor:
    """Return each number's median, or mean without f at either end, over the clients that uploaded its row, `[N, width]`."""
    import torch

    num_rows, width = previous.shape
    value = previous.clone()
    at_once = max(1, CHUNK // max(1, len(uploads) * width))
    for start in range(0, num_rows, at_once):
        stop = min(start + at_once, num_rows)
        # Yin et al. 2018, row by row: sort the holders' values of each number. Missing uploads are infinite, and sort last.
        stack = torch.full((len(uploads), stop - start, width), torch.inf, dtype=previous.dtype)
        for layer, (places, rows, _) in zip(stack, uploads.values(), strict=True):
            here = (places >= start) & (places < stop)
            layer[places[here] - start] = rows[here]
        # Uploads are finite, so infinity marks a missing row.
        holders = (stack[:, :, 0] < torch.inf).sum(dim=0)
        is_held = holders > 0
        # Of k holders the ranks low .. k - 1 - low are averaged: all but f at either end, but always the middle one or two.
        middle = (holders - 1).clamp_min(0) // 2
        low = middle if median else middle.clamp_max(f)
        rank = torch.arange(len(uploads))[:, None]
        taken = (rank >= low) & (rank <= holders - 1 - low)
        ordered = stack.sort(dim=0).values
        total = torch.where(taken[:, :, None], ordered, 0.0).sum(dim=0)
        value[start:stop][is_held] = total[is_held] / taken.sum(dim=0)[is_held, None]
    return value


def _takes_whole_rows(algorithm: str) -> bool:
    from fkgsec.exchange import AGGREGATIONS, CODECS

    recipe = RECIPES[algorithm]
    return CODECS[recipe.codec].whole and AGGREGATIONS[recipe.aggregation].answers == "rows"
