//! A MAD as one line for people, and a MAD emitted anew from its typed values.
//!
//! Which type an attribute has is one table, `interpret`; both ways go through it.

use super::attr::*;
use super::cm::{CmMessage, IpoibPrivateData};
use super::sa::{RmppHeader, SA_HEADER_LEN};
use super::{
    AttrId, MadBytes, MadHeader, MadStatus, Method, MgmtClass, PERF_DATA_OFFSET, SaMad, Smp, put,
};
use crate::id::{Gid, Lid};
use std::fmt::{self, Debug, Display, Write};

/// One line: class, method and attribute, status, and what the attribute says.
pub fn describe(mad: &MadBytes) -> String {
    let mut line = String::new();
    // Writing into a String does not fail.
    let _ = write_line(mad, &mut line);
    line
}

/// The MAD emitted anew from its typed values; bytes after an attribute and attributes without a type stay as they are.
///
/// Reserved fields of headers and attributes become zero, so a MAD with old bytes there comes out different. `None`: base version not 1.
pub fn reemit(mad: &MadBytes) -> Option<MadBytes> {
    let header = MadHeader::parse(mad)?;
    if header.base_version != 1 {
        return None;
    }
    Some(match header.mgmt_class {
        MgmtClass::SUBN_LID | MgmtClass::SUBN_DIRECTED => {
            let mut smp = Smp::parse(mad)?;
            interpret(header.mgmt_class, header.attr_id, &mut smp.data);
            smp.emit()
        }
        MgmtClass::SUBN_ADM => {
            let mut sa = SaMad::parse(mad)?;
            let (len, pitch) = (sa_records_len(&sa), sa_pitch(&sa));
            for record in sa.data[..len].chunks_mut(pitch) {
                interpret(header.mgmt_class, header.attr_id, record);
            }
            sa.emit()
        }
        MgmtClass::COM_MGT => match CmMessage::parse(mad) {
            Some((_, message)) => {
                let mut out = message.emit(0);
                put(&mut out, 0, &header.emit());
                out
            }
            None => with_header(mad, &header),
        },
        MgmtClass::PERF_MGT => {
            let mut out = with_header(mad, &header);
            interpret(
                header.mgmt_class,
                header.attr_id,
                &mut out[PERF_DATA_OFFSET..],
            );
            out
        }
        _ => with_header(mad, &header),
    })
}

fn with_header(mad: &MadBytes, header: &MadHeader) -> MadBytes {
    let mut out = *mad;
    put(&mut out, 0, &header.emit());
    out
}

/// Distance of records in the data of an SA MAD.
fn sa_pitch(sa: &SaMad) -> usize {
    let is_table = matches!(
        sa.header.method,
        Method::GET_TABLE_RESP | Method::GET_MULTI_RESP
    );
    match usize::from(sa.attr_offset) * 8 {
        pitch if is_table && pitch > 0 => pitch,
        _ => sa.data.len(),
    }
}

/// Bytes of the data that begin with a record: not those of later segments, whose records may have begun in the segment before.
fn sa_records_len(sa: &SaMad) -> usize {
    let rmpp = &sa.rmpp;
    if !rmpp.active || rmpp.kind != RmppHeader::DATA {
        // libumad2sim marks a cut-off table as active and leaves the rest of the header zero.
        return if rmpp.kind == 0 { sa.data.len() } else { 0 };
    }
    match rmpp.segment {
        1 => (rmpp.length as usize)
            .saturating_sub(SA_HEADER_LEN)
            .min(sa.data.len()),
        _ => 0,
    }
}

fn write_line(mad: &MadBytes, out: &mut String) -> fmt::Result {
    let Some(header) = MadHeader::parse(mad) else {
        return Ok(());
    };
    let class = header.mgmt_class;
    let prefix = match class {
        MgmtClass::SUBN_LID | MgmtClass::SUBN_DIRECTED => "Subn".into(),
        MgmtClass::PERF_MGT => "Perf".into(),
        other => other.to_string(),
    };
    match header.attr_id.name(class) {
        Some(name) => write!(out, "{prefix}{}({name})", header.method)?,
        None => write!(out, "{prefix}{}({})", header.method, header.attr_id)?,
    }
    if header.attr_mod != 0 {
        write!(out, " modifier 0x{:x}", header.attr_mod)?;
    }
    let smp = Smp::parse(mad).filter(|_| class.is_smp());
    let status = smp.map_or(header.status, |smp| smp.status());
    if header.method.is_response() || status != MadStatus::OK {
        write!(out, " status {status}")?;
    }
    if let Some(mut smp) = smp {
        if smp.is_directed() {
            write_route(&smp, out)?;
        }
        write_attribute(&header, status, &mut smp.data, out)
    } else if class == MgmtClass::SUBN_ADM {
        let Some(mut sa) = SaMad::parse(mad) else {
            return Ok(());
        };
        if sa.rmpp.active {
            let rmpp = &sa.rmpp;
            let last = if rmpp.last { " last" } else { "" };
            let kind = ["RMPP", "segment", "ACK", "STOP", "ABORT"]
                .get(usize::from(rmpp.kind))
                .unwrap_or(&"RMPP");
            write!(out, " {kind} {}{last} length {}", rmpp.segment, rmpp.length)?;
        }
        if sa.component_mask.0 != 0 {
            write!(out, " mask {}", sa.component_mask)?;
        }
        let (len, pitch) = (sa_records_len(&sa), sa_pitch(&sa));
        for record in sa.data[..len].chunks_exact_mut(pitch.min(len).max(1)) {
            write_attribute(&header, status, record, out)?;
        }
        Ok(())
    } else if class == MgmtClass::PERF_MGT {
        let mut data = *mad;
        write_attribute(&header, status, &mut data[PERF_DATA_OFFSET..], out)
    } else if let Some((_, message)) = CmMessage::parse(mad) {
        write!(out, " {}", cm_message(&message))
    } else {
        Ok(())
    }
}

fn write_route(smp: &Smp, out: &mut String) -> fmt::Result {
    let way = if smp.is_returning() { "back" } else { "out" };
    write!(
        out,
        " directed {way} hop {}/{} path",
        smp.hop_pointer(),
        smp.hop_count()
    )?;
    let hops = usize::from(smp.hop_count()).min(super::MAX_HOPS);
    let mut separator = ' ';
    for port in &smp.initial_path[..=hops] {
        write!(out, "{separator}{port}")?;
        separator = ',';
    }
    Ok(())
}

/// An attribute of zeros, as in most requests and refusals, says nothing.
fn write_attribute(
    header: &MadHeader,
    status: MadStatus,
    bytes: &mut [u8],
    out: &mut String,
) -> fmt::Result {
    if !status.is_ok() || bytes.iter().all(|&b| b == 0) {
        return Ok(());
    }
    match interpret(header.mgmt_class, header.attr_id, bytes) {
        Some(text) => write!(out, " {text}"),
        None => Ok(()),
    }
}

/// Parses the front of `bytes`, puts it back as it was emitted anew, and says in words what it was. Shorter `bytes` are taken as if
/// zeros followed: a Notice in an SMP has no room for its issuer GID.
fn retype<T>(
    bytes: &mut [u8],
    parse: fn(&[u8]) -> Option<T>,
    emit: impl Fn(&T) -> Vec<u8>,
    words: fn(&T) -> String,
) -> Option<String> {
    let mut whole = [0; super::MAD_LEN];
    let n = bytes.len().min(whole.len());
    whole[..n].copy_from_slice(&bytes[..n]);
    let value = parse(&whole)?;
    let again = emit(&value);
    let n = n.min(again.len());
    bytes[..n].copy_from_slice(&again[..n]);
    Some(words(&value))
}

macro_rules! types {
    ($($class:pat => { $($attr:ident: $ty:ident $words:expr;)* })*) => {
        /// The type of each attribute, and its words.
        fn interpret(class: MgmtClass, attr_id: AttrId, bytes: &mut [u8]) -> Option<String> {
            match (class, attr_id) {
                $($(($class, AttrId::$attr) => retype(bytes, $ty::parse, |value| value.emit().to_vec(), $words),)*)*
                (_, AttrId::CLASS_PORT_INFO) => {
                    retype(bytes, ClassPortInfo::parse, |value| value.emit().to_vec(), class_port_info)
                }
                (_, AttrId::NOTICE) => retype(bytes, Notice::parse, |value| value.emit().to_vec(), notice),
                (_, AttrId::INFORM_INFO) => retype(bytes, InformInfo::parse, |value| value.emit().to_vec(), inform_info),
                _ => None,
            }
        }
    };
}

types! {
    MgmtClass::SUBN_LID | MgmtClass::SUBN_DIRECTED => {
        NODE_DESCRIPTION: NodeDescription |d| format!("\"{}\"", d.to_string().escape_debug());
        NODE_INFO: NodeInfo node_info;
        SWITCH_INFO: SwitchInfo switch_info;
        GUID_INFO: GuidInfo guid_info;
        PORT_INFO: PortInfo port_info;
        P_KEY_TABLE: PKeyTable p_key_table;
        SL_TO_VL_MAPPING_TABLE: SlToVl debug;
        VL_ARBITRATION_TABLE: VlArbitration vl_arbitration;
        LINEAR_FORWARDING_TABLE: LinearForwardingTable debug;
        MULTICAST_FORWARDING_TABLE: MulticastForwardingTable debug;
        SM_INFO: SmInfo sm_info;
        LED_INFO: LedInfo debug;
    }
    MgmtClass::SUBN_ADM => {
        NODE_RECORD: NodeRecord |r| {
            format!("lid {} {} \"{}\"", r.lid, node_info(&r.node_info), r.node_description.to_string().escape_debug())
        };
        PORT_INFO_RECORD: PortInfoRecord |r| format!("lid {} port {} {}", r.lid, r.port_num, port_info(&r.port_info));
        SL_TO_VL_MAPPING_TABLE_RECORD: SlToVlRecord debug;
        SWITCH_INFO_RECORD: SwitchInfoRecord |r| format!("lid {} {}", r.lid, switch_info(&r.switch_info));
        LINEAR_FORWARDING_TABLE_RECORD: LinearForwardingTableRecord debug;
        MULTICAST_FORWARDING_TABLE_RECORD: MulticastForwardingTableRecord debug;
        SM_INFO_RECORD: SmInfoRecord |r| format!("lid {} {}", r.lid, sm_info(&r.sm_info));
        LINK_RECORD: LinkRecord |r| {
            format!("from lid {} port {} to lid {} port {}", r.from_lid, r.from_port, r.to_lid, r.to_port)
        };
        GUID_INFO_RECORD: GuidInfoRecord |r| format!("lid {} block {} {}", r.lid, r.block_num, guid_info(&r.guid_info));
        SERVICE_RECORD: ServiceRecord service_record;
        P_KEY_TABLE_RECORD: PKeyTableRecord |r| {
            format!("lid {} port {} block {} {}", r.lid, r.port_num, r.block_num, p_key_table(&r.p_key_table))
        };
        PATH_RECORD: PathRecord path_record_words;
        VL_ARBITRATION_TABLE_RECORD: VlArbitrationRecord debug;
        MC_MEMBER_RECORD: McMemberRecord mc_member;
        INFORM_INFO_RECORD: InformInfoRecord |r| format!("of {} number {} {}", r.subscriber_gid, r.index, inform_info(&r.inform_info));
    }
    MgmtClass::PERF_MGT => {
        PORT_SAMPLES_CONTROL: PortSamplesControl debug;
        PORT_SAMPLES_RESULT: PortSamplesResult debug;
        PORT_COUNTERS: PortCounters debug;
        PORT_COUNTERS_EXTENDED: PortCountersExtended debug;
    }
}

fn debug<T: Debug>(value: &T) -> String {
    format!("{value:?}")
}

fn list<T: Display>(items: impl Iterator<Item = T>) -> String {
    items
        .map(|item| item.to_string())
        .collect::<Vec<_>>()
        .join(",")
}

fn node_info(r: &NodeInfo) -> String {
    format!(
        "{} ports {} node {} port {} local port {}",
        r.node_type, r.num_ports, r.node_guid, r.port_guid, r.local_port_num
    )
}

fn switch_info(r: &SwitchInfo) -> String {
    format!(
        "linear top {} of {} multicast {} life time {} state change {}",
        r.linear_fdb_top,
        r.linear_fdb_cap,
        r.multicast_fdb_cap,
        r.life_time_value,
        r.port_state_change
    )
}

fn guid_info(r: &GuidInfo) -> String {
    list(r.guid.iter().filter(|guid| guid.0 != 0))
}

fn p_key_table(r: &PKeyTable) -> String {
    list(r.p_key.iter().filter(|p_key| p_key.0 != 0))
}

fn vl_arbitration(r: &VlArbitration) -> String {
    let used = r.entry.iter().filter(|entry| entry.weight != 0);
    list(used.map(|entry| format!("VL{}:{}", entry.vl, entry.weight)))
}

fn port_info(r: &PortInfo) -> String {
    format!(
        "lid {} lmc {} sm lid {} prefix {:016x} {}/{} mtu {} of {} width {} local port {} [{}]{}",
        r.lid,
        r.lmc,
        r.master_sm_lid,
        r.gid_prefix,
        r.port_state,
        r.port_physical_state,
        r.neighbor_mtu,
        r.mtu_cap,
        r.link_width_active,
        r.local_port_num,
        list(r.capability_mask.names()),
        if r.client_reregister {
            " reregister"
        } else {
            ""
        }
    )
}

fn sm_info(r: &SmInfo) -> String {
    format!(
        "guid {} priority {} {} activity {}",
        r.guid, r.priority, r.sm_state, r.act_count
    )
}

fn class_port_info(r: &ClassPortInfo) -> String {
    let mut text = format!(
        "class version {} capabilities 0x{:04x} 0x{:07x} response time {}",
        r.class_version, r.capability_mask, r.capability_mask2, r.resp_time_value
    );
    if r.redirect_gid != Gid::default() || r.redirect_lid != Lid::UNSET {
        text += &format!(" redirect to {} lid {}", r.redirect_gid, r.redirect_lid);
    }
    text
}

fn notice(r: &Notice) -> String {
    if !r.is_generic {
        return format!(
            "vendor {:06x} device {:04x}",
            r.producer_type.0, r.trap_number.0
        );
    }
    let mut text = format!(
        "trap {} {} from lid {}",
        r.trap_number.0, r.trap_number, r.issuer_lid
    );
    if let Some(gid) = r.gid() {
        text += &format!(" {gid}");
    } else if let Some(lid) = r.switch_lid() {
        text += &format!(" switch {lid}");
    } else if let Some(change) = r.capability() {
        text += &format!(
            " port {} [{}]",
            change.lid,
            list(change.capability_mask.names())
        );
    } else if let Some(bad) = r.key_violation() {
        text += &format!(" key 0x{:08x} from lid {} {}", bad.key, bad.lid1, bad.qp1);
    }
    text
}

fn inform_info(r: &InformInfo) -> String {
    let verb = if r.subscribe == 1 {
        "subscribe"
    } else {
        "unsubscribe"
    };
    format!("{verb} trap {} {}", r.trap_number.0, r.trap_number)
}

fn path_record_words(r: &PathRecord) -> String {
    format!(
        "{} -> {} slid {} dlid {} p_key {} sl {} mtu {} rate {} life time {} hop limit {} flow label {} tclass {}",
        r.sgid,
        r.dgid,
        r.slid,
        r.dlid,
        r.p_key,
        r.sl.0,
        r.mtu,
        r.rate,
        r.packet_life_time,
        r.hop_limit,
        r.flow_label,
        r.tclass
    )
}

fn mc_member(r: &McMemberRecord) -> String {
    format!(
        "mgid {} port {} mlid {} q_key {} p_key {} mtu {} rate {} sl {} scope {} join {}",
        r.mgid, r.port_gid, r.mlid, r.q_key, r.p_key, r.mtu, r.rate, r.sl.0, r.scope, r.join_state
    )
}

fn service_record(r: &ServiceRecord) -> String {
    let end = r.service_name.iter().position(|&b| b == 0).unwrap_or(64);
    let name = String::from_utf8_lossy(&r.service_name[..end]).into_owned();
    format!(
        "service 0x{:016x} at {} p_key {} lease {} \"{}\"",
        r.service_id,
        r.service_gid,
        r.service_p_key,
        r.service_lease,
        name.escape_debug()
    )
}

/// Private data as IPoIB has it in both REQ and REP; only the REQ says that the service is IPoIB.
fn private_data(bytes: &[u8]) -> String {
    let data = IpoibPrivateData::parse(bytes).unwrap_or_default();
    format!("ud qpn {} receive mtu {}", data.ud_qpn, data.receive_mtu)
}

fn cm_message(message: &CmMessage) -> String {
    match message {
        CmMessage::Req(r) => format!(
            "comm {:08x} service {} qpn {} psn {} p_key {} mtu {} {} -> {} {}",
            r.local_comm_id,
            r.service_id,
            r.local_qpn,
            r.starting_psn,
            r.p_key,
            r.path_packet_payload_mtu,
            r.primary.local_gid,
            r.primary.remote_gid,
            match r.service_id.ipoib_qpn() {
                Some(_) => private_data(&r.private_data),
                None => "(not IPoIB)".into(),
            }
        ),
        CmMessage::Mra(r) => format!(
            "comm {:08x} -> {:08x} of {} service timeout {}",
            r.local_comm_id, r.remote_comm_id, r.message_mraed, r.service_timeout
        ),
        CmMessage::Rej(r) => format!(
            "comm {:08x} -> {:08x} of {} reason {} {}",
            r.local_comm_id, r.remote_comm_id, r.message_rejected, r.reason.0, r.reason
        ),
        CmMessage::Rep(r) => format!(
            "comm {:08x} -> {:08x} qpn {} psn {} (if IPoIB: {})",
            r.local_comm_id,
            r.remote_comm_id,
            r.local_qpn,
            r.starting_psn,
            private_data(&r.private_data)
        ),
        CmMessage::Rtu(r) => format!("comm {:08x} -> {:08x}", r.local_comm_id, r.remote_comm_id),
        CmMessage::Dreq(r) => format!(
            "comm {:08x} -> {:08x} qpn {}",
            r.local_comm_id, r.remote_comm_id, r.remote_qpn
        ),
        CmMessage::Drep(r) => format!("comm {:08x} -> {:08x}", r.local_comm_id, r.remote_comm_id),
        CmMessage::SidrReq(r) => format!("request {:08x} service {}", r.request_id, r.service_id),
        CmMessage::SidrRep(r) => format!(
            "request {:08x} status {} qpn {} q_key {}",
            r.request_id, r.status, r.qpn, r.q_key
        ),
        CmMessage::Lap(r) => format!(
            "comm {:08x} -> {:08x} qpn {}",
            r.local_comm_id, r.remote_comm_id, r.remote_qpn
        ),
        CmMessage::Apr(r) => format!(
            "comm {:08x} -> {:08x} status {}",
            r.local_comm_id, r.remote_comm_id, r.ap_status
        ),
    }
}
