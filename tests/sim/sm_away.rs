//! sm_away
