//! What the SA answers.

use wire::Lid;
use wire::mad::attr::{McMemberRecord, PathRecord};
use wire::mad::sa::ComponentMask;
use wire::mad::{AttrId, MadStatus, Method};

/// A successful answer: one record, or a table of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaResponse {
    /// GetResp, DeleteResp or GetTableResp.
    pub method: Method,
    /// Attribute of the records.
    pub attr_id: AttrId,
    /// Distance of records in a table, bytes.
    pub pitch: usize,
    /// Mask of the answer.
    pub component_mask: ComponentMask,
    /// The records: 200 bytes for a single MAD, all of them for a table.
    pub data: Vec<u8>,
}

/// A request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SaError {
    /// Nobody answered.
    #[error(
        "no answer from the SA at LID {sm_lid} after {tries} tries: is the subnet manager running and the fabric in order? (see `ipoib show fabric`, or sminfo and ibping)"
    )]
    Timeout {
        /// How often it was asked.
        tries: u32,
        /// Where the SA was.
        sm_lid: Lid,
    },
    /// The SA refused.
    #[error("the SA refused {request}: {status}: {}", advice(*.status))]
    Status {
        /// What was asked, in short.
        request: String,
        /// Its answer.
        status: MadStatus,
    },
    /// The SA's answer makes no sense.
    #[error(
        "the SA's answer to {request} cannot be used: {reason}; capture it with `ipoib capture` and look at the SM's log"
    )]
    Malformed {
        /// What was asked, in short.
        request: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Too many requests wait already.
    #[error(
        "{0} requests to the SA wait already: is the subnet manager answering? Raise the client's limit if it is"
    )]
    Overload(usize),
}

/// What to do about a status of the SA.
fn advice(status: MadStatus) -> &'static str {
    match status {
        MadStatus::SA_NO_RESOURCES => {
            "it has no room, for a multicast group: no free MLID; ask again later or use fewer groups"
        }
        MadStatus::SA_REQ_INVALID => {
            "check that the port is a member of the partition and that P_Key, Q_Key, MTU and rate agree with the group's (OpenSM's log names the component: ERR 1Bxx)"
        }
        MadStatus::SA_NO_RECORDS => {
            "nothing like that is known to it: is the other port up, and in the same partition?"
        }
        MadStatus::SA_TOO_MANY_RECORDS => {
            "more than one record fits: ask more precisely, or for a table"
        }
        MadStatus::SA_REQ_INVALID_GID => {
            "a GID is not of this subnet or not of this port: check the subnet prefix"
        }
        MadStatus::SA_REQ_INSUFFICIENT_COMPONENTS => {
            "the group does not exist and the request may not create it: create it in the SM's partition configuration (`ipoib` flag of the partition)"
        }
        MadStatus::SA_REQ_DENIED => "it is forbidden by the SM's configuration",
        status if status.is_busy() => "it is busy; ask again later",
        status if status.is_redirect() => {
            "it redirects in a circle, or to a port without naming its LID, queue pair and P_Key: look at the SA's ClassPortInfo (saquery -c)"
        }
        _ => "see IBA 13.4.7 and 15.2.2, and the SM's log",
    }
}

impl SaError {
    /// The status if the SA answered at all.
    pub fn status(&self) -> Option<MadStatus> {
        match self {
            SaError::Status { status, .. } => Some(*status),
            _ => None,
        }
    }
}

impl SaResponse {
    /// The path of a PathRecord query.
    pub fn path_record(&self) -> Option<PathRecord> {
        self.single(AttrId::PATH_RECORD).and_then(PathRecord::parse)
    }
    /// The group of an MCMemberRecord request.
    pub fn mcmember(&self) -> Option<McMemberRecord> {
        self.single(AttrId::MC_MEMBER_RECORD)
            .and_then(McMemberRecord::parse)
    }
    fn single(&self, attr_id: AttrId) -> Option<&[u8]> {
        (self.attr_id == attr_id).then_some(&self.data)
    }

    /// The records of a table, as in `response.records(NodeRecord::parse)`: as many as are whole. An SA may cut the padding of the last one.
    pub fn records<R>(&self, parse: impl Fn(&[u8]) -> Option<R>) -> Vec<R> {
        if self.pitch == 0 {
            return Vec::new();
        }
        self.data.chunks(self.pitch).map_while(parse).collect()
    }
}
