from mirrorflow_core.switchover.states import AT_REST, ENDING, FENCED, FINAL, LEGAL, PROMOTED, SwitchoverState


def reachable(states):
    while (more := states | {after for state in states for after in LEGAL[state]}) != states:
        states = more
    return states


def test_each_state_has_its_successors():
    assert set(LEGAL) == set(SwitchoverState)


def test_final_states_have_no_successor():
    assert {state for state, after in LEGAL.items() if not after} == FINAL
    assert AT_REST - FINAL == {SwitchoverState.DEGRADED}


def test_each_state_before_promoting_can_be_rolled_back():
    assert all(SwitchoverState.ROLLING_BACK in LEGAL[state] for state in FENCED | ENDING)


def test_no_state_after_promotion_leads_to_a_rollback():
    assert reachable(PROMOTED) == PROMOTED


def test_each_state_is_reachable():
    assert reachable({SwitchoverState.ACCEPTED}) == set(SwitchoverState)


def test_each_fenced_state_can_return_to_fencing():
    assert all(SwitchoverState.FENCING in LEGAL[state] for state in FENCED - {SwitchoverState.FENCING})
