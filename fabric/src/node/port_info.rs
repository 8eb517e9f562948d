//! What a Set(PortInfo) may change (IBA 14.2.5.6, 7.2.7).

use wire::mad::MadStatus;
use wire::mad::attr::{PortInfo, PortPhysicalState, PortState};
use wire::{Lid, MtuCode};

/// Value of LinkWidthEnabled and LinkSpeedEnabled that means "all supported" (IBA 14.2.5.6).
const ALL_WIDTHS: u8 = 255;
const ALL_SPEEDS: u8 = 15;
const ALL_EXTENDED_SPEEDS: u8 = 31;
const NO_EXTENDED_SPEED: u8 = 30;

/// PortInfo after a Set, or what is wrong with it: then nothing changes (IBA 14.2.5.6, 7.2.7).
pub(super) fn changed(
    old: &PortInfo,
    wanted: &PortInfo,
    is_end_port: bool,
    is_port0: bool,
) -> Result<PortInfo, MadStatus> {
    let mut new = *old;
    new.port_state = next_state(old.port_state, wanted.port_state, is_port0)?;
    new.port_physical_state = match wanted.port_physical_state {
        PortPhysicalState::NO_CHANGE => old.port_physical_state,
        // Sleep is optional and absent; the states of training are not for managers to set.
        PortPhysicalState::POLLING
            if !is_port0 && old.port_physical_state == PortPhysicalState::DISABLED =>
        {
            PortPhysicalState::POLLING
        }
        PortPhysicalState::POLLING if !is_port0 => old.port_physical_state,
        PortPhysicalState::DISABLED if !is_port0 => PortPhysicalState::DISABLED,
        _ => return Err(MadStatus::INVALID_FIELD),
    };
    new.link_width_enabled = match wanted.link_width_enabled.0 {
        0 => old.link_width_enabled,
        ALL_WIDTHS => old.link_width_supported,
        w if w & !old.link_width_supported.0 == 0 => wanted.link_width_enabled,
        _ => return Err(MadStatus::INVALID_FIELD),
    };
    new.link_speed_enabled = match wanted.link_speed_enabled {
        0 => old.link_speed_enabled,
        ALL_SPEEDS => old.link_speed_supported,
        s if s & !old.link_speed_supported == 0 => s,
        _ => return Err(MadStatus::INVALID_FIELD),
    };
    // Managers send whatever they like where no extended speed is supported.
    if old.link_speed_ext_supported != 0 {
        new.link_speed_ext_enabled = match wanted.link_speed_ext_enabled {
            0 => old.link_speed_ext_enabled,
            ALL_EXTENDED_SPEEDS => old.link_speed_ext_supported,
            NO_EXTENDED_SPEED => NO_EXTENDED_SPEED,
            s if s & !old.link_speed_ext_supported == 0 => s,
            _ => return Err(MadStatus::INVALID_FIELD),
        };
    }
    if !is_port0 {
        if wanted.neighbor_mtu.bytes().is_none() || wanted.neighbor_mtu.0 > old.mtu_cap.0 {
            // An end port without a link to speak of, and managers that leave the field out, say 0.
            if wanted.neighbor_mtu != MtuCode(0) {
                return Err(MadStatus::INVALID_FIELD);
            }
        } else {
            new.neighbor_mtu = wanted.neighbor_mtu;
        }
        match wanted.operational_vls {
            0 => {}
            vls if vls <= old.vl_cap => new.operational_vls = vls,
            _ => return Err(MadStatus::INVALID_FIELD),
        }
    }
    if matches!(wanted.link_down_default_state, 1 | 2) {
        new.link_down_default_state = wanted.link_down_default_state;
    }
    new.vl_high_limit = wanted.vl_high_limit;
    new.vl_stall_count = wanted.vl_stall_count;
    new.hoq_life = wanted.hoq_life;
    new.init_type_reply = wanted.init_type_reply;
    if !is_end_port {
        // Raw packets do not exist here, and SwitchInfo says that they are not filtered.
        new.partition_enforcement_inbound = wanted.partition_enforcement_inbound;
        new.partition_enforcement_outbound = wanted.partition_enforcement_outbound;
    }
    new.local_phy_errors = wanted.local_phy_errors;
    new.overrun_errors = wanted.overrun_errors;
    if is_end_port {
        // All 2^LMC LIDs must be unicast, and the first of them aligned.
        let span = (1u32 << wanted.lmc) - 1;
        let last = u32::from(wanted.lid.0) + span;
        if !wanted.lid.is_unicast()
            || u32::from(wanted.lid.0) & span != 0
            || last >= u32::from(Lid::MULTICAST_BASE.0)
            || !wanted.master_sm_lid.is_unicast()
        {
            return Err(MadStatus::INVALID_FIELD);
        }
        new.lid = wanted.lid;
        new.lmc = wanted.lmc;
        new.m_key = wanted.m_key;
        new.m_key_lease_period = wanted.m_key_lease_period;
        new.m_key_protect_bits = wanted.m_key_protect_bits;
        new.gid_prefix = wanted.gid_prefix;
        new.master_sm_lid = wanted.master_sm_lid;
        new.master_sm_sl = wanted.master_sm_sl;
        new.subnet_timeout = wanted.subnet_timeout;
        if wanted.m_key_violations == 0 {
            new.m_key_violations = 0;
        }
    }
    Ok(new)
}

/// The state that a manager's wish leads to (IBA 7.2.7, table of PortState changes by SubnSet).
fn next_state(old: PortState, wanted: PortState, is_port0: bool) -> Result<PortState, MadStatus> {
    match (old, wanted) {
        (_, PortState::NO_CHANGE) => Ok(old),
        // Going down is done after the answer has left.
        (_, PortState::DOWN) if !is_port0 => Ok(old),
        (PortState::INIT | PortState::ARMED, PortState::ARMED) => Ok(PortState::ARMED),
        (PortState::ARMED | PortState::ACTIVE, PortState::ACTIVE) => Ok(PortState::ACTIVE),
        // Port 0 has no link to bring up step by step.
        (PortState::INIT, PortState::ACTIVE) if is_port0 => Ok(PortState::ACTIVE),
        (PortState::ACTIVE, PortState::ARMED) if is_port0 => Ok(PortState::ACTIVE),
        _ => Err(MadStatus::INVALID_FIELD),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extended_speeds_are_chosen_among_those_supported() {
        let old = PortInfo {
            port_state: PortState::INIT,
            mtu_cap: MtuCode::MTU_4096,
            link_speed_ext_supported: 3,
            link_speed_ext_enabled: 1,
            ..PortInfo::default()
        };
        let set = |old: &PortInfo, enabled| {
            let wanted = PortInfo {
                link_speed_ext_enabled: enabled,
                ..PortInfo::default()
            };
            changed(old, &wanted, false, false).map(|new| new.link_speed_ext_enabled)
        };
        assert_eq!(
            [0, 2, 30, 31].map(|e| set(&old, e)),
            [Ok(1), Ok(2), Ok(30), Ok(3)]
        );
        assert_eq!(set(&old, 4), Err(MadStatus::INVALID_FIELD));
        let none = PortInfo {
            link_speed_ext_supported: 0,
            link_speed_ext_enabled: 0,
            ..old
        };
        assert_eq!(set(&none, 31), Ok(0));
    }
}
