"""A stand-in for the W&B server on the loopback: what wandb's own client sends arrives here, and is kept.

Answers the GraphQL operations that `wandb sync`, wandb.Api() and a Report ask for, takes the file stream and the files,
and knows an artifact by its digest as the real server does. It is no proof that the real one takes the same.
"""

import base64
import gzip
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote

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
        self.refused: str = ""  # an operation, or the word upload: answered with 403
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
        if name == self.refused:
            raise PermissionError(f"{name} is not allowed")
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

    def on_createrunfiles(self, given: dict[str, Any]) -> dict[str, Any]:
        files = [{"name": name, "uploadUrl": self.place(given["run"], name)} for name in given["files"]]
        return {"createRunFiles": {"runID": f"id-{given['run']}", "uploadHeaders": [], "files": files}}

    def on_createartifact(self, given: dict[str, Any]) -> dict[str, Any]:
        told = given["input"]
        name = f"{told['artifactCollectionName']}:{told['digest']}"
        known = name in self.artifacts and self.artifacts[name]["committed"]
        if not known:
            self.artifacts[name] = told | {"files": {}, "committed": False}
        state, latest = "COMMITTED" if known else "PENDING", {"latestArtifact": None}
        return {"createArtifact": {"artifact": {"id": name, "state": state, "artifactSequence": latest}}}

    def on_createartifactmanifest(self, given: dict[str, Any]) -> dict[str, Any]:
        file = {"id": "f1", "uploadUrl": self.place(given["artifactID"], given["name"]), "uploadHeaders": []}
        manifest = {"id": f"m-{given['artifactID']}", "file": file if given["includeUpload"] else {"id": "f1"}}
        return {"createArtifactManifest": {"artifactManifest": manifest}}

    def on_updateartifactmanifest(self, given: dict[str, Any]) -> dict[str, Any]:
        name = given["artifactManifestID"].removeprefix("m-")
        file = {"id": "f1", "uploadUrl": self.place(name, "manifest"), "uploadHeaders": []}
        return {"updateArtifactManifest": {"artifactManifest": {"id": given["artifactManifestID"], "file": file}}}

    def on_createartifactfiles(self, given: dict[str, Any]) -> dict[str, Any]:
        edges = []
        for file in given["input"]["artifactFiles"]:
            path = self.place(file["artifactID"], file["name"])
            self.artifacts[file["artifactID"]]["files"][file["name"]] = path.removeprefix(f"{self.url}/upload/")
            node = {"storagePath": file["name"], "uploadUrl": path, "uploadHeaders": [], "uploadMultipartUrls": None}
            edges.append({"node": node | {"artifact": {"id": file["artifactID"]}}})
        return {"createArtifactFiles": {"files": {"edges": edges}}}

    def on_commitartifact(self, given: dict[str, Any]) -> dict[str, Any]:
        name = given["artifactID"]
        self.artifacts[name]["committed"] = True
        return {"commitArtifact": {"artifact": {"id": name, "digest": self.artifacts[name]["digest"]}}}

    # ---- what wandb.Api() and a Report ask ---------------------------------------------------------------------

    def on_viewer(self, given: dict[str, Any]) -> dict[str, Any]:
        me = {"id": "u1", "entity": ENTITY, "username": ENTITY, "email": "", "flags": "{}", "teams": {"edges": []}}
        return {"viewer": me}

    def on_projectinternalid(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"project": {"id": "p1", "internalId": "UHJvamVjdDox"}}

    def on_getprojects(self, given: dict[str, Any]) -> dict[str, Any]:
        names = sorted({run.fields["project"] for run in self.runs.values()})
        more = {"isBenchmark": False, "entityName": ENTITY, "createdAt": "2026-01-02T03:04:05", "user": None}
        edges = [{"node": {"__typename": "Project", "id": f"p-{name}", "name": name, **more}} for name in names]
        page = {"__typename": "PageInfo", "endCursor": None, "hasNextPage": False}
        return {"models": {"pageInfo": page, "edges": edges}}

    def on_upsertview(self, given: dict[str, Any]) -> dict[str, Any]:
        name = given.get("id") or base64.b64encode(f"View:{len(self.views) + 1}".encode()).decode()
        new = name not in self.views
        project = {"id": "UHJvamVjdDox", "name": given["projectName"], "entityName": given["entityName"]}
        told = {key: given[key] for key in ("type", "name", "displayName", "description", "spec")}
        times = {"createdAt": "2026-01-02T03:04:05", "updatedAt": "2026-01-02T03:04:05"}
        self.views[name] = {"id": name, "project": project, **told, **times}
        return {"upsertView": {"view": self.views[name], "inserted": new}}

    def on_specificreport(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"view": self.views.get(given["reportId"])}

    def place(self, owner: str, name: str) -> str:
        return f"{self.url}/upload/{quote(owner)}/{quote(name)}"

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
            except Exception as error:  # the client hears of it; a test sees what did not arrive
                code, said = 403, {"errors": [{"message": str(error)}]}
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
                if server.refused == "upload":
                    raise PermissionError("no more room")
                server.uploads[self.path.removeprefix("/upload/")] = body
                return {}
            if self.path.startswith("/sdk/otel/"):
                return {}
            raise KeyError(f"{self.command} {self.path}")

        do_GET = do_POST = do_PUT = do_HEAD = handle_one

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """A client that ended with its connection open is no fault."""

    http = Server(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
