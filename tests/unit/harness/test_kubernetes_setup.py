"""`setup.sh` reports what it builds and continues an interrupted build.

A stub of Go builds the programs.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parents[2] / "harness" / "kubernetes"
WAIT_S = 300.0
POLL_S = 0.02
PROGRAMS = ["control", "node", "pause", "probe", "coredns", "helm"]  # in the order of `setup.sh cluster`
GO = """#!/bin/bash
state=$(dirname "$0")/../state
case "$1 $2" in
  "list -m") echo v1.34.4 ;;
  "mod download") echo "\\"Dir\\": \\"$state/module\\"" ;;
  build*)
    while [ "$1" != -o ]; do shift; done
    name=${3##*/}
    echo "$name" >>"$state/built"
    echo $$ >"$state/pid"
    while [ -e "$state/hold-$name" ]; do touch "$state/held"; read -rt 0.05 <> <(:); done
    [ ! -e "$state/fail-$name" ] || { echo "no $name today" >&2; exit 1; }
    echo "$name" >"$2"
    ;;
esac
"""


class SetupScript:
    """A copy of the script with its own cache and a stub of Go. It reports its progress each second."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.cache = folder / ".cache" / "mirrorflow" / "kubernetes"
        self.script = folder / "tests" / "harness" / "kubernetes" / "setup.sh"
        shutil.copytree(HERE, self.script.parent, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
        text = self.script.read_text()
        # Nothing is installed on the machine that runs this test.
        assert (text.count("progress_s=60\n"), text.count("\n  install_packages\n")) == (1, 1)
        self.script.write_text(
            text.replace("progress_s=60\n", "progress_s=1\n").replace("\n  install_packages\n", "\n")
        )
        definitions = self.state / "module" / "example" / "prometheus-operator-crd"
        definitions.mkdir(parents=True)
        for name in ("servicemonitors", "podmonitors", "prometheusrules"):
            (definitions / f"monitoring.coreos.com_{name}.yaml").touch()
        self._bin = folder / "bin"
        self._bin.mkdir()
        (self._bin / "go").write_text(GO)
        (self._bin / "go").chmod(0o755)
        self.out = folder / "out"

    def start(self) -> subprocess.Popen[bytes]:
        with self.out.open("wb") as out:
            return subprocess.Popen(
                ["bash", self.script, "cluster"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={
                    **os.environ,
                    "PATH": f"{self._bin}:{os.environ['PATH']}",
                    "XDG_CACHE_HOME": str(self.cache.parents[1]),
                },
            )

    def run(self) -> str:
        """Runs the script until it succeeds, and returns its output."""
        assert self.start().wait(WAIT_S) == 0, self.output()
        return self.output()

    def output(self) -> str:
        return self.out.read_text()

    def built(self) -> list[str]:
        """The programs that Go has built, in order."""
        return (self.state / "built").read_text().split()

    def hold(self, program: str) -> Path:
        """Blocks the build of *program* as long as the returned file exists."""
        file = self.state / f"hold-{program}"
        file.touch()
        return file


def until(condition: Callable[[], object], what: str) -> None:
    """Waits until *condition* holds, at most `WAIT_S`."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"The condition was not met in time: {what}."
        time.sleep(POLL_S)


def runs(pid: int) -> bool:
    """Returns whether the process *pid* exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[SetupScript]:
    script = SetupScript(tmp_path)
    yield script
    for file in script.state.glob("hold-*"):
        file.unlink()


def test_a_second_run_builds_nothing(setup: SetupScript) -> None:
    setup.run()

    assert setup.built() == PROGRAMS
    assert "" == setup.run()
    assert setup.built() == PROGRAMS
    programs = {path.name for path in (setup.cache / "node").iterdir()} - {".complete"}
    assert {"node", "pause", "probe", "coredns", "kubelet", "kube-proxy", "kube-scheduler"} == programs
    assert "node\n" == (setup.cache / "node" / "kubelet").read_text()
    assert [] == list(setup.cache.glob("partial-*"))


def test_a_long_build_reports_the_program_and_its_duration(setup: SetupScript) -> None:
    held = setup.hold("pause")
    process = setup.start()
    until(
        lambda: setup.output().count("node: building pause (2 of 4), ") >= 2, "the script has reported twice"
    )

    held.unlink()

    assert process.wait(WAIT_S) == 0
    assert setup.built() == PROGRAMS


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_build_continues_after_the_programs_that_were_built(
    setup: SetupScript, number: signal.Signals
) -> None:
    held = setup.hold("probe")
    process = setup.start()
    until((setup.state / "held").exists, "the third build has started")
    process.send_signal(number)
    process.wait(WAIT_S)
    compiler = int((setup.state / "pid").read_text())
    if number is signal.SIGTERM:
        until(lambda: not runs(compiler), "Go has ended with the script")
    held.unlink()
    until(lambda: not runs(compiler), "Go has ended")

    output = setup.run()

    assert setup.built() == ["control", "node", "pause", "probe", *PROGRAMS[3:]]
    (kept,) = (line for line in output.splitlines() if "an interrupted build has left" in line)
    assert {"node", "pause"} == set(kept.partition(" left ")[2].partition(",")[0].split())
    assert [] == [*setup.cache.glob("partial-*"), *setup.cache.glob("unfinished*")]


def test_a_failed_build_ends_the_script_with_one_sentence(setup: SetupScript) -> None:
    (setup.state / "fail-coredns").touch()

    assert setup.start().wait(WAIT_S) == 1
    assert setup.output().splitlines()[-2:] == [
        "no coredns today",
        "Kubernetes v1.34.4 could not be built: Go's own message is above.",
    ]
    assert not (setup.cache / "node").exists()


def test_an_interrupted_build_of_other_sources_is_not_continued(setup: SetupScript) -> None:
    (setup.state / "fail-coredns").touch()
    setup.start().wait(WAIT_S)
    (setup.state / "fail-coredns").unlink()
    main = setup.script.parent / "go" / "pause" / "main.go"
    main.write_text(main.read_text() + "// other\n")

    setup.run()

    assert setup.built() == [*PROGRAMS[:5], *PROGRAMS[1:]]
