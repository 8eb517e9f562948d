//! Hosts that came by UDP and are not attached yet: who they are decides where, so they are asked.
//!
//! The question is the directed-route SubnGet(NodeInfo) that a subnet manager at the other end of the link would send. It goes out when the link
//! comes up and again until it is answered, quickly at first; hosts that cannot be attached wait for a place.

use super::site::{Attached, Refusal, Site, SwitchPort};
use crate::run::{Inbox, Machine};
use fabric::link::{Link, LinkSink};
use fabric::node::smp_packet;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use wire::mad::attr::NodeInfo;
use wire::mad::{AttrId, Method, Smp};
use wire::packet::Packet;
use wire::{Guid, Lid, Psn};

/// Questions in quick succession, and the time after each.
const QUICK: u32 = 8;
const QUICKLY: Duration = Duration::from_millis(250);
/// The time after each further one.
const SLOWLY: Duration = Duration::from_secs(5);

/// What a link delivers to until its host is attached, and through which it delivers then.
pub(super) struct Newcomer {
    source: SocketAddr,
    tid: u64,
    inbox: Inbox<Newcomers>,
    port: OnceLock<Arc<dyn LinkSink>>,
    /// State of the link. Held while it changes and while the host is attached, so that the port hears of every change.
    up: Mutex<bool>,
}

impl Newcomer {
    fn attached(&self, port: Arc<dyn LinkSink>) {
        let up = self.up.lock();
        port.link_changed(*up);
        // Set once: a host is attached once.
        let _ = self.port.set(port);
    }

    /// Port GUID in the answer, if it is that.
    fn answer(&self, packet: &Packet<'_>) -> Option<Guid> {
        let smp = Smp::parse(packet.payload).filter(|_| packet.lrh.vl == 15)?;
        let header = smp.header;
        let is_answer = smp.is_directed()
            && header.method == Method::GET_RESP
            && header.attr_id == AttrId::NODE_INFO
            && header.tid == self.tid;
        is_answer
            .then(|| NodeInfo::parse(&smp.data))?
            .map(|info| info.port_guid)
    }
}

impl LinkSink for Newcomer {
    fn receive(&self, packets: &[Packet<'_>]) {
        match self.port.get() {
            Some(port) => port.receive(packets),
            // All else that comes from a host without a port has nowhere to go.
            None => packets
                .iter()
                .filter_map(|p| self.answer(p))
                .for_each(|guid| {
                    self.inbox.put(Event::Answer(self.source, guid));
                }),
        }
    }

    fn link_changed(&self, up: bool) {
        let mut state = self.up.lock();
        *state = up;
        match self.port.get() {
            Some(port) => port.link_changed(up),
            None => {
                self.inbox.put(Event::LinkChanged(self.source, up));
            }
        }
    }
}

/// What happens to links.
pub(super) enum Event {
    New(Arc<Newcomer>, Arc<dyn Link>),
    LinkChanged(SocketAddr, bool),
    Answer(SocketAddr, Guid),
    Closed(SocketAddr),
}

struct Waiting {
    newcomer: Arc<Newcomer>,
    link: Arc<dyn Link>,
    guid: Option<Guid>,
    asked: u32,
    ask_at: Option<Instant>,
    told: Option<Refusal>,
}

/// The hosts by UDP, waiting and attached.
pub(super) struct Newcomers {
    site: Arc<Site>,
    waiting: HashMap<SocketAddr, Waiting>,
    attached: HashMap<SocketAddr, SwitchPort>,
}

impl Newcomers {
    pub(super) fn new(site: Arc<Site>) -> Newcomers {
        Newcomers {
            site,
            waiting: HashMap::new(),
            attached: HashMap::new(),
        }
    }

    /// The sink of a new link; `None` if events are lost because there are too many.
    pub(super) fn admit(
        inbox: &Inbox<Newcomers>,
        source: SocketAddr,
        link: Arc<dyn Link>,
    ) -> Option<Arc<dyn LinkSink>> {
        let newcomer = Arc::new(Newcomer {
            source,
            tid: crate::node::random(),
            inbox: inbox.clone(),
            port: OnceLock::new(),
            up: Mutex::new(false),
        });
        inbox
            .put(Event::New(newcomer.clone(), link))
            .then_some(newcomer)
    }

    fn try_to_attach(&mut self, source: SocketAddr) {
        let Some(host) = self.waiting.get_mut(&source) else {
            return;
        };
        let link = host.link.clone();
        match self.site.attach(host.guid, source.to_string(), |_| link) {
            Ok(Attached { at, sink }) => {
                tracing::info!(%source, switch = self.site.name(at), port = at.port, "link up");
                host.newcomer.attached(sink);
                self.waiting.remove(&source);
                self.attached.insert(source, at);
            }
            // Once for each reason, not each time that a place gets free for somebody else.
            Err(refusal) if host.told.as_ref() != Some(&refusal) => {
                tracing::warn!(%source, "host not attached: {refusal}");
                host.told = Some(refusal);
            }
            Err(_) => {}
        }
    }
}

impl Drop for Newcomers {
    /// The listener has ended, and with it all links.
    fn drop(&mut self) {
        self.attached.values().for_each(|at| self.site.detach(*at));
    }
}

impl Waiting {
    fn ask(&mut self, now: Instant) {
        if self.asked == QUICK {
            let source = self.newcomer.source;
            tracing::warn!(%source, "host not attached: it does not say who it is (NodeInfo)");
        }
        // By whatever port: there is no switch on this way whose ports would matter.
        let tid = self.newcomer.tid;
        let mut smp = Smp::directed(Method::GET, AttrId::NODE_INFO, 0, tid, &[1]);
        // As it is on the wire after the first hop (C14-9).
        smp.set_hop_pointer(1);
        let mad = smp.emit();
        let packet = smp_packet(&mad, Lid::PERMISSIVE, Lid::PERMISSIVE, Psn::new(self.asked));
        self.link.transmit(&[packet]);
        self.asked = self.asked.saturating_add(1);
        self.ask_at = Some(now + if self.asked < QUICK { QUICKLY } else { SLOWLY });
    }
}

impl Machine for Newcomers {
    type Input = Event;

    fn handle(&mut self, now: Instant, event: Event) {
        match event {
            Event::New(newcomer, link) => {
                let waiting = Waiting {
                    newcomer,
                    link,
                    guid: None,
                    asked: 0,
                    ask_at: None,
                    told: None,
                };
                self.waiting.insert(waiting.newcomer.source, waiting);
            }
            Event::LinkChanged(source, up) => {
                if let Some(host) = self.waiting.get_mut(&source).filter(|h| h.guid.is_none()) {
                    host.ask_at = None;
                    if up {
                        host.ask(now);
                    }
                }
            }
            Event::Answer(source, guid) => {
                if let Some(host) = self.waiting.get_mut(&source).filter(|h| h.guid.is_none()) {
                    (host.guid, host.ask_at) = (Some(guid), None);
                    self.try_to_attach(source);
                }
            }
            Event::Closed(source) => {
                self.waiting.remove(&source);
                if let Some(at) = self.attached.remove(&source) {
                    tracing::info!(%source, switch = self.site.name(at), port = at.port, "link down");
                    self.site.detach(at);
                    // Its place may be what others wait for.
                    let known = self.waiting.iter().filter(|(_, host)| host.guid.is_some());
                    let known: Vec<_> = known.map(|(source, _)| *source).collect();
                    known
                        .into_iter()
                        .for_each(|source| self.try_to_attach(source));
                }
            }
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.waiting.values().filter_map(|host| host.ask_at).min()
    }

    fn handle_timeout(&mut self, now: Instant) {
        for host in self.waiting.values_mut() {
            if host.ask_at.is_some_and(|at| at <= now) {
                host.ask(now);
            }
        }
    }
}
