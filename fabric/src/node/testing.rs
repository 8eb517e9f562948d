//! Test harness: nodes driven from one thread in virtual time, and a subnet manager of a few lines that knows nothing but MADs.

use super::{ManagementPort, NodeControl, NodeInput, NodePlane};
use crate::hca::{Hca, HcaConfig};
use crate::link::local::{LocalCable, connect};
use crate::switch::{Switch, SwitchConfig};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use verbs::{MadAgent, MadReceived, MadSend};
use wire::mad::attr::{PortInfo, PortState, SwitchInfo};
use wire::mad::{AttrId, Method, Smp};
use wire::packet::{Bth, Deth, Extended, Lrh, Opcode, Packet};
use wire::{Guid, Lid, PKey, QKey, Qpn, ServiceLevel};

/// A datagram of LID `slid` for `dlid`.
pub(crate) fn datagram(slid: Lid, dlid: Lid, payload: &[u8]) -> Packet<'_> {
    Packet {
        lrh: Lrh {
            slid,
            dlid,
            ..Lrh::default()
        },
        bth: Bth {
            opcode: Opcode::UD_SEND_ONLY,
            p_key: PKey::DEFAULT_FULL,
            dest_qp: Qpn(0x48),
            ..Bth::default()
        },
        ext: Extended {
            deth: Some(Deth {
                q_key: QKey(0xb1b),
                src_qp: Qpn(0x48),
            }),
            ..Extended::default()
        },
        payload,
        ..Packet::default()
    }
}

trait Control {
    fn handle(&mut self, now: Instant, input: NodeInput);
    fn poll_timeout(&self) -> Option<Instant>;
    fn handle_timeout(&mut self, now: Instant);
}

impl<P: NodePlane> Control for NodeControl<P> {
    fn handle(&mut self, now: Instant, input: NodeInput) {
        NodeControl::handle(self, now, input)
    }
    fn poll_timeout(&self) -> Option<Instant> {
        NodeControl::poll_timeout(self)
    }
    fn handle_timeout(&mut self, now: Instant) {
        NodeControl::handle_timeout(self, now)
    }
}

/// Nodes and their controls.
pub(crate) struct Net {
    pub(crate) now: Instant,
    /// The same, for the HCAs.
    clock: Arc<Mutex<Instant>>,
    queue: Arc<Mutex<VecDeque<(usize, NodeInput)>>>,
    controls: Vec<Box<dyn Control>>,
    pub(crate) cables: Vec<LocalCable>,
}

impl Net {
    pub(crate) fn new() -> Net {
        let now = Instant::now();
        Net {
            now,
            clock: Arc::new(Mutex::new(now)),
            queue: Arc::default(),
            controls: Vec::new(),
            cables: Vec::new(),
        }
    }

    fn sink(&self) -> crate::link::ControlSink<NodeInput> {
        let (queue, index) = (self.queue.clone(), self.controls.len());
        Box::new(move |input| {
            queue.lock().push_back((index, input));
            true
        })
    }

    pub(crate) fn hca(&mut self, guid: u64) -> Arc<Hca> {
        let (hca, control) = Hca::new(HcaConfig::new(Guid(guid), "test HCA"), self.sink());
        let clock = self.clock.clone();
        hca.set_clock(move || *clock.lock());
        self.controls.push(Box::new(control));
        hca
    }

    pub(crate) fn switch(&mut self, guid: u64, ports: u8) -> Arc<Switch> {
        let (switch, control) = Switch::new(
            SwitchConfig {
                guid: Guid(guid),
                description: "test switch".into(),
                ports,
            },
            self.sink(),
        );
        self.controls.push(Box::new(control));
        switch
    }

    pub(crate) fn cable(&mut self, hca: &Arc<Hca>, switch: &Arc<Switch>, port: u8) {
        self.cables.push(connect(
            (hca.clone(), |l| hca.attach_link(l)),
            (switch.port(port), |l| switch.attach_link(port, l)),
        ));
        self.run();
    }

    /// Gives an input to the control of the node that was made as number `index`, from 0.
    pub(crate) fn input(&mut self, index: usize, input: NodeInput) {
        self.queue.lock().push_back((index, input));
        self.run();
    }

    /// Until nothing is queued.
    pub(crate) fn run(&mut self) {
        loop {
            let Some((index, input)) = self.queue.lock().pop_front() else {
                return;
            };
            self.controls[index].handle(self.now, input);
        }
    }

    /// Lets time pass, with every timeout on the way.
    pub(crate) fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        self.run();
        while let Some(due) = self
            .controls
            .iter()
            .filter_map(|c| c.poll_timeout())
            .min()
            .filter(|t| *t <= end)
        {
            let now = self.now.max(due);
            self.set_now(now);
            self.controls
                .iter_mut()
                .filter(|c| c.poll_timeout().is_some_and(|t| t <= now))
                .for_each(|c| c.handle_timeout(now));
            self.run();
        }
        self.set_now(end);
    }

    fn set_now(&mut self, now: Instant) {
        self.now = now;
        *self.clock.lock() = now;
    }
}

/// The least subnet manager.
pub(crate) struct Manager {
    pub(crate) agent: Box<dyn MadAgent>,
    pub(crate) inbox: Arc<Mutex<VecDeque<MadReceived>>>,
    tid: u64,
    pub(crate) m_key: u64,
}

pub(crate) fn smp_send(smp: &Smp, dlid: Lid) -> MadSend {
    let mad = Box::new(smp.emit());
    MadSend {
        dlid,
        sl: ServiceLevel(0),
        remote_qpn: Qpn::SMI,
        q_key: QKey(0),
        p_key: PKey::DEFAULT_FULL,
        grh: None,
        mad,
    }
}

impl Manager {
    pub(crate) fn new(port: &dyn ManagementPort) -> Manager {
        let inbox: Arc<Mutex<VecDeque<MadReceived>>> = Arc::default();
        let into = inbox.clone();
        let agent = port
            .register_sm(Arc::new(move |mad| into.lock().push_back(mad)))
            .expect("no other manager in this test");
        Manager {
            agent,
            inbox,
            tid: 0,
            m_key: 0,
        }
    }

    /// Sends a request along `path` and returns the answer.
    pub(crate) fn directed(
        &mut self,
        net: &mut Net,
        path: &[u8],
        method: Method,
        attr: AttrId,
        modifier: u32,
        data: &[u8],
    ) -> Option<Smp> {
        self.tid += 1;
        let smp = Smp {
            m_key: self.m_key,
            ..Smp::directed(method, attr, modifier, self.tid, path).with_data(data)
        };
        self.ask(net, smp, Lid::PERMISSIVE)
    }

    /// The same by LID.
    pub(crate) fn by_lid(
        &mut self,
        net: &mut Net,
        lid: Lid,
        method: Method,
        attr: AttrId,
        modifier: u32,
        data: &[u8],
    ) -> Option<Smp> {
        self.tid += 1;
        let smp = Smp {
            m_key: self.m_key,
            ..Smp::lid_routed(method, attr, modifier, self.tid).with_data(data)
        };
        self.ask(net, smp, lid)
    }

    fn ask(&mut self, net: &mut Net, smp: Smp, dlid: Lid) -> Option<Smp> {
        self.agent.send(smp_send(&smp, dlid));
        net.run();
        let mut inbox = self.inbox.lock();
        let at = inbox.iter().position(|m| {
            Smp::parse(&m.mad[..])
                .is_some_and(|a| a.header.tid == smp.header.tid && a.header.method.is_response())
        })?;
        inbox.remove(at).and_then(|m| Smp::parse(&m.mad[..]))
    }

    pub(crate) fn port_info(&mut self, net: &mut Net, path: &[u8], port: u8) -> PortInfo {
        let answer = self
            .directed(net, path, Method::GET, AttrId::PORT_INFO, port.into(), &[])
            .expect("PortInfo answered");
        PortInfo::parse(&answer.data).expect("PortInfo is 64 bytes")
    }

    /// Changes PortInfo; returns the whole answer.
    pub(crate) fn set_port(
        &mut self,
        net: &mut Net,
        path: &[u8],
        port: u8,
        change: impl FnOnce(&mut PortInfo),
    ) -> Smp {
        let mut info = self.port_info(net, path, port);
        info.port_state = PortState::NO_CHANGE;
        info.port_physical_state = Default::default();
        change(&mut info);
        self.directed(
            net,
            path,
            Method::SET,
            AttrId::PORT_INFO,
            port.into(),
            &info.emit(),
        )
        .expect("Set(PortInfo) answered")
    }

    /// Arms and activates a port.
    pub(crate) fn activate(&mut self, net: &mut Net, path: &[u8], port: u8) {
        for state in [PortState::ARMED, PortState::ACTIVE] {
            let answer = self.set_port(net, path, port, |i| i.port_state = state);
            assert!(
                answer.status().is_ok(),
                "{state} on {path:?} port {port}: {}",
                answer.status()
            );
        }
    }
}

/// Three HCAs on ports 1 to 3 of a switch, LIDs 1 to 3, switch LID 10, the manager at LID 1, all Active.
pub(crate) struct Star {
    pub(crate) net: Net,
    pub(crate) hcas: Vec<Arc<Hca>>,
    pub(crate) switch: Arc<Switch>,
    pub(crate) sm: Manager,
}

pub(crate) const SWITCH_LID: Lid = Lid(10);
/// Nothing that a few changed bytes make by chance.
pub(crate) const M_KEY: u64 = 0x0707_0707_0707_0707;

impl Star {
    /// Connected, but nothing configured.
    pub(crate) fn bare() -> Star {
        let mut net = Net::new();
        let switch = net.switch(0x20_0000, 8);
        let hcas: Vec<_> = (0..3).map(|i| net.hca(0x10_0000 + i * 0x10)).collect();
        for (hca, port) in hcas.iter().zip(1..) {
            net.cable(hca, &switch, port);
        }
        let sm = Manager::new(&*hcas[0]);
        net.run();
        Star {
            net,
            hcas,
            switch,
            sm,
        }
    }

    pub(crate) fn up() -> Star {
        let mut star = Star::bare();
        let Star { net, sm, .. } = &mut star;
        let lid = |lid: u16| {
            move |i: &mut PortInfo| {
                i.lid = Lid(lid);
                i.master_sm_lid = Lid(1);
            }
        };
        for (path, n) in [(&[][..], 1), (&[1, 2][..], 2), (&[1, 3][..], 3)] {
            assert!(sm.set_port(net, path, 1, lid(n)).status().is_ok());
        }
        assert!(
            sm.set_port(net, &[1], 0, lid(SWITCH_LID.0))
                .status()
                .is_ok()
        );
        let info = SwitchInfo {
            linear_fdb_top: SWITCH_LID.0,
            ..SwitchInfo::default()
        };
        let (set, attr) = (Method::SET, AttrId::SWITCH_INFO);
        sm.directed(net, &[1], set, attr, 0, &info.emit())
            .expect("SwitchInfo answered");
        let mut lft = [255; 64];
        lft[1..4].copy_from_slice(&[1, 2, 3]);
        lft[usize::from(SWITCH_LID.0)] = 0;
        let answer = sm
            .directed(
                net,
                &[1],
                Method::SET,
                AttrId::LINEAR_FORWARDING_TABLE,
                0,
                &lft,
            )
            .expect("LFT answered");
        assert_eq!(answer.data, lft);
        for port in 0..4 {
            sm.activate(net, &[1], port);
        }
        for path in [&[][..], &[1, 2], &[1, 3]] {
            sm.activate(net, path, 1);
        }
        star
    }

    /// Gives the HCA of LID 2 and the switch the [`M_KEY`], which the manager knows from then on.
    pub(crate) fn protect(&mut self, level: u8) {
        let Star { net, sm, .. } = self;
        for (path, port) in [(&[1, 2][..], 1), (&[1], 0)] {
            sm.set_port(net, path, port, |i| {
                (i.m_key, i.m_key_protect_bits) = (M_KEY, level)
            });
        }
        sm.m_key = M_KEY;
    }

    /// All that a manager can set at the HCA of LID 2 and at the switch.
    pub(crate) fn state(&mut self) -> Vec<[u8; 64]> {
        let Star { net, sm, .. } = self;
        let mut all = Vec::new();
        let mut get = |path: &[u8], attr, modifier| {
            let answer = sm.directed(net, path, Method::GET, attr, modifier, &[]);
            let mut data = answer.expect("an answer to who has the key").data;
            if attr == AttrId::PORT_INFO {
                // Violations count, and only they.
                data[44..50].fill(0);
            }
            all.push(data);
        };
        for path in [&[1, 2][..], &[1]] {
            let common = [
                (AttrId::NODE_DESCRIPTION, 0),
                (AttrId::NODE_INFO, 0),
                (AttrId::GUID_INFO, 0),
                (AttrId::PORT_INFO, 1),
                (AttrId::P_KEY_TABLE, 0),
                (AttrId::SL_TO_VL_MAPPING_TABLE, 0),
                (AttrId::VL_ARBITRATION_TABLE, 1 << 16 | 1),
                (AttrId::LED_INFO, 0),
            ];
            common
                .into_iter()
                .for_each(|(attr, modifier)| get(path, attr, modifier));
        }
        for (attr, modifier) in [
            (AttrId::SWITCH_INFO, 0),
            (AttrId::PORT_INFO, 0),
            (AttrId::PORT_INFO, 2),
            (AttrId::LINEAR_FORWARDING_TABLE, 0),
            (AttrId::MULTICAST_FORWARDING_TABLE, 0),
        ] {
            get(&[1], attr, modifier);
        }
        all
    }
}
