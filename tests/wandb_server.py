"""A stand-in for the W&B server on the loopback: what wandb's own client sends arrives here, and is kept.

Answers the GraphQL operations that `wandb sync`, wandb.Api() and a Report ask for, takes the file stream and the files,
and knows an artifact by its digest as the real server does. It is no proof that the real one takes the same.
"""

import gzip
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "0123456789" * 4
ENTITY = "somebody"


@dataclass
class Sent:
    """Of one run: what upsertBucket said last of each field, and the lines of its file stream."""

    fields: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, dict[int, str]] = field(default_factory=dict)
    complete: bool = False

    @property
    def config(self) -> dict[str, Any]:
        return {key: node["value"] for key, node in json.loads(self.fields["config"]).items() if key != "_wandb"}

    @property
    def summary(self) -> dict[str, Any]:
        told = self.lines.get("wandb-summary.json") or {}
        last = json.loads(told[max(told)]) if told else {}
        return last or json.loads(self.fields.get("summaryMetrics") or "{}")

    @property
    def history(self) -> list[dict[str, Any]]:
        return [json.loads(line) for _, line in sorted(self.lines.get("wandb-history.jsonl", {}).items())]


class WandbServer:
    """What was sent: runs, artifacts (each version's fields, files by path), uploaded bytes, views, operations."""

    def __init__(self) -> None:
        self.runs: dict[str, Sent] = {}
        self.artifacts: dict[str, dict[str, Any]] = {}
        self.uploads: dict[str, bytes] = {}
        self.views: dict[str, dict[str, Any]] = {}
        self.operations: list[str] = []
        self.keys: set[str] = set()
        self.url = ""
        self._lock = threading.Lock()

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        return [one for one in self.artifacts.values() if one["artifactTypeName"] == kind]

    # ---- GraphQL -------------------------------------------------------------------------------------------------

    def answer(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        operation = re.search(r"(?:query|mutation)\s+(\w+)", query)
        name = operation[1] if operation else ""
        self.operations.append(name)
        known = getattr(self, f"on_{name.lower()}", None)
        if known is None:
            raise KeyError(f"the stand-in does not know {name}: {query[:2000]} {json.dumps(variables)[:500]}")
        return known(variables)

    def on_serverfeaturesquery(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"serverInfo": {"features": []}}

    def on_upsertbucket(self, given: dict[str, Any]) -> dict[str, Any]:
        run = self.runs.setdefault(given["name"], Sent())
        run.fields |= {key: value for key, value in given.items() if value is not None}
        project = {"id": "p1", "name": given["project"], "entity": {"id": "e1", "name": ENTITY}}
        bucket = {
            "id": f"id-{given['name']}", "name": given["name"], "displayName": run.fields.get("displayName"),
            "description": None, "config": "{}", "sweepName": None, "project": project, "historyLineCount": 0,
        }  # fmt: skip
        return {"upsertBucket": {"bucket": bucket, "inserted": True}}


    def log(self, run: str, files: dict[str, Any], complete: bool) -> None:
        sent = self.runs.setdefault(run, Sent())
        for name, part in files.items():
            lines = sent.lines.setdefault(name, {})
            lines |= {part["offset"] + at: line for at, line in enumerate(part["content"])}
        sent.complete |= complete


@contextmanager
def wandb_server() -> Iterator[WandbServer]:
    server = WandbServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def handle_one(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            try:
                with server._lock:
                    code, said = 200, self.said(body)
            except Exception as error:
                import sys; print("STUB", repr(error), file=sys.stderr)
                code, said = 400, {"errors": [{"message": str(error)}]}
            out = json.dumps(said).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(out)))
            self.end_headers()
            self.wfile.write(out)

        def said(self, body: bytes) -> Any:
            if self.path == "/graphql":
                given = json.loads(body)
                return {"data": server.answer(given["query"], given.get("variables") or {})}
            stream = re.fullmatch(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", self.path)
            if stream:
                given = json.loads(body)
                server.log(stream[1], given.get("files") or {}, bool(given.get("complete")))
                return {}
            if self.command == "PUT" and self.path.startswith("/upload/"):
                server.uploads[self.path.removeprefix("/upload/")] = body
                return {}
            raise KeyError(f"{self.command} {self.path}")

        do_GET = do_POST = do_PUT = do_HEAD = handle_one  # noqa: N815

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
