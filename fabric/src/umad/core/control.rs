//! Control requests: what a client wants to know of its port, and that it is the subnet manager there.

use super::transactions::Asked;
use super::{Core, Peer, Sockets};
use crate::umad::protocol::{ClientInfo, Ctl};
use std::time::Instant;
use wire::mad::attr::NodeInfo;
use wire::mad::{AttrId, MadBytes, Method, Smp};

impl Core {
    /// A datagram of a control socket.
    pub(in crate::umad) fn control(
        &mut self,
        now: Instant,
        peer: Peer,
        bytes: &[u8],
        sockets: &mut dyn Sockets,
    ) {
        let Some(ctl) = Ctl::parse(bytes) else {
            return self.counters.rx_bad_control.add(1);
        };
        if ctl.kind == Ctl::CONNECT {
            let answer = self.connect(now, &peer, ClientInfo::parse(&ctl.data), sockets);
            return self.answer(&peer, &ctl, answer, sockets);
        }
        let id = ctl.client;
        let Some(client) = self.clients.get_mut(&id).filter(|c| c.peer == peer) else {
            self.counters.rx_unknown_client.add(1);
            return self.answer(&peer, &ctl, None, sockets);
        };
        client.heard = now;
        let attributes = self.nodes[client.node].port.attributes();
        let gid = attributes.gid();
        let mut data = [0; 64];
        match ctl.kind {
            Ctl::DISCONNECT => {
                self.answer(&peer, &ctl, Some(data), sockets);
                self.gone(id, sockets);
                return;
            }
            Ctl::GET_PORT => {
                data[..2].copy_from_slice(&attributes.lid.0.to_ne_bytes());
                data[2] = attributes.state.0;
            }
            Ctl::GET_GID => data[..16].copy_from_slice(&gid.0),
            Ctl::GET_GUID => data[..8].copy_from_slice(&gid.0[8..]),
            Ctl::GET_VENDOR | Ctl::GET_NODEINFO => {
                return self.query(now, id, ctl, AttrId::NODE_INFO, 0, sockets);
            }
            Ctl::GET_PORTINFO => {
                let port = ctl.data[0].into();
                return self.query(now, id, ctl, AttrId::PORT_INFO, port, sockets);
            }
            Ctl::GET_PKEYS => {
                return self.query(now, id, ctl, AttrId::P_KEY_TABLE, 0, sockets);
            }
            Ctl::SET_ISSM => {
                let on = ctl.data[..4] != [0; 4];
                let done = self.set_sm(id, on, sockets);
                return self.answer(&peer, &ctl, done.then_some(data), sockets);
            }
            _ => return self.answer(&peer, &ctl, None, sockets),
        }
        self.answer(&peer, &ctl, Some(data), sockets);
    }

    pub(super) fn answer(
        &self,
        peer: &Peer,
        ctl: &Ctl,
        data: Option<[u8; 64]>,
        sockets: &mut dyn Sockets,
    ) {
        let answer = match data {
            Some(data) => Ctl { data, ..*ctl },
            None => {
                self.counters.control_refused.add(1);
                Ctl {
                    kind: Ctl::ERROR,
                    ..*ctl
                }
            }
        };
        sockets.send_control(peer, &answer.emit());
    }

    /// Answers a control request by asking the node's SMA, whatever M_Key it has: `ib_umad` knows these things from the driver.
    fn query(
        &mut self,
        now: Instant,
        id: u32,
        ctl: Ctl,
        attr: AttrId,
        modifier: u32,
        sockets: &mut dyn Sockets,
    ) {
        let smp = Smp::lid_routed(Method::GET, attr, modifier, 0);
        let mad = Box::new(smp.emit());
        self.transact(now, id, Asked::Control(ctl), mad, sockets);
    }
}

/// What the SMA's response says to who asked for it by `ctl`; `None` if it is an error.
pub(super) fn content(ctl: &Ctl, response: &MadBytes) -> Option<[u8; 64]> {
    let smp = Smp::parse(&response[..]).filter(|smp| smp.status().is_ok())?;
    Some(match ctl.kind {
        Ctl::GET_VENDOR => vendor(&smp.data),
        _ => smp.data,
    })
}

/// NodeInfo as an answer to [`Ctl::GET_VENDOR`]: u32 vendor, part and hardware version, u64 firmware version.
fn vendor(node_info: &[u8; 64]) -> [u8; 64] {
    let info = NodeInfo::parse(node_info).unwrap_or_default();
    let mut data = [0; 64];
    data[..4].copy_from_slice(&info.vendor_id.to_ne_bytes());
    data[4..8].copy_from_slice(&u32::from(info.device_id).to_ne_bytes());
    data[8..12].copy_from_slice(&info.revision.to_ne_bytes());
    data[16..24].copy_from_slice(&1u64.to_ne_bytes());
    data
}
