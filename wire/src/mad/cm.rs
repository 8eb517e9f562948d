//! Communication management messages (IBA 12.6): what opens and closes connections. Class ComMgt, method Send; the message type is the
//! attribute ID.

use super::{AttrId, CM_DATA_OFFSET, MadBytes, MadHeader, Method, MgmtClass, put};
use crate::bits::{newtype_field, record};
use crate::id::{Gid, Guid, Lid, MtuCode, PKey, Psn, QKey, Qpn, RateCode, ServiceLevel};
use crate::mad::names::named;
use std::fmt;

/// Which service a connection is to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ServiceId(pub u64);

/// Why a REJ (IBA 12.6.7.2, table 108).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct RejectReason(pub u16);

/// Which message a REJ or MRA is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct AboutMessage(pub u8);

newtype_field!(ServiceId(u64), RejectReason(u16), AboutMessage(u8));

named!(RejectReason(u16) {
    NO_QP = 1 "no QP available";
    NO_EEC = 2 "no EEC available";
    NO_RESOURCES = 3 "no resources available";
    TIMEOUT = 4 "timeout";
    UNSUPPORTED = 5 "unsupported request";
    INVALID_COMM_ID = 6 "invalid communication ID";
    INVALID_COMM_INSTANCE = 7 "invalid communication instance";
    INVALID_SERVICE_ID = 8 "invalid service ID";
    INVALID_TRANSPORT_TYPE = 9 "invalid transport service type";
    STALE_CONN = 10 "stale connection";
    RDC_NOT_EXIST = 11 "RDC does not exist";
    INVALID_GID = 12 "primary remote port GID rejected";
    INVALID_LID = 13 "primary remote port LID rejected";
    INVALID_SL = 14 "invalid primary SL";
    INVALID_TRAFFIC_CLASS = 15 "invalid primary traffic class";
    INVALID_HOP_LIMIT = 16 "invalid primary hop limit";
    INVALID_PACKET_RATE = 17 "invalid primary packet rate";
    INVALID_ALT_GID = 18 "alternate remote port GID rejected";
    INVALID_ALT_LID = 19 "alternate remote port LID rejected";
    INVALID_ALT_SL = 20 "invalid alternate SL";
    INVALID_ALT_TRAFFIC_CLASS = 21 "invalid alternate traffic class";
    INVALID_ALT_HOP_LIMIT = 22 "invalid alternate hop limit";
    INVALID_ALT_PACKET_RATE = 23 "invalid alternate packet rate";
    PORT_CM_REDIRECT = 24 "port and CM redirection";
    PORT_REDIRECT = 25 "port redirection";
    INVALID_MTU = 26 "invalid path MTU";
    INSUFFICIENT_RESP_RESOURCES = 27 "insufficient responder resources";
    CONSUMER_DEFINED = 28 "consumer reject";
    INVALID_RNR_RETRY = 29 "RNR retry count reject";
    DUPLICATE_LOCAL_COMM_ID = 30 "duplicate local communication ID";
    INVALID_CLASS_VERSION = 31 "invalid class version";
    INVALID_FLOW_LABEL = 32 "invalid primary flow label";
    INVALID_ALT_FLOW_LABEL = 33 "invalid alternate flow label";
});

named!(AboutMessage(u8) {
    REQ = 0 "REQ";
    REP = 1 "REP";
    OTHER = 2 "other";
});

impl ServiceId {
    /// Connected mode to the interface whose UD queue pair is `qpn`, as RFC 4755 section 3.5 has it.
    pub const fn ipoib_rfc(qpn: Qpn) -> Self {
        ServiceId(0x0100_0000_0000_0000 | qpn.0 as u64)
    }
    /// The same as Linux has it (`ipoib_cm.c`, `IPOIB_CM_IETF_ID`): what real peers listen on.
    pub const fn ipoib_linux(qpn: Qpn) -> Self {
        ServiceId(0x1000_0000_0000_0000 | qpn.0 as u64)
    }
    /// The queue pair of either form.
    pub const fn ipoib_qpn(self) -> Option<Qpn> {
        match self.0 >> 24 {
            0x01_0000_0000 | 0x10_0000_0000 => Some(Qpn::new(self.0 as u32)),
            _ => None,
        }
    }
}

impl fmt::Display for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:016x}", self.0)
    }
}
impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

record! {
    /// A path in a REQ.
    pub struct CmPath[44] {
        /// Requester's LID.
        local_lid: Lid = 0:16,
        /// Listener's LID.
        remote_lid: Lid = 16:16,
        /// Requester's GID.
        local_gid: Gid = 32:128,
        /// Listener's GID.
        remote_gid: Gid = 160:128,
        /// 20 bits.
        flow_label: u32 = 288:20,
        /// Static rate.
        packet_rate: RateCode = 314:6,
        /// GRH traffic class.
        traffic_class: u8 = 320:8,
        /// GRH hop limit.
        hop_limit: u8 = 328:8,
        /// Service level.
        sl: ServiceLevel = 336:4,
        /// The path does not leave the subnet.
        subnet_local: bool = 340:1,
        /// 4.096 us * 2^n.
        local_ack_timeout: u8 = 344:5,
    }
}

record! {
    /// Request for communication (IBA 12.6.5).
    pub struct Req[232] {
        /// Requester's number of the connection.
        local_comm_id: u32 = 0:32,
        /// 24 bits.
        vendor_id: u32 = 40:24,
        /// What the requester wants.
        service_id: ServiceId = 64:64,
        /// Requester's node.
        local_ca_guid: Guid = 128:64,
        /// 0 for RC.
        local_q_key: QKey = 224:32,
        /// Requester's QP.
        local_qpn: Qpn = 256:24,
        /// RDMA READs and ATOMICs the requester takes at once.
        responder_resources: u8 = 280:8,
        /// 24 bits, RD only.
        local_eecn: u32 = 288:24,
        /// RDMA READs and ATOMICs the requester has open at once.
        initiator_depth: u8 = 312:8,
        /// 24 bits, RD only.
        remote_eecn: u32 = 320:24,
        /// How soon the listener shall answer, 4.096 us * 2^n.
        remote_cm_response_timeout: u8 = 344:5,
        /// 0: RC, 1: UC, 2: RD.
        transport_service_type: u8 = 349:2,
        /// End-to-end flow control.
        end_to_end_flow_control: bool = 351:1,
        /// Where the listener begins to send (IBA 12.6.5: the starting PSN is that of the recipient).
        starting_psn: Psn = 352:24,
        /// How soon the requester answers, 4.096 us * 2^n.
        local_cm_response_timeout: u8 = 376:5,
        /// Of the listener's QP.
        retry_count: u8 = 381:3,
        /// Partition.
        p_key: PKey = 384:16,
        /// Path MTU.
        path_packet_payload_mtu: MtuCode = 400:4,
        /// RD only.
        rdc_exists: bool = 404:1,
        /// Of the listener's QP.
        rnr_retry_count: u8 = 405:3,
        /// How often a CM message may be repeated.
        max_cm_retries: u8 = 408:4,
        /// The requester has a shared receive queue.
        srq: bool = 412:1,
        /// 0 unless XRC.
        extended_transport_type: u8 = 413:3,
        /// Primary path.
        primary: CmPath = 416:352,
        /// Alternate path, zero if none.
        alternate: CmPath = 768:352,
        /// The service's own.
        private_data: [u8; 92] = 1120:736,
    }
}

record! {
    /// Message receipt acknowledgement: the answer takes longer (IBA 12.6.6).
    pub struct Mra[232] {
        /// Sender's number.
        local_comm_id: u32 = 0:32,
        /// Receiver's number.
        remote_comm_id: u32 = 32:32,
        /// Which message was received.
        message_mraed: AboutMessage = 64:2,
        /// How long it takes, 4.096 us * 2^n.
        service_timeout: u8 = 72:5,
        /// The service's own.
        private_data: [u8; 222] = 80:1776,
    }
}

record! {
    /// Reject (IBA 12.6.7).
    pub struct Rej[232] {
        /// Sender's number, 0 if it has none.
        local_comm_id: u32 = 0:32,
        /// Receiver's number.
        remote_comm_id: u32 = 32:32,
        /// Which message is rejected.
        message_rejected: AboutMessage = 64:2,
        /// Valid bytes of `additional_reject_info`.
        reject_info_length: u8 = 72:7,
        /// Why.
        reason: RejectReason = 80:16,
        /// Depends on the reason: the listener's own value.
        additional_reject_info: [u8; 72] = 96:576,
        /// The service's own.
        private_data: [u8; 148] = 672:1184,
    }
}

record! {
    /// Reply to a request for communication (IBA 12.6.8).
    pub struct Rep[232] {
        /// Listener's number of the connection.
        local_comm_id: u32 = 0:32,
        /// Requester's number.
        remote_comm_id: u32 = 32:32,
        /// 0 for RC.
        local_q_key: QKey = 64:32,
        /// Listener's QP.
        local_qpn: Qpn = 96:24,
        /// 24 bits, RD only.
        local_eecn: u32 = 128:24,
        /// Where the requester begins to send.
        starting_psn: Psn = 160:24,
        /// RDMA READs and ATOMICs the listener takes at once.
        responder_resources: u8 = 192:8,
        /// RDMA READs and ATOMICs the listener has open at once.
        initiator_depth: u8 = 200:8,
        /// 4.096 us * 2^n.
        target_ack_delay: u8 = 208:5,
        /// 0: the alternate path is accepted.
        failover_accepted: u8 = 213:2,
        /// End-to-end flow control.
        end_to_end_flow_control: bool = 215:1,
        /// Of the requester's QP.
        rnr_retry_count: u8 = 216:3,
        /// The listener has a shared receive queue.
        srq: bool = 219:1,
        /// Listener's node.
        local_ca_guid: Guid = 224:64,
        /// The service's own.
        private_data: [u8; 196] = 288:1568,
    }
}

record! {
    /// Ready to use (IBA 12.6.9).
    pub struct Rtu[232] {
        /// Sender's number.
        local_comm_id: u32 = 0:32,
        /// Receiver's number.
        remote_comm_id: u32 = 32:32,
        /// The service's own.
        private_data: [u8; 224] = 64:1792,
    }
}

record! {
    /// Request for communication release (IBA 12.6.10).
    pub struct Dreq[232] {
        /// Sender's number.
        local_comm_id: u32 = 0:32,
        /// Receiver's number.
        remote_comm_id: u32 = 32:32,
        /// Receiver's QP.
        remote_qpn: Qpn = 64:24,
        /// The service's own.
        private_data: [u8; 220] = 96:1760,
    }
}

record! {
    /// Reply to a request for communication release (IBA 12.6.11).
    pub struct Drep[232] {
        /// Sender's number.
        local_comm_id: u32 = 0:32,
        /// Receiver's number.
        remote_comm_id: u32 = 32:32,
        /// The service's own.
        private_data: [u8; 224] = 64:1792,
    }
}

record! {
    /// Service ID resolution request (IBA 12.11.1).
    pub struct SidrReq[232] {
        /// Requester's number.
        request_id: u32 = 0:32,
        /// Partition.
        p_key: PKey = 32:16,
        /// What the requester wants.
        service_id: ServiceId = 64:64,
        /// The service's own.
        private_data: [u8; 216] = 128:1728,
    }
}

record! {
    /// Service ID resolution response (IBA 12.11.2).
    pub struct SidrRep[232] {
        /// Requester's number.
        request_id: u32 = 0:32,
        /// 0: valid QPN.
        status: u8 = 32:8,
        /// Valid bytes of `additional_info`.
        additional_info_length: u8 = 40:8,
        /// The service's QP.
        qpn: Qpn = 64:24,
        /// The service.
        service_id: ServiceId = 96:64,
        /// Key of the QP.
        q_key: QKey = 160:32,
        /// Depends on the status.
        additional_info: [u8; 72] = 192:576,
        /// The service's own.
        private_data: [u8; 136] = 768:1088,
    }
}

record! {
    /// Load alternate path (IBA 12.8.1).
    pub struct Lap[232] {
        /// Sender's number.
        local_comm_id: u32 = 0:32,
        /// Receiver's number.
        remote_comm_id: u32 = 32:32,
        /// Receiver's QP.
        remote_qpn: Qpn = 96:24,
        /// 4.096 us * 2^n.
        remote_cm_response_timeout: u8 = 120:5,
        /// Sender's LID.
        local_lid: Lid = 160:16,
        /// Receiver's LID.
        remote_lid: Lid = 176:16,
        /// Sender's GID.
        local_gid: Gid = 192:128,
        /// Receiver's GID.
        remote_gid: Gid = 320:128,
        /// 20 bits.
        flow_label: u32 = 448:20,
        /// GRH traffic class.
        traffic_class: u8 = 472:8,
        /// GRH hop limit.
        hop_limit: u8 = 480:8,
        /// Static rate.
        packet_rate: RateCode = 490:6,
        /// Service level.
        sl: ServiceLevel = 496:4,
        /// The path does not leave the subnet.
        subnet_local: bool = 500:1,
        /// 4.096 us * 2^n.
        local_ack_timeout: u8 = 504:5,
        /// The service's own.
        private_data: [u8; 168] = 512:1344,
    }
}

record! {
    /// Alternate path response (IBA 12.8.2).
    pub struct Apr[232] {
        /// Sender's number.
        local_comm_id: u32 = 0:32,
        /// Receiver's number.
        remote_comm_id: u32 = 32:32,
        /// Valid bytes of `additional_info`.
        additional_info_length: u8 = 64:8,
        /// 0: loaded.
        ap_status: u8 = 72:8,
        /// Depends on the status.
        additional_info: [u8; 72] = 96:576,
        /// The service's own.
        private_data: [u8; 148] = 672:1184,
    }
}

record! {
    /// Private data of IPoIB's REQ and REP (RFC 4755 section 3.5).
    pub struct IpoibPrivateData[8] {
        /// The sender's UD queue pair.
        ud_qpn: Qpn = 8:24,
        /// Largest message it takes, bytes, with the 4-byte encapsulation header.
        receive_mtu: u32 = 32:32,
    }
}

macro_rules! messages {
    ($($(#[$meta:meta])* $name:ident = $attr:ident;)*) => {
        /// Any message of the communication manager.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(clippy::large_enum_variant)]
        pub enum CmMessage { $($(#[$meta])* $name($name),)* }

        impl CmMessage {
            /// Reads header and message of a MAD; `None` if its class, method or attribute is no CM message's.
            pub fn parse(mad: &MadBytes) -> Option<(MadHeader, CmMessage)> {
                let header = MadHeader::parse(mad)?;
                if header.mgmt_class != MgmtClass::COM_MGT || header.method != Method::SEND {
                    return None;
                }
                let body = &mad[CM_DATA_OFFSET..];
                let message = match header.attr_id {
                    $(AttrId::$attr => CmMessage::$name($name::parse(body)?),)*
                    _ => return None,
                };
                Some((header, message))
            }

            /// The message's attribute ID.
            pub const fn attr_id(&self) -> AttrId {
                match self { $(CmMessage::$name(_) => AttrId::$attr,)* }
            }

            /// The message as a MAD of transaction `tid`.
            pub fn emit(&self, tid: u64) -> MadBytes {
                let header = MadHeader::request(MgmtClass::COM_MGT, Method::SEND, self.attr_id(), 0, tid);
                let mut mad = [0; super::MAD_LEN];
                put(&mut mad, 0, &header.emit());
                match self { $(CmMessage::$name(message) => put(&mut mad, CM_DATA_OFFSET, &message.emit()),)* }
                mad
            }
        }

        $(impl From<$name> for CmMessage {
            fn from(message: $name) -> Self { CmMessage::$name(message) }
        })*
    };
}

messages! {
    /// Request for communication.
    Req = CM_REQ;
    /// Message receipt acknowledgement.
    Mra = CM_MRA;
    /// Reject.
    Rej = CM_REJ;
    /// Reply.
    Rep = CM_REP;
    /// Ready to use.
    Rtu = CM_RTU;
    /// Release request.
    Dreq = CM_DREQ;
    /// Release reply.
    Drep = CM_DREP;
    /// Service ID resolution request.
    SidrReq = CM_SIDR_REQ;
    /// Service ID resolution response.
    SidrRep = CM_SIDR_REP;
    /// Load alternate path.
    Lap = CM_LAP;
    /// Alternate path response.
    Apr = CM_APR;
}
