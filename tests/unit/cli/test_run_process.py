"""The log file of `mirrorflow run` is rotated while the replicator writes to it, and is not shared by two runs."""

import errno
import shutil
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from mirrorflow_cli.errors import FailedError
from mirrorflow_cli.run_process import KEPT_MAX, LogFile, ProcessFiles, ReplicatorProcess, log_of_flow


def write(log: LogFile, text: str) -> None:
    """Appends *text* from a different process that inherits the file, as the replicator does."""
    subprocess.run(["/bin/echo", "-n", text], stdout=log.file, check=True)


def test_a_short_log_is_not_rotated(tmp_path: Path) -> None:
    with closing(LogFile(tmp_path / "log", max_bytes=10)) as log:
        write(log, "123456789")
        assert not log.rotate_if_large()
    assert "123456789" == log.path.read_text()


def test_a_long_log_is_renamed_and_a_new_one_begins(tmp_path: Path) -> None:
    with closing(LogFile(tmp_path / "log", max_bytes=3)) as log:
        for number in range(KEPT_MAX + 2):
            write(log, f"log {number}")
            assert log.rotate_if_large()
        write(log, "new")
    assert "new" == log.path.read_text()
    kept = {path.name: path.read_text() for path in tmp_path.iterdir() if path != log.path}
    assert {f"log.{n}": f"log {KEPT_MAX + 2 - n}" for n in range(1, KEPT_MAX + 1)} == kept


def test_a_rotation_that_fails_loses_no_older_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk it is not tried at each moment, but when the log has grown."""
    copies = []

    def copyfile(_: Path, target: Path) -> None:
        copies.append(target)
        target.write_text("a part")
        raise OSError(errno.ENOSPC, "No space left on device")

    with closing(LogFile(tmp_path / "log", max_bytes=20)) as log:
        write(log, "the first log, which is long enough")
        assert log.rotate_if_large()
        with monkeypatch.context() as full:
            full.setattr(shutil, "copyfile", copyfile)
            write(log, "the second log, long enough, too")
            with pytest.raises(OSError, match="No space left"):
                log.rotate_if_large()
            assert not log.rotate_if_large()
            assert 1 == len(copies)
        assert {"log", "log.1"} == {path.name for path in tmp_path.iterdir()}
        write(log, "more")
        assert log.rotate_if_large()
    assert "the first log, which is long enough" == (tmp_path / "log.2").read_text()


def test_the_end_of_a_replicator_whose_log_was_deleted_has_no_line(tmp_path: Path) -> None:
    """The replicator is restarted nevertheless."""
    with closing(LogFile(tmp_path / "log")) as log:
        process = ReplicatorProcess(
            ProcessFiles(folder=tmp_path, connectors=()),
            command=(),
            environment={},
            log=log,
            prepared=None,
            clock=lambda: 0.0,
        )
        write(log, "the reason")
        log.path.unlink()
        assert "" == process.last_log_line()


def test_two_runs_of_a_flow_have_different_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log file given by the user cannot be shared either."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with closing(log_of_flow("f")) as first, closing(log_of_flow("f")) as second:
        assert ["f.log", "f-2.log"] == [first.path.name, second.path.name]
        with pytest.raises(FailedError, match=r"f.log is written by another run; choose another with --log"):
            LogFile(first.path)
    with closing(LogFile(Path("/dev/null"))), closing(LogFile(Path("/dev/null"))):
        pass
    with closing(log_of_flow("f")) as third:
        assert "f.log" == third.path.name


def test_a_missing_log_folder_is_an_error(tmp_path: Path) -> None:
    """The path may contain a typing error."""
    with pytest.raises(FailedError, match="No such file or directory; choose another with --log"):
        LogFile(tmp_path / "mistyped" / "log")
    assert [] == [*tmp_path.iterdir()]


def test_a_log_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FailedError, match=r"choose another with --log"):
        LogFile(tmp_path / "file" / "log")
