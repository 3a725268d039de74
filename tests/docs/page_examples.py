"""Pages whose code blocks run: what they print stands in the page, and this writes it there.

    python -m tests.docs.page_examples docs/tutorials/own-triples.md --write     # run it in an empty folder, renew its outputs

A page says in its front matter how its blocks are run: `run: quick` (in the ordinary tests), `run: slow`, or `run: reduced` (at a
smaller size, by the rules of tests/docs/test_twice.py). Blocks run in their order in one folder:

- ```` ```bash ````: each line is a command; `fkgsec` runs in this process. `# exit status 1` behind one says what it ends with.
- ```` ```python ````: a script.
- a block with `title="NAME"`: a file that is written.
- a block after `<!-- output -->`: what the block before it printed; after `<!-- output: WORDS -->` the first paragraph of that
  which begins with WORDS. One that ends in a line with … shows as many lines.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from typer.testing import CliRunner

from fkgsec.errors import RunError
from fkgsec.experiments.cli.console import expected_errors

_BLOCK = re.compile(
    r"(?:<!-- output(?:: (?P<begins>[^\n]*?))? -->\n)?^```(?P<info>[^\n]*)\n(?P<body>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_OF_CODE = re.compile(r"-[0-9a-f]{12}\b")  # in the name of a run of `fkgsec check`
_SECONDS = re.compile(r"[\d.]+( +)cpu$", re.MULTILINE)  # of a table of costs


class Block(NamedTuple):
    """A fenced block. `begins`: None, or how the paragraph of the last output begins that it shows; "" shows all."""

    language: str
    title: str
    body: str
    begins: str | None
    span: tuple[int, int]


def how(text: str) -> str:
    """What a page's front matter says of its blocks; empty where it says nothing."""
    found = re.match(r"---\n(?:.*\n)*?run: (\w+)\n(?:.*\n)*?---\n", text)
    return found[1] if found else ""


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page in their order."""
    made = []
    for found in _BLOCK.finditer(text):
        title = re.search(r'title="([^"]+)"', found["info"])
        shows = "" if found[0].startswith("<!-- output -->") else found["begins"]
        language = found["info"].split(" ")[0]
        made.append(Block(language, title[1] if title else "", found["body"], shows, found.span("body")))
    return made


def run_page(text: str, folder: Path) -> Iterator[tuple[Block, str]]:
    """Run a page's blocks in a folder; gives each block that shows an output, and what it ought to be.

    Raises:
        RunError: a command ended with another exit status than the page says, or a script with an error.
    """
    printed = ""
    with contextlib.chdir(folder):
        for block in blocks(text):
            if block.begins is not None:
                yield block, shortened(excerpt(printed, block.begins), block.body)
            elif block.title:
                Path(block.title).write_text(block.body)
            elif block.language == "bash":
                printed = "".join(_command(line) for line in commands(block.body))
            elif block.language == "python":
                printed = _script(block.body)


def commands(body: str) -> list[str]:
    """The lines of a block, those that end in a backslash joined with the next."""
    return [line for line in re.sub(r"\\\n\s*", "", body).splitlines() if line.strip() and not line.startswith("#")]


def _command(line: str) -> str:
    """Run a command; returns what it printed to standard output."""
    expected = re.search(r"#.*exit status (\d+)", line)
    words = shlex.split(line, comments=True)
    if words[0] == "fkgsec":
        from fkgsec.experiments.cli.main import app

        done = CliRunner().invoke(app, words[1:], env={"COLUMNS": "80"})
        status, shown, said = done.exit_code, done.stdout, done.stderr
    else:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        run = subprocess.run(
            ["bash", "-c", line], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
        )
        status, shown, said = run.returncode, run.stdout, run.stderr
    if status != (int(expected[1]) if expected else 0):
        raise RunError(f"{line}: exit status {status}: {said.strip()[-500:]}")
    return shown


def _script(body: str) -> str:
    """Run Python as a script in the folder; returns what it printed."""
    printed, folder, before = io.StringIO(), str(Path.cwd()), set(sys.modules)
    Path("example.py").write_text(body)
    sys.path.insert(0, folder)
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_path("example.py", run_name="__main__")
    except Exception as error:
        raise RunError(f"a script ended with {type(error).__name__}: {error}\n{body}") from error
    finally:
        sys.path.remove(folder)
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(folder):
                del sys.modules[name]  # another page may have a module of the same name
    return printed.getvalue()


def excerpt(printed: str, begins: str) -> str:
    """All of an output up to where it says what was written, or the paragraph that begins so. Raises `RunError`."""
    kept = re.split(r"^Written to ", printed, maxsplit=1, flags=re.MULTILINE)[0]
    printed = "\n".join(line.rstrip() for line in kept.splitlines()).strip("\n") + "\n"
    if not begins:
        return printed
    for paragraph in re.split(r"\n\s*\n", printed):
        if paragraph.strip("\n").startswith(begins):
            return paragraph.strip("\n") + "\n"
    raise RunError(f"no paragraph begins with {begins!r} in what was printed:\n{printed}")


def shortened(output: str, shown: str) -> str:
    """As many lines of an output as a block shows, where that ends in an ellipsis; else all."""
    if not shown.endswith("…\n"):
        return output
    return "\n".join([*output.splitlines()[: shown.count("\n") - 1], "…\n"])


def comparable(text: str) -> str:
    """An output without what no two runs have alike: seconds, the spaces before them, what names the code that made a run."""
    text = _OF_CODE.sub("-HASH", _SECONDS.sub(r"s cpu", re.sub(r"─+", "─", text)))
    return "\n".join(" ".join(line.split()) for line in text.splitlines())


def renewed(text: str, folder: Path) -> str:
    """A page with the outputs that its blocks have now; one that differs in seconds alone stays."""
    for block, output in reversed(list(run_page(text, folder))):
        if comparable(block.body) != comparable(output):
            text = text[: block.span[0]] + output + text[block.span[1] :]
    return text


def main(
    pages: Annotated[list[Path], typer.Argument(help="pages of the documentation")],
    write: Annotated[bool, typer.Option("--write", help="put the outputs into the pages")] = False,
) -> None:
    """Run the blocks of pages, each page in an empty folder."""
    for page in pages:
        text = page.read_text()
        with tempfile.TemporaryDirectory() as scratch:
            made = renewed(text, Path(scratch))
        typer.echo(f"{page}: {'as it stands' if made == text else 'other outputs'}")
        if write:
            page.write_text(made)


if __name__ == "__main__":
    typer.run(expected_errors(main))
