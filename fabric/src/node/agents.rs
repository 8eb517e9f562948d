//! Registration of agents of QP1 and of the subnet manager of an end port.

use super::NodeInput;
use super::gsi::{AgentEntry, AgentResource, Plane, send_gsi, send_smp};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use verbs::{MadAgent, MadHandler, MadSend, VerbsError};
use wire::Qpn;
use wire::mad::MgmtClass;

/// A registration; dropping it ends it.
struct Agent<P: Plane> {
    plane: Arc<P>,
    entry: Arc<AgentEntry>,
    is_sm: bool,
}

impl<P: Plane> MadAgent for Agent<P> {
    fn tid_high(&self) -> u32 {
        self.entry.resource.tid_high
    }
    fn send(&self, mad: MadSend) {
        if mad.remote_qpn == Qpn::SMI && (self.is_sm || self.entry.is_umad) {
            send_smp(&*self.plane, mad)
        } else {
            send_gsi(&*self.plane, mad)
        }
    }
}

impl<P: Plane> Drop for Agent<P> {
    fn drop(&mut self) {
        let core = self.plane.core();
        {
            let _registering = core.registering.lock();
            if self.is_sm {
                core.sm.store(None);
            } else {
                core.agents.rcu(|all| {
                    all.iter()
                        .filter(|a| !Arc::ptr_eq(a, &self.entry))
                        .cloned()
                        .collect::<Vec<_>>()
                });
            }
        }
        if self.is_sm {
            core.to_control(NodeInput::SmChanged);
        }
    }
}

/// See [`super::ManagementPort::register_mad_agent`].
pub(crate) fn register_mad_agent<P: Plane>(
    plane: Arc<P>,
    classes: &[MgmtClass],
    handler: Arc<dyn MadHandler>,
) -> Box<dyn MadAgent> {
    register(plane, classes, handler, false)
}

/// See [`super::ManagementPort::register_umad`].
pub(crate) fn register_umad<P: Plane>(
    plane: Arc<P>,
    handler: Arc<dyn MadHandler>,
) -> Box<dyn MadAgent> {
    register(plane, &[], handler, true)
}

fn register<P: Plane>(
    plane: Arc<P>,
    classes: &[MgmtClass],
    handler: Arc<dyn MadHandler>,
    is_umad: bool,
) -> Box<dyn MadAgent> {
    let core = plane.core();
    let tid_high = core.next_tid_high.fetch_add(1, Relaxed);
    let entry = Arc::new(AgentEntry {
        resource: AgentResource {
            tid_high,
            classes: classes.to_vec(),
        },
        handler,
        is_umad,
    });
    {
        let _registering = core.registering.lock();
        core.agents.rcu(|all| {
            all.iter()
                .cloned()
                .chain([entry.clone()])
                .collect::<Vec<_>>()
        });
    }
    Box::new(Agent {
        plane,
        entry,
        is_sm: false,
    })
}

/// See [`super::ManagementPort::register_sm`].
pub(crate) fn register_sm<P: Plane>(
    plane: Arc<P>,
    handler: Arc<dyn MadHandler>,
) -> Result<Box<dyn MadAgent>, VerbsError> {
    let core = plane.core();
    let tid_high = core.next_tid_high.fetch_add(1, Relaxed);
    let classes = vec![MgmtClass::SUBN_LID, MgmtClass::SUBN_DIRECTED];
    let entry = Arc::new(AgentEntry {
        resource: AgentResource { tid_high, classes },
        handler,
        is_umad: false,
    });
    {
        let _registering = core.registering.lock();
        if core.sm.load().is_some() {
            return Err(VerbsError::NoResources("subnet manager of this port", 1));
        }
        core.sm.store(Some(entry.clone()));
    }
    core.to_control(NodeInput::SmChanged);
    Ok(Box::new(Agent {
        plane,
        entry,
        is_sm: true,
    }))
}
