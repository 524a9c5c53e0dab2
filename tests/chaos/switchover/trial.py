"""A trial in which applications are moved to the other cluster and back, while commands, flows and brokers are killed
and frozen.

The command is repeated until the applications have moved, as an operator would do. After a move without the source, the
source returns, its tail is kept, and the reverse flow is started. Finally all processes recover. The written records
are compared with those that the group has read, with both logs, and with the kept tails.
"""

import contextlib
import itertools
import math
import random
import re
import resource
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from tests.chaos.switchover.actors import (
    DIVERGED,
    SWITCHOVER,
    FlowProcess,
    MemberSide,
    PairCommand,
    state_in,
    switchover_status,
)
from tests.chaos.switchover.judgement import (
    UnplannedMove,
    difference,
    fence_problems,
    group_problems,
    journal_problems,
    keys_of,
    side_problems,
)
from tests.chaos.switchover.schedule import (
    UNPLANNED_STATES,
    Fault,
    StateFault,
    SwitchoverDimensions,
    TimedFault,
    state_faults,
    timed_faults,
    unplanned_moves,
)
from tests.harness.kafka.cluster import ADMIN_WAIT_S, KafkaCluster
from tests.harness.kafka.installation import java_command
from tests.harness.kafka.pair_clients import (
    TRANSACTION_MS,
    Outcome,
    PairClients,
    PairConsumer,
    PairProducer,
    ReadRecord,
    logged_records,
)
from tests.harness.kafka.processes import HarnessError, cpu_s, start, wait_until
from tests.harness.kafka.tools import records
from tests.harness.pair_files import APP, allow_users, flow_file, secured_cluster, write_pair

TOPIC, GROUP, PAIR = "orders", "billing", "chaos"
RATE = 60  # records per second of each producer
DEADLINE_S = 60
# Without faults, a command ends within the time for its checks and the limit for refused writes. On a busy machine, its
# checks take a minute.
HANG_S: Final = DEADLINE_S + 180.0
FAULTS_MAX: Final = 3  # faults by state in one move; then the command runs without faults and ends
TIMED_FAULTS_MAX: Final = 4  # faults by time in one move, for the same reason
RUNS_MAX: Final = 25  # runs of the command for one move
ROLL_BACK_S: Final = 15.0  # a rollback that needs the lost source waits for the source
RETRY_S: Final = 1.0
SETTLE_S: Final = 300.0
METADATA_S: Final = 3.0
TICK_S: Final = 0.02
REPLACED_S: Final = 14.0  # a frozen command counts as ended after 8 s
ABORT_PERCENT: Final = 25
# For unplanned moves: how often and how long the flow is frozen before them, and for how long records are written
# meanwhile; how often the loss is shown before it is accepted; and for how long applications run without the source.
TAIL_SHARE: Final = 0.7
FLOW_FROZEN_S: Final = (2.0, 25.0)
TAIL_S: Final = (0.2, 2.0)
SHOWN_SHARE: Final = 0.3
# How often a planned move is tried first, whose command is killed in one of these states.
PLANNED_SHARE: Final = 0.25
BEFORE_PROMOTING: Final = ("Checking", "Fencing", "Quiescing", "Verifying")
DEGRADED_S: Final = (0.2, 3.0)
# How often and when `mirrorflow diverged` is killed. On a busy machine, it takes seconds to start.
KILLED_SHARE: Final = 0.4
KILL_S: Final = (1.0, 8.0)
UNDECIDED: Final = "It is not decided yet what belongs to the tail"
# Brokers abort a transaction after its timeout. If they abort it while they start, its partitions have no leaders yet.
# Such a transaction gets no marker and stays open (KAFKA-20734).
UNDECIDED_S: Final = 2 * TRANSACTION_MS / 1000
OPEN_TRANSACTION: Final = re.compile(r"open in (\S+)-(\d+) since offset (\d+)")
TRANSACTIONAL_ID: Final = "orders"
TRANSACTIONS_TOOL: Final = "org.apache.kafka.tools.TransactionsCommand"
TOOL_HEAP_MIB, TOOL_S = 96, 120.0
ADMITTED: Final = "Waits for the first record of the flow"
STOP_CONSUMERS: Final = "consumers of these groups are stopped"
# Brokers abort the transactions of an ended producer within a second after their timeout.
QUICK_ABORT: Final = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000"}
THREE: Final = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "transaction.state.log.min.isr": "2",
}


@dataclass(kw_only=True, slots=True)
class SwitchoverResult:
    """The result. `problems` is empty if every acknowledged record was read exactly once and no process was stuck."""

    seed: int
    done: Counter[Fault] = field(default_factory=Counter)
    commands: Counter[str] = field(default_factory=Counter)  # number of runs by how they ended
    moves: int = 0
    unplanned: int = 0  # how many of the moves
    rehearsals: int = 0
    acknowledged: int = 0
    unknown: int = 0
    read: int = 0
    kept: int = 0  # records in the tails
    reread: int = 0  # records read again after unplanned moves
    hanging: int = 0  # partitions of transactions that a lost cluster has left open
    cpu_s: float = 0.0  # CPU time of all processes of the trial
    refused_s: list[float] = field(default_factory=list)  # duration of refused writes in each move
    problems: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """Returns the lines that are printed after the trial."""
        lines = [
            f"seed {self.seed}: {self.moves} switchovers, {self.unplanned} unplanned; {self.rehearsals} rehearsals; {self.cpu_s:.0f} CPU s"
        ]
        lines += [f"  {count:4}  {fault.value}" for fault in Fault if (count := self.done[fault])]
        lines += [f"  {count:4}  commands ended: {how}" for how, count in sorted(self.commands.items())]
        lines.append(
            f"  {self.acknowledged} records acknowledged, {self.read} read, {self.unknown} without an outcome,"
            f" {self.kept} in kept tails, {self.reread} read again, {self.hanging} hanging transactions aborted;"
            f" writes refused for {', '.join(f'{seconds:.1f}' for seconds in self.refused_s)} s"
        )
        return "\n".join([*lines, *(f"BROKEN: {problem}" for problem in self.problems)])


class SwitchoverTrial:
    """A trial. After a failure, *folder* has `events.log` and the output of all processes."""

    def __init__(
        self,
        *,
        seed: int,
        seconds: float,
        dimensions: SwitchoverDimensions,
        folder: Path,
        log: Callable[[str], None],
    ) -> None:
        """*seconds* is the total time for which applications run between moves."""
        self.folder = folder
        self.result = SwitchoverResult(seed=seed)
        self._seconds = seconds
        self._dimensions = dimensions
        self._log = log
        self._began_s = time.monotonic()
        self._rng = random.Random(f"{seed} moves")
        self._state_faults: Iterator[StateFault] = state_faults(seed, dimensions.faults)
        self._unplanned_faults = state_faults(seed, dimensions.faults, UNPLANNED_STATES)
        self._timed_faults: Iterator[TimedFault] = timed_faults(seed, dimensions.faults)
        self._timed_count = 0  # in the current move
        self._next_fault: TimedFault | None = None
        self._fault_due_s = 0.0
        self._sides: dict[str, MemberSide] = {}
        self._flows: dict[str, FlowProcess] = {}
        self._producers: list[PairProducer] = []
        self._applications: list[PairProducer | PairConsumer] = []
        self._commands: list[PairCommand] = []  # the commands that run
        self._unplanned: list[UnplannedMove] = []
        self._tools = itertools.count()
        self._tails: dict[str, list[str]] = {}  # topics of kept tails on each member, in their order
        self._held_at = ""  # the member on which the consumer was stopped
        self._calm_since_s = time.monotonic()
        self._is_move_done = False

    def run(self) -> SwitchoverResult:
        """Runs the trial and ends all its processes."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        used_s = _used_cpu_s()
        east_brokers, west_brokers = (int(count) for count in self._dimensions.brokers.split("+"))
        with (
            _cluster("chaos-east", east_brokers) as east,
            _cluster("chaos-west", west_brokers) as west,
        ):
            try:
                self._set_up(east, west)
                self._move_there_and_back()
                self._note_cpu()
                self._settle()
                self._judge(east, west)
            except HarnessError as error:
                self._problem(str(error))
            finally:
                self._end()
                if self.result.problems:
                    self._keep()
        self.result.cpu_s = _used_cpu_s() - used_s
        return self.result

    # -- set-up and end

    def _set_up(self, east: KafkaCluster, west: KafkaCluster) -> None:
        clusters = {"east": east, "west": west}
        self._sides = {
            alias: MemberSide(cluster=cluster, topics=[TOPIC]) for alias, cluster in clusters.items()
        }
        for cluster in clusters.values():
            allow_users(cluster, TOPIC)
        east.create_topic(
            TOPIC, partitions=int(self._dimensions.partitions), replication_factor=len(east.nodes)
        )
        self._clients = PairClients(sides=clusters, user=APP, folder=self.folder, topic=TOPIC, group=GROUP)
        self._pair = write_pair(
            self.folder,
            clusters,
            name=PAIR,
            topic=TOPIC,
            group=GROUP,
            endpoint=self._clients.endpoint,
            deadline_s=DEADLINE_S,
        )
        self._clients.write_properties(protocol=self._dimensions.protocol)
        self._flows = {
            alias: FlowProcess(name=f"from-{alias}", file=flow_file(self.folder, alias), folder=self.folder)
            for alias in clusters
        }
        self._flows["east"].start()
        kinds = self._dimensions.producers
        if kinds != "transactional":
            self._producers.append(PairProducer(clients=self._clients, name="idempotent", rate=RATE))
        if kinds != "idempotent":
            self._producers.append(
                PairProducer(
                    clients=self._clients,
                    name="transactional",
                    rate=RATE,
                    transactional_id=TRANSACTIONAL_ID,
                    abort_percent=ABORT_PERCENT,
                    seed=self.result.seed,
                )
            )
        self._consumer = PairConsumer(clients=self._clients)
        self._applications = [*self._producers, self._consumer]
        for application in self._applications:
            application.start()
        self._wait("the group has read records", lambda: len(self._consumer.reads) > 0)
        self._wait("records are copied", lambda: self._is_copied_at_all(west))
        self._note(f"all processes run: {self._dimensions}")

    def _is_copied_at_all(self, west: KafkaCluster) -> bool:
        try:
            return west.total_end_offset(TOPIC) > 0
        except KafkaException:
            return False

    def _note_cpu(self) -> None:
        """Records the CPU time of the processes that run now. The other processes were commands, or were killed."""
        groups = {
            "brokers": [node.child for side in self._sides.values() for node in side.cluster.nodes.values()],
            "flows": [flow.child for flow in self._flows.values()],
            "clients": [application.child for application in self._applications],
        }
        used = {
            name: sum(cpu_s(child.pid) for child in children if child is not None and child.running)
            for name, children in groups.items()
        }
        self._note("CPU seconds: " + ", ".join(f"{name} {seconds:.1f}" for name, seconds in used.items()))

    def _end(self) -> None:
        for command in self._commands:
            if not command.has_ended:
                command.kill()
        for flow in self._flows.values():
            flow.end()
        for application in self._applications:
            if application.child is not None and application.child.running:
                application.child.kill()

    # -- the moves

    def _move_there_and_back(self) -> None:
        kinds = unplanned_moves(self.result.seed, self._dimensions)
        moves, was_unplanned = len(kinds), False
        for number, is_unplanned in enumerate(kinds):
            self._timed_count = 0
            self._schedule_fault()
            self._run_for(self._rng.uniform(0.5, 1.5) * self._seconds / (moves + 1))
            active = self._clients.active()
            to = "west" if active == "east" else "east"
            if self._dimensions.rehearsals == "some" and self._rng.random() < 0.6:
                self._move(["--to", to, "--rehearse"], self._state_faults)
                self.result.rehearsals += 1
            if is_unplanned:
                self._move_without(active, to)
                self.result.unplanned += 1
            else:
                restores = ["--restore"] if was_unplanned else []
                self._move(["--to", to, *restores], self._state_faults)
            was_unplanned = is_unplanned
            self.result.moves += 1
            self._note(f"move {number + 1} of {moves}: {to} is active")

    def _move(self, arguments: list[str], faults: Iterator[StateFault]) -> None:
        """Runs the command until it has succeeded."""
        self._is_move_done = False
        for run in range(RUNS_MAX):
            self._run_command(arguments, next(faults, None) if run < FAULTS_MAX else None)
            if self._is_move_done:
                return
            self._run_for(RETRY_S)
        raise HarnessError(f"{' '.join(arguments)}: not done after {RUNS_MAX} runs of the command.")

    def _move_without(self, source: str, to: str) -> None:
        """Moves applications to *to* without *source*.

        Then *source* returns, its tail is kept, and the reverse flow is started.
        """
        kind, side, forward = self._dimensions.unplanned, self._sides[source], self._flows[source]
        # Records that are written while the flow is frozen become the tail, unless the flow resumes in time.
        if self._rng.random() < TAIL_SHARE and forward.freeze(self._rng.uniform(*FLOW_FROZEN_S)):
            self._note(f"{forward.name} is frozen")
            self._run_for(self._rng.uniform(*TAIL_S))
        if self._rng.random() < PLANNED_SHARE:
            # The source is lost during a planned move, whose command cannot continue.
            state = self._rng.choice(BEFORE_PROMOTING)
            killed = StateFault(fault=Fault.KILL_COMMAND, state=state, away_s=0, choice=0)
            self._run_command(["--to", to], killed)
            assert self._clients.active() == source, f"The planned switchover went on after {state}."
        self._unplanned.append(UnplannedMove(to=to, began_ms=time.time_ns() // 1_000_000))
        if kind != "answers":
            side.lose(freeze=kind == "frozen")
        self._note(f"{source} is lost: {kind}")
        shown = ["--to", to, "--unplanned"]
        if self._rng.random() < SHOWN_SHARE:
            self._run_command(shown)
            assert self._clients.active() == source, (
                "The command has changed something without --accept-loss."
            )
        self._move([*shown, "--accept-loss"], self._unplanned_faults)
        self._wait_for_writes(to)
        self._run_for(self._rng.uniform(*DEGRADED_S))
        if side.is_lost:
            side.come_back()
            self._note(f"{source} returns")
            self._wait("every replica is in sync", side.is_in_sync)
        before = self._tail_topics(to)
        self._run_diverged("keep", source)
        self._tails.setdefault(to, []).extend(sorted(self._tail_topics(to) - before))
        self._run_diverged("start-back", source)
        back = self._flows[to]
        if not back.is_wanted:
            back.start()

    def _run_diverged(self, action: str, left: str) -> None:
        """Runs `mirrorflow diverged` until it has succeeded. Some runs are killed."""
        undecided_s = 0.0  # the time since which a transaction is open in the tail
        for run in range(RUNS_MAX):
            command = self._start_command([action, "--left", left], command=DIVERGED)
            has_faults = run < FAULTS_MAX and self._dimensions.faults in {"command", "all"}
            kill_s = self._rng.uniform(*KILL_S) if has_faults and self._rng.random() < KILLED_SHARE else None
            while not command.has_ended:
                if kill_s is not None and command.seconds >= kill_s:
                    command.kill()
                    self.result.done[Fault.KILL_COMMAND] += 1
                self._tick()
                self._check_hang(command)
                time.sleep(TICK_S)
            self._commands.remove(command)
            status, output = command.child.process.returncode, " ".join(command.output().split())
            self.result.commands[f"{action} status {status}"] += 1
            self._note(f"{command.name}: {action}, status {status}. {output[-500:]}")
            if status == 2:
                raise HarnessError(f"The command was refused as invalid:\n{output}")
            # A run that was killed after its last step has succeeded as well.
            if status == 0 or (action == "start-back" and f"copies to {left} already" in output):
                return
            if UNDECIDED in output:
                undecided_s = undecided_s or time.monotonic()
                if time.monotonic() - undecided_s > UNDECIDED_S:
                    self._abort_hanging(left, output)
                    undecided_s = 0.0
            self._run_for(RETRY_S)
        raise HarnessError(f"diverged {action}: not done after {RUNS_MAX} runs of the command.")

    def _abort_hanging(self, member: str, output: str) -> None:
        """Aborts the transactions in *output* whose coordinator has lost them, as an operator would do."""
        described = self._transactions_tool(member, "describe", "--transactional-id", TRANSACTIONAL_ID)
        if "CompleteCommit" in described:
            # No process can write the marker of a commit, and an abort would lose acknowledged records.
            raise HarnessError(f"{member} has left a transaction without its marker:\n{described}")
        if "CompleteAbort" not in described:
            return  # the transaction has not ended yet
        for topic, partition, offset in OPEN_TRANSACTION.findall(output):
            place = ("--topic", topic, "--partition", partition, "--start-offset", offset)
            aborted = self._transactions_tool(member, "abort", *place)
            self._note(f"{topic}-{partition}:{offset} hangs on {member}, and is aborted. {aborted}")
            self.result.hanging += 1

    def _transactions_tool(self, member: str, action: str, *arguments: str) -> str:
        """Runs `kafka-transactions.sh` and returns its output."""
        bootstrap = ("--bootstrap-server", self._sides[member].cluster.internal_bootstrap)
        log = self.folder / f"transactions-{next(self._tools)}.log"
        command = java_command(
            TRANSACTIONS_TOOL, *bootstrap, action, *arguments, log=log, heap_mib=TOOL_HEAP_MIB
        )
        start(f"transactions {action}", command, log=log).process.wait(TOOL_S)
        return log.read_text()

    def _tail_topics(self, member: str) -> set[str]:
        """Returns the topics with kept tails on *member*."""
        tail_topics: set[str] = set()

        def has_listed() -> bool:
            try:
                topics = self._sides[member].cluster.admin.list_topics(timeout=METADATA_S).topics
            except KafkaException:
                return False
            tail_topics.update(name for name in topics if name.startswith(f"{TOPIC}.diverged."))
            return True

        self._wait(f"{member} lists its topics", has_listed)
        return tail_topics

    def _run_command(
        self, arguments: list[str], fault: StateFault | None = None, *, limit_s: float = math.inf
    ) -> None:
        """Runs the command once until it ends. *fault* hits it during the run. It is killed after *limit_s*."""
        command = self._start_command(arguments)
        while not command.has_ended:
            if command.seconds > limit_s:
                command.kill()
            hit = self._read_lines(command, fault)
            if hit and fault is not None:
                self._hit(command, fault, arguments)
                fault = None
            self._tick()
            self._check_hang(command)
            time.sleep(TICK_S)
        self._note_end(command)

    def _start_command(self, arguments: list[str], *, command: str = SWITCHOVER) -> PairCommand:
        started = PairCommand(self._pair, self.folder, *arguments, command=command)
        self._commands.append(started)
        self._note(f"{started.name}: {' '.join(arguments)}")
        return started

    def _read_lines(self, command: PairCommand, fault: StateFault | None) -> bool:
        """Does what the command requests of its user. Returns whether the command shows the state that *fault* hits."""
        hit = False
        for line in command.new_lines():
            self._note(f"{command.name} | {line}")
            state = state_in(line)
            hit |= fault is not None and state == fault.state
            if STOP_CONSUMERS in line:
                self._held_at = self._clients.active()
                self._clients.hold.touch()
            if state == "Reversing" and ADMITTED in line:
                back = self._flows[self._clients.active()]
                if not back.is_wanted:
                    back.start()
        return hit

    def _note_end(self, command: PairCommand) -> None:
        self._read_lines(command, None)
        self._commands.remove(command)
        status, report = command.child.process.returncode, command.report()
        state = str(report.get("state", "no report"))
        reason = str(report.get("reason", ""))
        how = f"status {status}, {state}"
        self.result.commands[how] += 1
        self._note(f"{command.name}: {how}. {reason}")
        if state in {"Done", "Lifted", "Rehearsed"} and report.get("writesRefusedSeconds") is not None:
            self.result.refused_s.append(float(report["writesRefusedSeconds"]))
        if status == 2:
            raise HarnessError(f"The command was refused as invalid:\n{command.output()}")
        if status >= 0 and state in {"Lifted", "Rehearsed", "Refused"}:
            self._release_consumer()
        # A command that was killed after its last record, or that another command has replaced, has succeeded as well.
        active = self._clients.active()
        was_done = state == "Refused" and any(
            sentence in reason
            for sentence in (f"to: {active} is the active member", f"has made {active} the active member")
        )
        self._is_move_done |= was_done or (status == 0 and state in {"Done", "Rehearsed", "Degraded"})

    def _release_consumer(self) -> None:
        self._held_at = ""
        self._clients.hold.unlink(missing_ok=True)

    # -- faults

    def _hit(self, command: PairCommand, fault: StateFault, arguments: list[str]) -> None:
        kind = fault.fault
        done = True
        match kind:
            case Fault.KILL_COMMAND:
                command.kill()
            case Fault.FREEZE_COMMAND:
                command.freeze(fault.away_s)
            case Fault.INTERRUPT_COMMAND:
                command.interrupt()
            case Fault.REPLACE_COMMAND:
                # A second command takes over. The first one resumes while the second one runs, or later.
                command.freeze(REPLACED_S)
                self._run_command(arguments)
            case Fault.ROLL_BACK:
                command.kill()
                self._run_command(
                    ["rollback"], limit_s=ROLL_BACK_S if "--unplanned" in arguments else math.inf
                )
            case _:
                done = self._strike(kind, fault.choice, fault.away_s)
        if done:
            self.result.done[kind] += 1
            self._note(f"{kind.value} in state {fault.state} for {fault.away_s:.1f} s")

    def _strike(self, kind: Fault, choice: int, away_s: float) -> bool:
        active = self._clients.active()
        passive = "west" if active == "east" else "east"
        match kind:
            case Fault.KILL_FORWARD | Fault.KILL_BACK:
                done = self._flows[active if kind is Fault.KILL_FORWARD else passive].kill(choice, away_s)
            case Fault.FREEZE_FORWARD | Fault.FREEZE_BACK:
                done = self._flows[active if kind is Fault.FREEZE_FORWARD else passive].freeze(away_s)
            case _:
                side = self._sides[active if kind in {Fault.KILL_SOURCE, Fault.FREEZE_SOURCE} else passive]
                freeze = kind in {Fault.FREEZE_SOURCE, Fault.FREEZE_TARGET}
                done = bool(side.strike(choice, leads=True, freeze=freeze, away_s=away_s / 2))
        return done

    def _schedule_fault(self) -> None:
        is_allowed = self._timed_count < TIMED_FAULTS_MAX
        self._next_fault = next(self._timed_faults, None) if is_allowed else None
        if self._next_fault is not None:
            self._fault_due_s = time.monotonic() + self._next_fault.after_s

    # -- time

    def _tick(self) -> None:
        now = time.monotonic()
        if self._next_fault is not None and now >= self._fault_due_s:
            fault = self._next_fault
            self._timed_count += 1
            if self._strike(fault.fault, fault.choice, fault.away_s):
                self.result.done[fault.fault] += 1
                self._note(f"{fault.fault.value} for {fault.away_s:.1f} s")
            self._schedule_fault()
        for side in self._sides.values():
            side.tick()
        for flow in self._flows.values():
            flow.tick()
        for command in self._commands:
            command.tick()
        for application in self._applications:
            assert application.child is not None
            application.child.must_run()
            application.update()
        back = self._flows[self._clients.active()]
        if self._dimensions.back == "early" and not back.is_wanted:
            back.start()
            self._note(f"{back.name} is started")
        if self._held_at and self._clients.active() != self._held_at:
            self._release_consumer()
        if not self._is_calm():
            self._calm_since_s = time.monotonic()

    def _is_calm(self) -> bool:
        return (
            not any(side.unavailable_id for side in self._sides.values())
            and all(flow.is_up or not flow.is_wanted for flow in self._flows.values())
            and not any(command.is_frozen for command in self._commands)
        )

    def _check_hang(self, command: PairCommand) -> None:
        waited_s = time.monotonic() - max(command.began_s, self._calm_since_s)
        if waited_s > HANG_S:
            raise HarnessError(
                f"{command.name} runs for {waited_s:.0f} s since the last fault was over:\n{command.output()[-2000:]}"
            )

    def _run_for(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self._tick()
            time.sleep(TICK_S)

    def _wait(self, what: str, condition: Callable[[], bool]) -> None:
        def ticked() -> bool:
            self._tick()
            return condition()

        wait_until(what, ticked, timeout_s=SETTLE_S, poll_s=0.1)

    def _wait_for_writes(self, member: str) -> None:
        before = {producer.name: producer.acknowledged(member) for producer in self._producers}
        self._wait(
            f"{member} accepts the records of all producers",
            lambda: all(
                producer.acknowledged(member) > before[producer.name] + 10 for producer in self._producers
            ),
        )

    def _settle(self) -> None:
        """Waits until all processes run.

        Checks that writes are accepted, and that all written records are read and copied.
        """
        self._next_fault = None
        self._note("processes recover")
        self._wait("all processes run and every replica is in sync", self._is_calm)
        self._wait_for_writes(self._clients.active())
        for producer in self._producers:
            producer.stop()
        self._note("the producers have stopped")
        with contextlib.suppress(HarnessError):  # the judgement reports what is missing
            self._wait_for_reads()
        self._consumer.stop()

    def _wait_for_reads(self) -> None:
        kept = {key for tails in self._kept().values() for key in keys_of(tails)}
        expected = {
            (producer.name, index)
            for producer in self._producers
            for index, attempt in enumerate(producer.attempts)
            if attempt.outcome is Outcome.ACKNOWLEDGED
        } - kept

        def has_read() -> bool:
            for side in self._sides.values():
                side.tick()
            for flow in self._flows.values():
                flow.tick()
            self._consumer.update()
            return expected <= keys_of(self._consumer.reads)

        wait_until("the group has read all records", has_read, timeout_s=60, poll_s=0.2)
        # If an earlier record is read twice, this shows within this time.
        time.sleep(1)
        self._consumer.update()

    # -- judgement

    def _judge(self, east: KafkaCluster, west: KafkaCluster) -> None:
        written = {producer.name: producer.attempts for producer in self._producers}
        reads = self._consumer.reads
        self.result.acknowledged = sum(producer.acknowledged() for producer in self._producers)
        self.result.unknown = sum(
            attempt.outcome.value in {"unknown", "sent"}
            for attempts in written.values()
            for attempt in attempts
        )
        self.result.read = len(reads)
        kept = self._kept()
        self.result.kept = sum(len(tails) for tails in kept.values())
        self.result.reread = len(reads) - len(keys_of(reads))
        tail_keys = {key for tails in kept.values() for key in keys_of(tails)}
        for problem in group_problems(
            written, reads, of=f"group {GROUP}", moves=self._unplanned, kept=tail_keys
        ):
            self._problem(problem)
        logs: dict[str, list[ReadRecord]] = {}

        def first_difference() -> str:
            """Returns where the logs differ, except for the tail of each log, which the other member has kept."""
            own = {"east": keys_of(kept["west"]), "west": keys_of(kept["east"])}
            return difference(
                *(
                    [record for record in logs[name] if (record.producer, record.attempt) not in own[name]]
                    for name in ("east", "west")
                )
            )

        def are_equal() -> bool:
            for flow in self._flows.values():
                flow.tick()
            logs.update(east=_log_of(east), west=_log_of(west))
            return not first_difference()

        try:
            wait_until("both clusters are equal", are_equal, timeout_s=60, poll_s=2)
        except HarnessError as error:
            self._problem(f"{error} {first_difference()}")
        for name, log in logs.items():
            for problem in side_problems(written, log, kept[name], of=name):
                self._problem(problem)
        active = self._clients.active()
        status = switchover_status(self._pair, self.folder)
        passive = "west" if active == "east" else "east"
        denied = {alias: _denied(side.cluster) for alias, side in self._sides.items()}
        for problem in (
            *journal_problems(status, active=active, passive=passive),
            *fence_problems(denied, active=active, passive=passive),
        ):
            self._problem(problem)

    def _kept(self) -> dict[str, list[ReadRecord]]:
        """Returns the records of the tails that are kept on each member."""
        return {
            name: [record for topic in self._tails.get(name, ()) for record in _log_of(side.cluster, topic)]
            for name, side in self._sides.items()
        }

    def _note(self, event: str) -> None:
        line = f"{time.monotonic() - self._began_s:7.2f}  {time.strftime('%H:%M:%S')}  {event}"
        with (self.folder / "events.log").open("a") as file:
            file.write(line + "\n")
        self._log(line)

    def _problem(self, problem: str) -> None:
        self.result.problems.append(problem)
        self._note(f"PROBLEM {problem}")

    def _keep(self) -> None:
        """Copies the brokers' logs, which the clusters delete when they close."""
        for name, side in self._sides.items():
            for id_, broker in side.cluster.nodes.items():
                if broker.log.exists():
                    shutil.copy(broker.log, self.folder / f"{name}-broker-{id_}.log")


def _cluster(name: str, brokers: int) -> KafkaCluster:
    return secured_cluster(name, brokers=brokers, config=QUICK_ABORT | (THREE if brokers > 1 else {}))


def _log_of(cluster: KafkaCluster, topic: str = TOPIC) -> list[ReadRecord]:
    return logged_records(
        (record.partition, record.offset, record.key, record.value)
        for record in records(cluster, topic, isolation="read_committed")
    )


def _used_cpu_s() -> float:
    """Returns the user and system seconds of this process and of all child processes for which it has waited."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _denied(cluster: KafkaCluster) -> int:
    """Returns the number of ACLs on *cluster* that deny an operation on a topic."""
    every = AclBindingFilter(
        ResourceType.TOPIC,
        None,
        ResourcePatternType.ANY,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.DENY,
    )
    return len(cluster.admin.describe_acls(every).result(ADMIN_WAIT_S))
