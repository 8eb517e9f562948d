//! Why a join failed, in words.

use wire::mad::MadStatus;
use wire::mad::attr::{McMemberRecord, mcmember};
use wire::mad::sa::ComponentMask;

/// A request to the SA for a membership failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// The SA did not answer.
    #[error("the SA did not answer")]
    NoAnswer,
    /// The SA refused.
    #[error("SA said {0}")]
    Refused(MadStatus),
    /// The SA's answer cannot be used.
    #[error("unusable answer of the SA: {0}")]
    Unusable(&'static str),
    /// The queue pair could not be attached.
    #[error("cannot attach the queue pair: {0}")]
    Attach(String),
}

impl JoinError {
    /// The SA understood and will not: the membership does not exist. Otherwise it may, and waiting may help.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, JoinError::Refused(status) if !status.is_busy() && *status != MadStatus::SA_NO_RESOURCES)
    }
}

/// What was asked, what was answered, and what to look at.
pub(crate) fn explain(record: &McMemberRecord, mask: ComponentMask, error: &JoinError) -> String {
    let mut text = format!(
        "asked {} of {} with P_Key {}",
        record.join_state, record.mgid, record.p_key
    );
    if mask.contains(mcmember::CREATE) {
        text += &format!(
            ", Q_Key {}, MTU {}, rate {}, SL {}, created if need be",
            record.q_key, record.mtu, record.rate, record.sl.0
        );
    }
    text += &format!("; {error}");
    let advice = match error {
        JoinError::NoAnswer => "is a subnet manager running?",
        JoinError::Refused(MadStatus::SA_NO_RESOURCES) => "the SA has no free multicast LID",
        JoinError::Refused(MadStatus::SA_REQ_INVALID) if mask.contains(mcmember::CREATE) => {
            "is the port in the partition, and does the group exist with another Q_Key, MTU, rate or SL?"
        }
        JoinError::Refused(MadStatus::SA_REQ_INVALID) => {
            "is the port in the partition, and does the group exist?"
        }
        JoinError::Refused(
            MadStatus::SA_REQ_INSUFFICIENT_COMPONENTS | MadStatus::SA_NO_RECORDS,
        ) => {
            "the group does not exist: give the partition the ipoib flag in the subnet manager's configuration, or let this interface create it"
        }
        JoinError::Refused(MadStatus::SA_REQ_INVALID_GID) => {
            "the port's subnet prefix is not the subnet's"
        }
        JoinError::Refused(MadStatus::SA_REQ_DENIED) => {
            "the subnet manager's configuration forbids it"
        }
        _ => return text,
    };
    text + ": " + advice
}

/// In which parameters a group differs from the broadcast group, which all groups should follow (RFC 4391 section 10).
pub(crate) fn mismatch(group: &McMemberRecord, broadcast: &McMemberRecord) -> Option<String> {
    let mut parts = Vec::new();
    if group.q_key != broadcast.q_key {
        parts.push(format!(
            "Q_Key {} instead of {}",
            group.q_key, broadcast.q_key
        ));
    }
    if group.mtu != broadcast.mtu {
        parts.push(format!("MTU {} instead of {}", group.mtu, broadcast.mtu));
    }
    if group.rate != broadcast.rate {
        parts.push(format!("rate {} instead of {}", group.rate, broadcast.rate));
    }
    if group.sl != broadcast.sl {
        parts.push(format!("SL {} instead of {}", group.sl.0, broadcast.sl.0));
    }
    (!parts.is_empty()).then(|| {
        format!(
            "joined, but the group exists with {}: another program created it?",
            parts.join(", ")
        )
    })
}
