"""A stub of the replicator. It serves `/progress`; its first argument selects how it ends.

`serve`: runs until SIGTERM or the end of stdin. `die`: ends immediately with a sentence and status 1.
`refuse`: ends with status 2. `ignore-sigterm`: like serve, but ignores SIGTERM.
`crash`: writes STUB_LOG to stderr and ends. It appends a line `start PID` and `end REASON` to the file STUB_JOURNAL.
"""

import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path

ROW = {
    "topic": "orders", "targetTopic": "east.orders", "partition": 0, "phase": "copying", "lagRecords": 0,
    "recordsPerSecond": 10.0, "bytesPerSecond": 1000.0, "reachedStartEnd": True, "guarantee": "exactly-once",
    "reason": "", "message": "",
}  # fmt: skip


def journal(line: str) -> None:
    with Path(os.environ["STUB_JOURNAL"]).open("a") as file:
        file.write(line + "\n")


def end(reason: str) -> None:
    journal(f"end {reason}")
    os._exit(0)


def response(path: str) -> bytes:
    rows = json.loads(os.environ.get("STUB_ROWS", json.dumps([ROW])))
    lagging = sum(not row["reachedStartEnd"] for row in rows)
    uncopied = json.loads(os.environ.get("STUB_UNCOPIED", "[]"))
    summary = {
        "version": 1, "partitions": {"total": len(rows), "behindStart": lagging}, "lagRecords": 0,
        "caughtUp": bool(rows) and lagging == 0 and not uncopied, "recordsPerSecond": 10.0, "bytesPerSecond": 1000.0, "records": 7,
        "uptimeSeconds": 60.0, "replicating": "Advancing", "reasons": [],
    }  # fmt: skip
    table = {"version": 1, "partitions": rows, "uncopied": uncopied, "uncopiedTotal": len(uncopied)}
    body = json.dumps(table if path.startswith("/progress/partitions") else summary)
    return f"HTTP/1.0 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def serve(listener: socket.socket) -> None:
    """Serves one request per connection.

    The module http.server is avoided because importing it takes longer than the rest of the stub.
    """
    while True:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as lines:
            path = lines.readline().split()[1].decode()
            while lines.readline().strip():
                pass
            connection.sendall(response(path))


def watch_stdin() -> None:
    sys.stdin.buffer.read()
    end("stdin")


def main() -> None:
    mode = sys.argv[1]
    journal(f"start {os.getpid()}")
    if mode in {"die", "refuse"}:
        print(f"the stub received {mode}", file=sys.stderr)
        sys.exit(1 if mode == "die" else 2)
    if mode == "crash":
        sys.stderr.write(os.environ["STUB_LOG"])
        sys.exit(1)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if mode == "ignore-sigterm" else lambda *_: end("SIGTERM"))
    if mode == "serve":
        threading.Thread(target=watch_stdin, daemon=True).start()
    listener = socket.create_server(("127.0.0.1", 0))
    Path(os.environ["MIRRORFLOW_HTTP_FILE"]).write_text(f"http://127.0.0.1:{listener.getsockname()[1]}\n")
    journal("ready " + " ".join(sys.argv[2:]))
    serve(listener)


if __name__ == "__main__":
    main()
