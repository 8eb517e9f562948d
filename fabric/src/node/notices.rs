//! Which traps a node sends (IBA 14.2.5.1) and what they say; [`super::traps`] repeats them.

use super::DropReason;
use super::control::{NodeControl, NodePlane};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;
use verbs::MadReceived;
use wire::mad::Smp;
use wire::mad::attr::{
    BadKey, BadMKey, CapabilityChange, Notice, NoticeType, ProducerType, SwitchBadPKey, TrapNumber,
};
use wire::packet::Packet;
use wire::{Gid, Lid, PKey, Qpn, ServiceLevel};

/// What traps 257 to 259 tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyViolation {
    port: u8,
    is_q_key: bool,
    slid: Lid,
    dlid: Lid,
    key: u32,
    sl: ServiceLevel,
    src_qp: Qpn,
    dest_qp: Qpn,
    gids: Option<(Gid, Gid)>,
}

impl KeyViolation {
    pub(crate) fn new(packet: &Packet<'_>, port: u8, is_q_key: bool) -> Self {
        let deth = packet.ext.deth.unwrap_or_default();
        KeyViolation {
            port,
            is_q_key,
            slid: packet.lrh.slid,
            dlid: packet.lrh.dlid,
            key: if is_q_key {
                deth.q_key.0
            } else {
                u32::from(packet.bth.p_key.0)
            },
            sl: packet.lrh.sl,
            src_qp: deth.src_qp,
            dest_qp: packet.bth.dest_qp,
            gids: packet.grh.map(|g| (g.sgid, g.dgid)),
        }
    }
}

impl<P: NodePlane> NodeControl<P> {
    /// Trap 128 and SwitchInfo:PortStateChange: for what the link did by itself, not for what the manager set (IBA 14.2.5.4).
    pub(super) fn link_state_changed(&mut self, now: Instant) {
        self.extra.link_state_changed();
        if self.core().smi.is_switch {
            self.raise(
                now,
                Notice::link_state_change(self.sma.end().info.lid),
                false,
            );
        }
    }

    /// Trap 144.
    pub(super) fn capability_changed(&mut self, now: Instant, description: bool) {
        let info = &self.sma.end().info;
        let change = CapabilityChange {
            lid: info.lid,
            local_changes: description,
            capability_mask: info.capability_mask,
            change_flags: u8::from(description),
            ..CapabilityChange::default()
        };
        let producer_type = self.producer();
        self.raise(
            now,
            Notice {
                producer_type,
                ..Notice::capability_change(change)
            },
            false,
        );
    }

    fn producer(&self) -> ProducerType {
        if self.core().smi.is_switch {
            ProducerType::SWITCH
        } else {
            ProducerType::CA
        }
    }

    /// Without a manager that could be told there is nothing to send: its first sweep sees all.
    pub(super) fn raise(&mut self, now: Instant, notice: Notice, violation: bool) {
        let info = &self.sma.end().info;
        if info.lid == Lid::UNSET || info.master_sm_lid == Lid::UNSET {
            return;
        }
        let kept = if violation {
            self.traps.raise_violation(now, notice)
        } else {
            self.traps.raise(now, notice)
        };
        if !kept {
            self.core().drops.count(DropReason::TrapUnanswered);
        }
    }

    fn security_notice(&self, trap_number: TrapNumber, data_details: [u8; 54]) -> Notice {
        Notice {
            is_generic: true,
            notice_type: NoticeType::SECURITY,
            producer_type: self.producer(),
            trap_number,
            issuer_lid: self.sma.end().info.lid,
            data_details,
            ..Notice::default()
        }
    }

    pub(super) fn key_violation(&mut self, now: Instant, v: KeyViolation) {
        if let Some(port) = self.core().ports.get(usize::from(v.port)) {
            port.violation_reported.store(false, Relaxed);
        }
        let (gid1, gid2) = v.gids.unwrap_or_default();
        let notice = if v.port == self.core().end_port {
            let details = BadKey {
                lid1: v.slid,
                lid2: v.dlid,
                key: v.key,
                sl: v.sl,
                qp1: v.src_qp,
                qp2: v.dest_qp,
                gid1,
                gid2,
            };
            self.security_notice(
                if v.is_q_key {
                    TrapNumber::BAD_Q_KEY
                } else {
                    TrapNumber::BAD_P_KEY
                },
                details.emit(),
            )
        } else {
            let details = SwitchBadPKey {
                // Which fields are valid: LIDs, P_Key, SL, QPs (bits 0 to 5), GIDs (6, 7) as far as there was a GRH.
                data_valid: if v.gids.is_some() { 0xff } else { 0x3f },
                lid1: v.slid,
                lid2: v.dlid,
                p_key: PKey(v.key as u16),
                sl: v.sl,
                qp1: v.src_qp,
                qp2: v.dest_qp,
                gid1,
                gid2,
                switch_lid: self.sma.end().info.lid,
                port_num: v.port,
            };
            self.security_notice(TrapNumber::SWITCH_BAD_P_KEY, details.emit())
        };
        self.raise(now, notice, true);
    }

    pub(super) fn bad_m_key(&mut self, now: Instant, mad: &MadReceived, smp: &Smp) {
        let directed = smp.is_directed();
        let hops = smp.hop_count();
        let mut dr_return_path = [0; 30];
        if directed {
            dr_return_path.copy_from_slice(&smp.return_path[..30]);
        }
        let details = BadMKey {
            lid: mad.slid,
            dr_slid: if directed { smp.dr_slid } else { Lid::UNSET },
            method: smp.header.method,
            attr_id: smp.header.attr_id,
            attr_mod: smp.header.attr_mod,
            m_key: smp.m_key,
            dr_notice: directed,
            dr_path_truncated: directed && hops > 30,
            dr_hop_count: if directed { hops.min(30) } else { 0 },
            dr_return_path,
        };
        let notice = self.security_notice(TrapNumber::BAD_M_KEY, details.emit());
        self.raise(now, notice, true);
    }
}
