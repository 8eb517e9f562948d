//! Where requests go, and redirection: a class manager may name another port that serves its class (IBA 13.5.2).

use super::SmAddress;
use verbs::MadSend;
use wire::mad::attr::ClassPortInfo;
use wire::mad::{AttrId, SaMad};
use wire::{Lid, PKey, QKey, Qpn, ServiceLevel};

/// Redirections that one request follows: more of them are a circle.
pub(super) const MAX_REDIRECTS: u8 = 4;

/// The queue pair that requests are sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) lid: Lid,
    sl: ServiceLevel,
    p_key: PKey,
    qpn: Qpn,
    q_key: QKey,
}

impl From<SmAddress> for Place {
    fn from(sm: SmAddress) -> Self {
        Place {
            lid: sm.lid,
            sl: sm.sl,
            p_key: sm.p_key,
            qpn: Qpn::GSI,
            q_key: QKey::GSI,
        }
    }
}

impl Place {
    /// Where the ClassPortInfo in `mad` redirects to. `None`: nowhere, or by GID alone, which takes the very SA that is not here to find a path.
    pub(super) fn redirected(mad: &SaMad) -> Option<Place> {
        let info = ClassPortInfo::parse(&mad.data)?;
        let usable = info.redirect_lid.is_unicast()
            && info.redirect_qp != Qpn::SMI
            && info.redirect_p_key.base() != 0;
        usable.then_some(Place {
            lid: info.redirect_lid,
            sl: info.redirect_sl,
            p_key: info.redirect_p_key,
            qpn: info.redirect_qp,
            q_key: info.redirect_q_key,
        })
    }

    /// `mad` on its way there.
    pub(super) fn send(&self, mad: &SaMad) -> MadSend {
        MadSend {
            dlid: self.lid,
            sl: self.sl,
            remote_qpn: self.qpn,
            q_key: self.q_key,
            p_key: self.p_key,
            grh: None,
            mad: Box::new(mad.emit()),
        }
    }
}

/// Does `mad` say that another place serves this class: "ask there", or a ClassPortInfo that names one?
pub(super) fn is_redirect(mad: &SaMad) -> bool {
    mad.header.status.is_redirect()
        || (mad.header.status.is_ok() && mad.header.attr_id == AttrId::CLASS_PORT_INFO)
}
