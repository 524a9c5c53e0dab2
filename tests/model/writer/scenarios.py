"""The scenarios in which the protocol is tested."""

from dataclasses import replace
from typing import Any

from mirrorflow_core.writer.broker_requests import InitProducerId, Request, Transaction
from tests.model.writer import faults as f
from tests.model.writer.running import Scenario
from tests.model.writer.world import Options

LATE_ENDS: Any = {"delays_requests": True, "loses_only": frozenset({"EndTxn"})}
RACE = (f.newcomer, f.sleepy_newcomer, f.sleepy_newcomer, f.kill, f.freeze, f.freeze_owner, f.hold_bytes)
SMALL = Options(partitions=3, records=24)


def _stores_with_a_spare(request: Request) -> bool:
    return isinstance(request, Transaction) and request.producer.transactional_id.endswith("-spare")


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            name="quiet",
            faults=(f.append_to_source,),
            options=Options(old_share=0.3, gap_share=0.2, loses_responses=False),
            is_quiet=True,
        ),
        Scenario(name="race", faults=RACE, options=SMALL, tasks=3),
        Scenario(
            name="recovery",
            faults=(f.raise_ids,),
            options=replace(SMALL, sleeps_before=lambda request: isinstance(request, InitProducerId)),
            faults_max=8,
            tasks=3,
        ),
        Scenario(
            name="fewer_tasks",
            faults=(f.newcomer_with_one_task, f.freeze),
            options=SMALL,
            faults_max=4,
            tasks=3,
            first_sleeps=True,
        ),
        Scenario(
            name="dying_newcomers",
            faults=(f.freeze_owner, f.dying_newcomer, f.newcomer_with_one_task),
            options=replace(SMALL, records=60),
            faults_max=5,
            tasks=3,
        ),
        Scenario(
            name="mixed_race",
            faults=(*RACE, f.stop, f.append_to_source),
            options=replace(SMALL, old_share=0.4, gap_share=0.3),
            tasks=3,
        ),
        Scenario(
            name="ended",
            faults=(f.end_flow, f.end_flow, *RACE, f.stop, f.append_to_source),
            options=replace(SMALL, records=60, old_share=0.3, gap_share=0.2),
            faults_max=12,
        ),
        Scenario(
            name="ended_offline",
            faults=(
                f.end_flow,
                f.end_flow,
                f.newcomer,
                f.kill,
                f.freeze_owner,
                f.go_offline_anywhere,
                f.stay_offline,
                f.lose_marker,
                f.append_to_source,
            ),
            options=replace(SMALL, records=60, old_share=0.5),
            faults_max=12,
        ),
        Scenario(
            name="ended_offline_on_3",
            faults=(f.end_flow, f.end_flow, f.newcomer, f.kill, f.freeze, f.stay_offline, f.append_to_source),
            options=replace(SMALL, records=60, old_share=0.5, is_kafka_3=True),
            faults_max=12,
        ),
        Scenario(
            name="waiting",
            faults=(f.waiting_newcomer, f.stop, f.append_to_source),
            options=Options(old_share=0.1, loses_responses=False),
            is_quiet=True,
        ),
        Scenario(
            name="clocks",
            faults=(f.waiting_newcomer, f.step_clock, f.step_clock, f.stop, f.append_to_source),
            options=Options(old_share=0.1, loses_responses=False),
            is_quiet=True,
        ),
        Scenario(
            name="slow_target",
            faults=(f.slow_down_target, f.append_to_source, f.append_to_source),
            options=Options(
                records=80,
                old_share=0.8,
                loses_responses=False,
                record_ms=20,
                coordinator_ms=100,
                transaction_timeout_ms=6_000,
            ),
            is_quiet=True,
        ),
        Scenario(
            name="growing_positions",
            faults=(f.grow_positions, f.grow_positions, f.newcomer, f.kill, f.stop, f.append_to_source),
            options=Options(old_share=0.2, gap_share=0.1),
        ),
        Scenario(
            name="lost_positions",
            faults=(f.lose_positions, f.lose_positions, f.elect, f.cut_connections, f.append_to_source),
            options=Options(old_share=0.4, gap_share=0.2, loses_responses=False),
            faults_max=5,
        ),
        Scenario(
            name="leaders",
            faults=(
                f.elect,
                f.elect,
                f.lag,
                f.lack_replicas,
                f.cut_connections,
                f.newcomer,
                f.kill,
                f.stop,
                f.append_to_source,
            ),
            options=Options(old_share=0.2, gap_share=0.1),
        ),
        Scenario(
            name="fresh_leaders",
            faults=(
                f.lack_replicas,
                f.lack_replicas,
                f.lag,
                f.elect,
                f.cut_connections,
                f.kill,
                f.append_to_source,
            ),
            faults_max=12,
        ),
        Scenario(
            name="expired_producers",
            faults=(
                f.lack_replicas,
                f.lack_replicas,
                f.lack_replicas,
                f.expire_producers,
                f.expire_producers,
                f.append_to_source,
            ),
            options=Options(old_share=0.7, gap_share=0.1),
            faults_max=16,
        ),
        Scenario(
            name="offline",
            faults=(f.go_offline, f.go_offline, f.newcomer, f.kill, f.append_to_source),
            options=Options(old_share=0.5, on_request=f.go_offline_while_completing),
        ),
        Scenario(
            name="offline_on_3",
            faults=(f.go_offline, f.go_offline, f.newcomer, f.kill, f.append_to_source),
            options=Options(old_share=0.5, is_kafka_3=True),
        ),
        Scenario(
            name="long_offline_on_3",
            faults=(f.stay_offline, f.stay_offline, f.newcomer, f.freeze, f.kill, f.append_to_source),
            options=Options(partitions=3, old_share=0.7, is_kafka_3=True),
        ),
        Scenario(
            name="sleep_with_a_spare",
            faults=(f.stay_offline, *[f.append_to_source] * 4),
            options=Options(
                partitions=3,
                old_share=1.0,
                is_kafka_3=True,
                on_request=f.return_before_spares,
                sleeps_before=_stores_with_a_spare,
            ),
            faults_max=16,
            tasks=1,
        ),
        Scenario(
            name="long_offline",
            faults=(
                f.stop_followers,
                f.lose_marker,
                f.go_offline,
                f.go_offline,
                f.newcomer,
                f.append_to_source,
            ),
            options=Options(partitions=3, old_share=0.7),
        ),
        Scenario(
            name="unavailable_partitions",
            faults=(
                f.deny,
                f.lose_leader,
                f.lose_source_leader,
                f.restart,
                f.restart,
                f.cut_connections,
                f.hold_bytes,
                f.append_to_source,
            ),
            options=Options(partitions=3, old_share=0.4, gap_share=0.1),
        ),
        Scenario(
            name="offline_internal_topics",
            faults=(
                f.lose_internal_marker,
                f.lose_marker_and_die,
                f.lose_marker_and_die,
                f.go_offline_anywhere,
                f.stop_followers_anywhere,
                f.newcomer,
                f.kill,
                f.stop,
                f.append_to_source,
            ),
            options=Options(old_share=0.5, gap_share=0.2, on_request=f.go_offline_while_completing),
        ),
        Scenario(
            name="aborted_positions",
            faults=(f.abort_positions, f.abort_positions, f.newcomer, f.append_to_source),
            options=Options(old_share=0.7, gap_share=0.1),
        ),
        Scenario(
            name="held_positions",
            faults=(
                f.lose_internal_marker,
                f.lose_marker_and_die,
                f.lose_marker_and_die,
                f.lose_leader,
                f.restart,
                f.append_to_source,
            ),
            options=Options(partitions=3, old_share=0.6),
        ),
        Scenario(
            name="offline_internal_topics_on_3",
            faults=(
                f.go_offline_anywhere,
                f.go_offline_anywhere,
                f.stay_offline_anywhere,
                f.newcomer,
                f.kill,
                f.append_to_source,
            ),
            options=Options(old_share=0.5, gap_share=0.2, is_kafka_3=True),
        ),
        Scenario(
            name="expired_ids_with_open_positions",
            faults=(
                f.lose_internal_marker,
                f.lose_marker_and_die,
                f.lose_marker_and_die,
                f.forget_ids,
                f.newcomer,
                f.append_to_source,
            ),
            options=Options(old_share=0.5, gap_share=0.1),
            faults_max=10,
        ),
        Scenario(
            name="unclean_target",
            faults=(f.elect_uncleanly, f.newcomer, f.kill, f.append_to_source),
        ),
        Scenario(
            name="unclean_target_in_transactions",
            faults=(f.elect_uncleanly, f.newcomer, f.kill, f.append_to_source),
            options=Options(old_share=0.5, gap_share=0.1),
        ),
        Scenario(
            name="unclean_long_offline",
            faults=(
                f.elect_uncleanly,
                f.stop_followers,
                f.lose_marker,
                f.go_offline,
                f.newcomer,
                f.append_to_source,
            ),
            options=Options(partitions=3, old_share=0.7, gap_share=0.1),
        ),
        Scenario(
            name="late_markers",
            faults=(
                f.hold_markers,
                f.elect_before_a_marker,
                f.elect_before_a_marker,
                f.append_to_source,
            ),
            options=Options(partitions=3, old_share=0.5, on_request=f.lose_completion),
            faults_max=16,
        ),
        Scenario(
            name="moved_partitions",
            faults=(f.elect_before_a_marker, f.newcomer, f.append_to_source),
            options=Options(old_share=0.8),
        ),
        Scenario(
            name="elections_after_spares",
            faults=(f.stop_followers, f.cut_connections, f.append_to_source),
            options=Options(partitions=3, records=60, old_share=1.0, on_request=f.elect_after_spares),
            faults_max=16,
            tasks=1,
        ),
        Scenario(
            name="undone_decisions",
            faults=(f.lose_data_marker, f.append_to_source),
            options=Options(partitions=1, records=80, old_share=0.5, on_request=f.undo_completion),
            faults_max=16,
            tasks=1,
        ),
        Scenario(
            name="unclean_on_both",
            faults=(f.elect_uncleanly, f.truncate_source, f.newcomer, f.kill, f.append_to_source),
            options=Options(old_share=0.5, gap_share=0.1),
        ),
        Scenario(
            name="source",
            faults=(
                f.truncate_source,
                f.elect_source,
                f.elect_earlier_source,
                f.compact_source,
                f.newcomer,
                f.kill,
            ),
            options=Options(old_share=0.2),
        ),
        Scenario(
            name="hours_pass",
            faults=(
                f.pass_hours,
                f.pass_hours,
                f.time_out_transactions,
                f.lack_replicas,
                f.newcomer,
                f.kill,
                f.freeze,
                f.append_to_source,
            ),
            options=Options(old_share=0.1),
        ),
        Scenario(
            name="late_old_records",
            faults=(f.pass_hours, f.pass_hours, f.newcomer, f.freeze, f.freeze),
            options=Options(old_share=0.8, delays_requests=True),
            faults_max=14,
        ),
        Scenario(
            name="short_producer_expiration",
            faults=(f.freeze_owner, f.newcomer, f.pass_seconds, f.pass_seconds, f.append_to_source),
            options=replace(SMALL, producer_expiration_ms=3_000),
        ),
        Scenario(
            name="expired_ids",
            faults=(f.forget_ids, f.forget_ids, f.cut_connections, *RACE, f.append_to_source),
        ),
        Scenario(
            name="foreign_writers",
            faults=(
                f.write_foreign,
                f.impersonate,
                f.newcomer,
                f.kill,
                f.compact,
                f.limit_batches,
                f.append_to_source,
            ),
            options=Options(old_share=0.1),
        ),
        Scenario(
            name="connections",
            faults=(
                f.cut_connections,
                f.stop_without_connections,
                f.newcomer,
                f.append_to_source,
                f.compact_source,
            ),
            options=Options(old_share=0.3, gap_share=0.1),
        ),
        Scenario(
            name="rewritten_again",
            faults=(f.elect_source, f.truncate_source, f.append_to_source),
            options=Options(on_request=f.rewrite_source_again),
        ),
        Scenario(
            name="late_end_txn",
            faults=(f.append_to_source, f.kill),
            options=Options(records=120, old_share=1.0, loss_rate=0.5, **LATE_ENDS),
            faults_max=14,
        ),
        Scenario(
            name="late_add_partitions",
            faults=(
                f.lose_internal_marker,
                f.lose_marker_and_die,
                f.lose_marker_and_die,
                f.newcomer,
                f.append_to_source,
            ),
            options=Options(
                partitions=1,
                records=80,
                old_share=1.0,
                delays_requests=True,
                loss_rate=0.2,
                loses_only=frozenset({"AddPartitionsToTxn"}),
            ),
            faults_max=14,
            tasks=1,
        ),
        Scenario(
            name="late_decisions",
            faults=(f.lose_marker, f.go_offline, f.append_to_source),
            options=Options(
                partitions=3,
                records=80,
                old_share=1.0,
                loss_rate=0.1,
                on_request=f.interrupt_completion,
                **LATE_ENDS,
            ),
            faults_max=16,
        ),
        Scenario(
            name="late_requests",
            faults=(f.cut_connections, f.newcomer, f.kill, f.stop, f.elect, f.append_to_source),
            options=Options(old_share=0.4, gap_share=0.1, delays_requests=True, loss_rate=0.1),
            faults_max=16,
        ),
        Scenario(
            name="retention",
            faults=(*[f.delete_all_records] * 4, f.kill, f.newcomer, f.newcomer, f.append_to_source),
        ),
        Scenario(
            name="idle",
            faults=(
                *[f.restart_idle] * 4,
                f.expire_producers,
                f.pass_hours,
                f.elect,
                f.append_to_source,
            ),
            options=Options(records=12, old_share=0.2, gap_share=0.1, loses_responses=False),
            is_idle=True,
        ),
        Scenario(
            name="idle_with_foreign_writers",
            faults=(*[f.restart_idle] * 3, f.write_foreign, f.append_to_source),
            options=Options(partitions=1, records=12, loses_responses=False),
            is_idle=True,
        ),
        Scenario(
            name="idle_at_the_last_epochs",
            faults=(*[f.restart_idle] * 4, f.append_to_source),
            options=Options(records=12, old_share=0.2, first_epoch=32_763, loses_responses=False),
            is_idle=True,
        ),
        Scenario(
            name="race_at_the_last_epochs",
            faults=(*RACE, f.cut_connections, f.append_to_source),
            options=replace(SMALL, first_epoch=32_763),
            tasks=3,
        ),
        Scenario(
            name="log_append_time",
            faults=(f.newcomer, f.kill, f.elect, f.lag, f.append_to_source, f.compact),
            options=Options(stamps_time=True, gap_share=0.2),
        ),
        Scenario(
            name="changing_timestamp_type",
            faults=(
                f.freeze_owner,
                f.newcomer,
                f.change_timestamp_type,
                f.expire_producers,
                f.expire_producers,
                f.append_to_source,
            ),
            options=replace(SMALL, records=40, stamps_time=True, old_share=0.4),
        ),
    )
}

_ONE = Options(partitions=1, records=10, loses_responses=False)
SMALL_WORLDS = (
    Scenario(
        name="small_takeover", faults=(f.newcomer, f.kill, f.freeze), options=_ONE, faults_max=2, tasks=1
    ),
    Scenario(
        name="small_leaders",
        faults=(f.elect, f.lag, f.lack_replicas, f.cut_connections),
        options=_ONE,
        faults_max=2,
        tasks=1,
    ),
    Scenario(
        name="small_transactions",
        faults=(f.go_offline, f.newcomer, f.kill, f.stop),
        options=replace(_ONE, old_share=0.5, gap_share=0.5),
        faults_max=2,
        tasks=1,
    ),
    Scenario(
        name="small_source",
        faults=(f.truncate_source, f.elect_source, f.kill),
        options=_ONE,
        faults_max=2,
        tasks=1,
    ),
)
