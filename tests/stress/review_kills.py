"""Kill the server of a review between and during answers, and count what is lost: `review_kills.py [COUNT [SEED]]`.

The server is a forked child. The client does what the page does: it sends an action until there is a reply, always with
the same request id, and takes it as saved after the reply only.
"""

import http.client
import json
import os
import random
import select
import signal
import socket
import sqlite3
import sys
import tempfile
import threading
import time
import warnings
from contextlib import suppress
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import uvicorn  # noqa: F401  (imported here, so that children need not)

import fewtags.review.app  # noqa: F401
from fewtags.formats.answers import read_answers
from fewtags.review.review import opened
from fewtags.review.serve import serve


class Server:
    """A review in a forked child, which is killed again and again."""

    def __init__(self, run: Path, rng: random.Random) -> None:
        self.run, self.rng = run, rng
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.kills = 0
        self.killer: threading.Timer | None = None
        self.child = self._fork()

    def _fork(self) -> int:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
            child = os.fork()
        if child:
            return child
        code = 1
        try:
            with opened(self.run, cpu=True) as review:
                serve(review, self.socket)
            code = 0
        finally:
            os._exit(code)

    def plan_kill(self) -> None:
        """Kill the child soon: before, during or after the next requests."""
        self.killer = threading.Timer(self.rng.random() * 0.06, os.kill, (self.child, signal.SIGKILL))
        self.killer.start()

    def revive(self) -> bool:
        """Start another child if this one was killed; return whether it was."""
        if os.waitpid(self.child, os.WNOHANG)[0] == 0:
            return False
        if self.killer is not None:
            self.killer.join()
            self.killer = None
        self.kills += 1
        self.child = self._fork()
        return True

    def end(self) -> None:
        """End the child."""
        if self.killer is not None:
            self.killer.join()
        with suppress(ProcessLookupError):
            os.kill(self.child, signal.SIGKILL)
        os.waitpid(self.child, 0)
        self.socket.close()


class Client:
    """Sends requests with the token, again and again until there is a reply."""

    def __init__(self, server: Server, token: str) -> None:
        self.server, self.token, self.cookies = server, token, {}
        self.port = server.socket.getsockname()[1]

    def send(self, method: str, path: str, body: object = None) -> dict:
        """Return the content of the reply."""
        until = time.monotonic() + 120
        while time.monotonic() < until:
            with suppress(OSError, http.client.HTTPException):
                return self._try(method, path, body)
            self.server.revive()
        raise AssertionError("the server does not come back")

    def _try(self, method: str, path: str, body: object) -> dict:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            headers = {"Cookie": "; ".join(f"{k}={v}" for k, v in self.cookies.items())}
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, headers | {"Content-Type": "application/json"})
            while not select.select([connection.sock], [], [], 0.01)[0]:
                if self.server.revive():
                    raise ConnectionError("killed")
            reply = connection.getresponse()
            content = reply.read()
        finally:
            connection.close()
        for line in reply.headers.get_all("Set-Cookie") or []:
            name, _, value = line.partition(";")[0].partition("=")
            self.cookies[name] = value
        if reply.status == 303:
            return {}
        assert reply.status == 200, (reply.status, content[:500])
        return json.loads(content)

    def request(self) -> str:
        """A new request id."""
        return f"{self.server.rng.getrandbits(96):024x}"


def kill_rounds(run: Path, count: int, seed: int = 0) -> tuple[int, list[str]]:
    """Kill the server `count` times while a client answers and takes back; return the actions, and what went wrong."""
    server = Server(run, random.Random(seed))
    token = run / "review" / "token"
    while not token.exists() or not token.read_text():
        time.sleep(0.01)
    client = Client(server, token.read_text())
    client.send("GET", f"/?token={client.token}")
    known: dict[tuple[str, str], str] = {}  # what the page showed as saved
    order: list[tuple[str, str]] = []
    actions, problems = 0, []
    try:
        while server.kills < count:
            act(client, server.rng, known, order)  # waits for a new server
            actions += 1
            if server.killer is None:
                problems += compare(run, known)
                server.plan_kill()
    finally:
        server.end()
    problems += compare(run, known)
    with sqlite3.connect(run / "answers.sqlite") as database:
        problems += [row for (row,) in database.execute("PRAGMA integrity_check") if row != "ok"]
        steps, requests = database.execute("SELECT count(*), count(DISTINCT request) FROM steps").fetchone()
    database.close()
    if steps != requests:
        problems.append(f"{steps} steps of {requests} requests")
    return actions, problems


def act(client: Client, rng: random.Random, known: dict[tuple[str, str], str], order: list[tuple[str, str]]) -> None:
    """Answer one question, or take the last answer back."""
    found = client.send("GET", "/api/next?count=1")["questions"]
    if order and (not found or rng.random() < 0.25):
        reply = client.send("POST", "/api/undo", {"request": client.request()})
        cell = order.pop()
        assert [(u["image"], u["class"]) for u in reply["undone"]] == [cell], (reply, cell)
        del known[cell]
        return
    question = found[0]
    cell, word = (question["image"], question["class"]), rng.choice(("yes", "no"))
    one = {"photo": question["photo"], "class": question["class"], "answer": word, "seconds": 1.0}
    client.send("POST", "/api/answer", {"request": client.request(), "answers": [one]})
    known[cell] = word
    order.append(cell)


def compare(run: Path, known: dict[tuple[str, str], str]) -> list[str]:
    """Return the answers that were shown as saved and are not in the file, and those that should not be."""
    saved = {}
    for table in read_answers(run):
        for fact in table.facts.to_pylist():
            key = table.images[fact["image"]].as_py(), table.classes.ids[fact["class"]]
            saved[key] = "yes" if fact["state"] == 1 else "no"
    cells = [cell for cell in {*known, *saved} if known.get(cell) != saved.get(cell)]
    return [f"{cell}: shown {known.get(cell)}, saved {saved.get(cell)}" for cell in cells]


def main() -> None:
    """Run the script."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
    from review_runs import make_run

    given = [int(word) for word in sys.argv[1:]]
    count, seed = (*given, *(200, 0)[len(given) :])
    with tempfile.TemporaryDirectory() as name:
        run = make_run(Path(name))
        began = time.monotonic()
        actions, problems = kill_rounds(run, count, seed)
    for problem in problems[:20]:
        print(f"FAILED: {problem}")
    seconds = time.monotonic() - began
    print(f"review: {count} kills, {actions} actions, {len(problems)} lost or wrong, {seconds:.0f} s")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
