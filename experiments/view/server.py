"""The viewer's server: pages over HTTP to the browser of whoever started it, and to nobody else.

    with Viewer(Library(Path("runs")), port=0) as viewer:
        print(viewer.address)                       # http://127.0.0.1:40123/?token=...
        viewer.serve_forever()

Who may ask:

- It listens on 127.0.0.1 unless told otherwise.
- The address has a random token; the first visit turns it into a cookie that scripts cannot read and other sites cannot send.
  Other users of the machine, who reach its ports, have no token.
- A request whose Host is a name other than localhost is refused: a site that points its own name at this machine (DNS rebinding)
  has the browser send that name.
- It only reads. With `rescores` two forms start a command (`experiments.view.rescoring`); they carry the token, and a request
  that another origin sends is refused.

Pages may not be framed, load nothing, and run no script but the one whose hash their own policy names.
"""

from __future__ import annotations

import errno
import hmac
import ipaddress
import re
import secrets
import socket
import socketserver
import threading
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlencode, urlsplit

from experiments.view.pages import filters_of, job_page, list_page, message_page, run_page
from experiments.view.rescoring import Busy, Jobs, attack_command, evaluate_command
from experiments.view.summaries import Library
from fkgsec.errors import FkgsecError, RunError, SpecError
from fkgsec.text import printable

HERE = "127.0.0.1"
MOST_BYTES = 8192  # of a form
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",  # under no-referrer a browser sends forms from the origin null
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Answer(NamedTuple):
    """A page, or the address to go to instead."""

    page: str = ""
    status: HTTPStatus = HTTPStatus.OK
    location: str = ""


class Refused(Exception):
    """A request that gets no page, with the status to answer it by."""

    def __init__(self, status: HTTPStatus, line: str) -> None:
        super().__init__(line)
        self.status = status


class Viewer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """The server of one folder.

    Attributes:
        library: what it shows. rescores: whether pages may score runs again. token: what opens it. jobs: what it started.
        drawing: held while a report is made; matplotlib draws one picture at a time.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, library: Library, *, port: int, host: str = HERE, rescores: bool = False) -> None:
        self.library, self.rescores, self.host = library, rescores, host
        self.token, self.jobs, self.drawing = secrets.token_urlsafe(32), Jobs(), threading.Lock()
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise RunError(
                    f"port {port} is taken already; give another by --port, or --port 0 for any that is free"
                ) from error
            why = error.strerror or str(error)
            raise RunError(f"cannot listen at {host}, port {port} ({why})") from error

    @property
    def port(self) -> int:
        return self.server_address[1]

    @property
    def address(self) -> str:
        """What to open: with the token."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/?{urlencode({'token': self.token})}"

    @property
    def cookie(self) -> str:
        """Its name; cookies are a host's, whatever the port."""
        return f"fkgsec-view-{self.port}"

    def knows(self, name: str) -> bool:
        """Whether a request may name this host: an address of numbers, localhost, or what the user gave."""
        if name in ("localhost", self.host):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def opens(self, given: str) -> bool:
        """Whether this is the token."""
        return hmac.compare_digest(given.encode(errors="replace"), self.token.encode())

    def server_close(self) -> None:
        """Stop listening, and end what was started."""
        super().server_close()
        self.jobs.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no error; others keep their traceback."""
        import sys

        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """One connection of a browser."""

    server: Viewer  # type: ignore[assignment]
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "fkgsec", ""
    timeout = 60

    def do_GET(self) -> None:
        """A page."""
        self._answer(self._get)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """Score a run again."""
        self._answer(self._post)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the first line of a request may have the token."""

    def _answer(self, make: Any) -> None:
        try:
            self._check_host()
            answer = make(urlsplit(self.path))
        except Refused as error:
            self.close_connection = True  # what it sent was not read
            answer = Answer(message_page(error.status.phrase, str(error)), error.status)
        except SpecError as error:
            answer = Answer(message_page("That cannot be asked", str(error)), HTTPStatus.BAD_REQUEST)
        except Busy as error:
            answer = Answer(message_page("Not now", str(error)), HTTPStatus.CONFLICT)
        except FkgsecError as error:
            answer = Answer(message_page("That cannot be shown", str(error)), HTTPStatus.NOT_FOUND)
        self._send(answer)

    def _send(self, answer: Answer) -> None:
        content = answer.page.encode(errors="replace")
        self.send_response(answer.status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if answer.location:
            self.send_header("Location", answer.location)
        if answer.status == HTTPStatus.SEE_OTHER and answer.location == "/":
            self.send_header(
                "Set-Cookie", f"{self.server.cookie}={self.server.token}; Path=/; HttpOnly; SameSite=Strict"
            )
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _check_host(self) -> None:
        """Raises `Refused` for a host of another name, which a site that rebinds its own sends."""
        named = self.headers.get_all("Host", [])
        try:
            name = urlsplit(f"//{named[0]}").hostname if len(named) == 1 else None
        except ValueError:
            name = None
        if not name or not self.server.knows(name):
            raise Refused(
                HTTPStatus.FORBIDDEN,
                "the viewer answers to localhost and addresses of numbers; open what fkgsec view printed",
            )

    def _check_visitor(self) -> None:
        """Raises `Refused` for whoever has no token."""
        try:
            found = SimpleCookie(self.headers.get("Cookie", "")).get(self.server.cookie)
        except CookieError:
            found = None
        if found is None or not self.server.opens(found.value):
            raise Refused(
                HTTPStatus.FORBIDDEN, "open the address that fkgsec view printed; it has the token that opens this page"
            )

    def _get(self, asked: Any) -> Answer:
        query = _query(asked.query)
        if "token" in query and asked.path == "/":
            if not self.server.opens(query["token"][-1]):
                raise Refused(
                    HTTPStatus.FORBIDDEN, "the token is of another viewer; open the address that this one printed"
                )
            return Answer(status=HTTPStatus.SEE_OTHER, location="/")
        self._check_visitor()
        library = self.server.library
        if asked.path == "/":
            return Answer(list_page(library, filters_of(query)))
        if asked.path == "/compare":
            return Answer(self._compared(query.get("run", [])))
        if (found := re.fullmatch(r"/job/(\d{1,9})", asked.path)) is not None:
            job, output = self.server.jobs.said(int(found[1]))
            return Answer(job_page(job.about, job.command, job.state, output, running=job.running))
        if (found := re.fullmatch(r"/(run|report|audit)/([0-9a-f]{16})", asked.path)) is None:
            raise Refused(HTTPStatus.NOT_FOUND, "there is no such page")
        if found[1] == "run":
            run = library.run(found[2])
            return Answer(run_page(library, run, rescores=self.server.rescores, token=self.server.token))
        return Answer(self._report(found[2]) if found[1] == "report" else self._certificate(found[2]))

    def _compared(self, chosen: list[str]) -> str:
        if len(set(chosen)) != 2:
            raise SpecError(f"tick two runs to compare; {len(set(chosen))} were ticked")
        runs = [self.server.library.run(identity) for identity in dict.fromkeys(chosen)]
        with self.server.drawing:
            from experiments.view.comparing import compared_page  # with torch

            named = [(run.name, self.server.library.record(run)) for run in runs]
            return compared_page(named, [f"/run/{run.identity}" for run in runs])

    def _report(self, identity: str) -> str:
        run = self.server.library.run(identity)
        with self.server.drawing:
            from experiments.reporting.html.cli import read_runs  # with torch
            from experiments.reporting.html.page import assemble, render
            from experiments.reporting.html.verdicts import judged_beside

            self.server.library.record(run)  # a broken one is known as such from now on
            (read,) = read_runs([run.file])
            return render(
                assemble(
                    [read], judged=[(path.stem, made) for path, made in judged_beside([run.file], [read]).items()]
                ),
                back=f"/run/{identity}",
            )

    def _certificate(self, identity: str) -> str:
        audit = self.server.library.audit(identity)
        with self.server.drawing:
            from experiments.unlearning.certificate import to_html  # with torch
            from experiments.unlearning.summary import read_verification

            found = read_verification(audit.file)
            if found is None:
                raise RunError(f"{audit.name}: {audit.broken}")
            return to_html(found, back="/")

    def _post(self, asked: Any) -> Answer:
        form = self._form()
        self._check_visitor()
        origin = self.headers.get("Origin", "")
        if urlsplit(origin).netloc != self.headers.get("Host"):
            raise Refused(HTTPStatus.FORBIDDEN, "another origin sent this form")
        if not self.server.opens("".join(form.pop("token", []))):
            raise Refused(HTTPStatus.FORBIDDEN, "the form is of another viewer; open its page again")
        if not self.server.rescores:
            raise Refused(
                HTTPStatus.FORBIDDEN, "this viewer only reads; fkgsec view --rescore lets it score runs again"
            )
        if (found := re.fullmatch(r"/rescore/([0-9a-f]{16})", asked.path)) is None:
            raise Refused(HTTPStatus.NOT_FOUND, "there is no such page")
        run = self.server.library.run(found[1])
        how = "".join(form.pop("how", []))
        if how not in ("attack", "evaluate"):
            raise SpecError(f"how must be attack or evaluate; got {printable(how)!r}")
        given = {name: values[-1] for name, values in form.items()}
        words = attack_command(run, given) if how == "attack" else evaluate_command(run)
        number = self.server.jobs.start(words, f"{how.capitalize()} {run.name}")
        return Answer(status=HTTPStatus.SEE_OTHER, location=f"/job/{number}")

    def _form(self) -> dict[str, list[str]]:
        """What a form sent. Raises `Refused` for more than a form, or none."""
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch(r"\d{1,9}", length) or int(length) > MOST_BYTES:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a form has at most {MOST_BYTES} bytes")
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip()
        if kind != "application/x-www-form-urlencoded":
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a form is expected")
        return _query(self.rfile.read(int(length)).decode(errors="replace"))


def _query(text: str) -> dict[str, list[str]]:
    """A query or form, with what was left empty dropped. Raises `Refused`."""
    try:
        return parse_qs(text, max_num_fields=50)
    except ValueError as error:
        raise Refused(HTTPStatus.BAD_REQUEST, "too many fields") from error
