//! Numbers of the MAD header by name: classes, methods, attributes, status (IBA 13.4.4 to 13.4.8, 14.2.5, 15.2.5).

use crate::bits::newtype_field;
use std::fmt;

/// Management class (IBA 13.4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct MgmtClass(pub u8);

/// Method; bit 7 is the response bit (IBA 13.4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Method(pub u8);

/// Attribute. The same number names different attributes in different classes; see [`AttrId::name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct AttrId(pub u16);

/// Status of a response: common codes in the low byte (IBA 13.4.7), the class's in the high one (SA: IBA 15.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct MadStatus(pub u16);

newtype_field!(MgmtClass(u8), Method(u8), AttrId(u16), MadStatus(u16));

macro_rules! named {
    ($t:ident($int:ty) { $($(#[$meta:meta])* $name:ident = $value:literal $text:literal;)* }) => {
        impl $t {
            $(#[doc = $text] $(#[$meta])* pub const $name: $t = $t($value);)*
        }
        impl fmt::Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.0 {
                    $($value => f.write_str($text),)*
                    other => write!(f, concat!(stringify!($t), " 0x{:02x}"), other),
                }
            }
        }
    };
}
pub(super) use named;

named!(MgmtClass(u8) {
    SUBN_LID = 0x01 "SubnLID";
    SUBN_ADM = 0x03 "SubnAdm";
    PERF_MGT = 0x04 "PerfMgt";
    BM = 0x05 "BM";
    DEV_MGT = 0x06 "DevMgt";
    COM_MGT = 0x07 "ComMgt";
    SNMP = 0x08 "SNMP";
    DEV_ADM = 0x10 "DevAdm";
    BOOT_MGT = 0x11 "BootMgt";
    BIS = 0x12 "BIS";
    CONG_MGT = 0x21 "CongMgt";
    SUBN_DIRECTED = 0x81 "SubnDirected";
});

impl MgmtClass {
    /// Subnet management, either routing: the classes of QP0.
    pub const fn is_smp(self) -> bool {
        matches!(self, Self::SUBN_LID | Self::SUBN_DIRECTED)
    }
}

named!(Method(u8) {
    GET = 0x01 "Get";
    SET = 0x02 "Set";
    SEND = 0x03 "Send";
    TRAP = 0x05 "Trap";
    REPORT = 0x06 "Report";
    TRAP_REPRESS = 0x07 "TrapRepress";
    GET_TABLE = 0x12 "GetTable";
    GET_TRACE_TABLE = 0x13 "GetTraceTable";
    GET_MULTI = 0x14 "GetMulti";
    DELETE = 0x15 "Delete";
    GET_RESP = 0x81 "GetResp";
    REPORT_RESP = 0x86 "ReportResp";
    GET_TABLE_RESP = 0x92 "GetTableResp";
    GET_MULTI_RESP = 0x94 "GetMultiResp";
    DELETE_RESP = 0x95 "DeleteResp";
});

impl Method {
    /// Bit 7.
    pub const fn is_response(self) -> bool {
        self.0 & 0x80 != 0
    }
    /// What answers this request: the same with bit 7, but Get and Set are both answered by GetResp, GetTraceTable by GetTableResp (IBA
    /// 13.4.5, 15.2.3). A response is its own.
    pub const fn response(self) -> Method {
        match self {
            Method::SET => Method::GET_RESP,
            Method::GET_TRACE_TABLE => Method::GET_TABLE_RESP,
            Method(m) => Method(m | 0x80),
        }
    }
}

/// The attribute numbers, in families: every class, SMP, SA, PerfMgt, ComMgt.
macro_rules! attributes {
    ($($family:ident { $($name:ident = $value:literal $text:literal;)* })*) => {
        impl AttrId {
            $($(#[doc = concat!($text, ", ", stringify!($family))] pub const $name: AttrId = AttrId($value);)*)*

            $(fn $family(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($text),)*
                    _ => None,
                }
            })*
        }
    };
}

attributes! {
    all_classes {
        CLASS_PORT_INFO = 0x0001 "ClassPortInfo";
        NOTICE = 0x0002 "Notice";
        INFORM_INFO = 0x0003 "InformInfo";
    }
    smp {
        NODE_DESCRIPTION = 0x0010 "NodeDescription";
        NODE_INFO = 0x0011 "NodeInfo";
        SWITCH_INFO = 0x0012 "SwitchInfo";
        GUID_INFO = 0x0014 "GUIDInfo";
        PORT_INFO = 0x0015 "PortInfo";
        P_KEY_TABLE = 0x0016 "P_KeyTable";
        SL_TO_VL_MAPPING_TABLE = 0x0017 "SLtoVLMappingTable";
        VL_ARBITRATION_TABLE = 0x0018 "VLArbitrationTable";
        LINEAR_FORWARDING_TABLE = 0x0019 "LinearForwardingTable";
        RANDOM_FORWARDING_TABLE = 0x001a "RandomForwardingTable";
        MULTICAST_FORWARDING_TABLE = 0x001b "MulticastForwardingTable";
        SM_INFO = 0x0020 "SMInfo";
        VENDOR_DIAG = 0x0030 "VendorDiag";
        LED_INFO = 0x0031 "LedInfo";
    }
    subn_adm {
        NODE_RECORD = 0x0011 "NodeRecord";
        PORT_INFO_RECORD = 0x0012 "PortInfoRecord";
        SL_TO_VL_MAPPING_TABLE_RECORD = 0x0013 "SLtoVLMappingTableRecord";
        SWITCH_INFO_RECORD = 0x0014 "SwitchInfoRecord";
        LINEAR_FORWARDING_TABLE_RECORD = 0x0015 "LinearForwardingTableRecord";
        RANDOM_FORWARDING_TABLE_RECORD = 0x0016 "RandomForwardingTableRecord";
        MULTICAST_FORWARDING_TABLE_RECORD = 0x0017 "MulticastForwardingTableRecord";
        SM_INFO_RECORD = 0x0018 "SMInfoRecord";
        LINK_RECORD = 0x0020 "LinkRecord";
        GUID_INFO_RECORD = 0x0030 "GuidInfoRecord";
        SERVICE_RECORD = 0x0031 "ServiceRecord";
        P_KEY_TABLE_RECORD = 0x0033 "P_KeyTableRecord";
        PATH_RECORD = 0x0035 "PathRecord";
        VL_ARBITRATION_TABLE_RECORD = 0x0036 "VLArbitrationTableRecord";
        MC_MEMBER_RECORD = 0x0038 "MCMemberRecord";
        TRACE_RECORD = 0x0039 "TraceRecord";
        MULTI_PATH_RECORD = 0x003a "MultiPathRecord";
        INFORM_INFO_RECORD = 0x00f3 "InformInfoRecord";
    }
    perf_mgt {
        PORT_SAMPLES_CONTROL = 0x0010 "PortSamplesControl";
        PORT_SAMPLES_RESULT = 0x0011 "PortSamplesResult";
        PORT_COUNTERS = 0x0012 "PortCounters";
        PORT_COUNTERS_EXTENDED = 0x001d "PortCountersExtended";
    }
    com_mgt {
        CM_REQ = 0x0010 "ConnectRequest";
        CM_MRA = 0x0011 "MsgRcptAck";
        CM_REJ = 0x0012 "ConnectReject";
        CM_REP = 0x0013 "ConnectReply";
        CM_RTU = 0x0014 "ReadyToUse";
        CM_DREQ = 0x0015 "DisconnectRequest";
        CM_DREP = 0x0016 "DisconnectReply";
        CM_SIDR_REQ = 0x0017 "ServiceIDResReq";
        CM_SIDR_REP = 0x0018 "ServiceIDResReqResp";
        CM_LAP = 0x0019 "LoadAlternatePath";
        CM_APR = 0x001a "AlternatePathResponse";
    }
}

impl AttrId {
    /// The standard's name of the attribute in `class`, `None` where it has none.
    pub fn name(self, class: MgmtClass) -> Option<&'static str> {
        let of_class = match class {
            MgmtClass::SUBN_LID | MgmtClass::SUBN_DIRECTED => self.smp(),
            MgmtClass::SUBN_ADM => self.subn_adm(),
            MgmtClass::PERF_MGT => self.perf_mgt(),
            MgmtClass::COM_MGT => self.com_mgt(),
            _ => None,
        };
        of_class.or_else(|| self.all_classes())
    }
}

impl fmt::Display for AttrId {
    /// The number: a name needs the class.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "attribute 0x{:04x}", self.0)
    }
}

impl MadStatus {
    /// Success.
    pub const OK: MadStatus = MadStatus(0);
    /// Common: the receiver is busy; the request may be repeated.
    pub const BUSY: MadStatus = MadStatus(0x0001);
    /// Common: ask the agent that ClassPortInfo names.
    pub const REDIRECT_REQUIRED: MadStatus = MadStatus(0x0002);
    /// Common, invalid field code 1: class or its version not supported.
    pub const BAD_VERSION: MadStatus = MadStatus(0x0004);
    /// Common, invalid field code 2: method not supported.
    pub const METHOD_UNSUPPORTED: MadStatus = MadStatus(0x0008);
    /// Common, invalid field code 3: method not supported with this attribute.
    pub const METHOD_ATTRIBUTE_UNSUPPORTED: MadStatus = MadStatus(0x000c);
    /// Common, invalid field code 7: a value in the attribute or its modifier is wrong.
    pub const INVALID_FIELD: MadStatus = MadStatus(0x001c);

    /// SA: not enough room to serve the request.
    pub const SA_NO_RESOURCES: MadStatus = MadStatus(0x0100);
    /// SA: the request is wrong.
    pub const SA_REQ_INVALID: MadStatus = MadStatus(0x0200);
    /// SA: nothing matches.
    pub const SA_NO_RECORDS: MadStatus = MadStatus(0x0300);
    /// SA: more than one record matches a Get.
    pub const SA_TOO_MANY_RECORDS: MadStatus = MadStatus(0x0400);
    /// SA: the requester's GID is not valid for the request.
    pub const SA_REQ_INVALID_GID: MadStatus = MadStatus(0x0500);
    /// SA: needed components are missing from the mask.
    pub const SA_REQ_INSUFFICIENT_COMPONENTS: MadStatus = MadStatus(0x0600);
    /// SA: not allowed.
    pub const SA_REQ_DENIED: MadStatus = MadStatus(0x0700);

    /// Direction bit of a directed-route SMP's status word: set on the way back (IBA 14.2.1.2).
    pub const DIRECTION: u16 = 0x8000;

    /// True for success.
    pub const fn is_ok(self) -> bool {
        self.0 == 0
    }
    /// Another port serves this class; see ClassPortInfo (IBA 13.5.2).
    pub const fn is_redirect(self) -> bool {
        self.0 & Self::REDIRECT_REQUIRED.0 != 0
    }
    /// The receiver asks for patience.
    pub const fn is_busy(self) -> bool {
        self.0 & 1 != 0
    }
}

impl fmt::Display for MadStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_ok() {
            return f.write_str("ok");
        }
        let field = match self.0 >> 2 & 7 {
            0 => "",
            1 => "class or version not supported",
            2 => "method not supported",
            3 => "method not supported for this attribute",
            7 => "invalid value in attribute or modifier",
            _ => "invalid field",
        };
        let class = match self.0 >> 8 {
            0 => "",
            1 => "ERR_NO_RESOURCES",
            2 => "ERR_REQ_INVALID",
            3 => "ERR_NO_RECORDS",
            4 => "ERR_TOO_MANY_RECORDS",
            5 => "ERR_REQ_INVALID_GID",
            6 => "ERR_REQ_INSUFFICIENT_COMPONENTS",
            7 => "ERR_REQ_DENIED",
            _ => "class-specific error",
        };
        let busy = if self.is_busy() { "busy" } else { "" };
        let redirect = if self.is_redirect() {
            "redirect required"
        } else {
            ""
        };
        for word in [busy, redirect, field, class]
            .into_iter()
            .filter(|word| !word.is_empty())
        {
            write!(f, "{word} ")?;
        }
        write!(f, "(0x{:04x})", self.0)
    }
}
