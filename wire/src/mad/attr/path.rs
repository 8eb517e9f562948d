//! PathRecord (IBA 15.2.5.16).

use crate::bits::{newtype_field, record};
use crate::id::{Gid, Lid, MtuCode, PKey, RateCode, ServiceLevel};
use crate::mad::names::named;
use std::fmt;

/// How a request means its MTU, rate or packet life time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Selector(pub u8);

newtype_field!(Selector(u8));

named!(Selector(u8) {
    GREATER_THAN = 0 "greater than";
    LESS_THAN = 1 "less than";
    EXACTLY = 2 "exactly";
    LARGEST = 3 "largest";
});

record! {
    /// PathRecord.
    pub struct PathRecord[64] {
        service_id: u64 = 0:64,
        dgid: Gid = 64:128,
        sgid: Gid = 192:128,
        dlid: Lid = 320:16,
        slid: Lid = 336:16,
        raw_traffic: bool = 352:1,
        flow_label: u32 = 356:20,
        hop_limit: u8 = 376:8,
        tclass: u8 = 384:8,
        reversible: bool = 392:1,
        /// Requests: how many paths at most, 7 bits.
        numb_path: u8 = 393:7,
        p_key: PKey = 400:16,
        qos_class: u16 = 416:12,
        sl: ServiceLevel = 428:4,
        mtu_selector: Selector = 432:2,
        mtu: MtuCode = 434:6,
        rate_selector: Selector = 440:2,
        rate: RateCode = 442:6,
        packet_life_time_selector: Selector = 448:2,
        /// 4.096 us * 2^n.
        packet_life_time: u8 = 450:6,
        preference: u8 = 456:8,
    }
}

/// Component mask bits of PathRecord.
pub mod comp {
    use crate::mad::sa::ComponentMask;

    pub const SERVICE_ID: ComponentMask = ComponentMask(3);
    pub const DGID: ComponentMask = ComponentMask(1 << 2);
    pub const SGID: ComponentMask = ComponentMask(1 << 3);
    pub const DLID: ComponentMask = ComponentMask(1 << 4);
    pub const SLID: ComponentMask = ComponentMask(1 << 5);
    pub const RAW_TRAFFIC: ComponentMask = ComponentMask(1 << 6);
    pub const FLOW_LABEL: ComponentMask = ComponentMask(1 << 8);
    pub const HOP_LIMIT: ComponentMask = ComponentMask(1 << 9);
    pub const TCLASS: ComponentMask = ComponentMask(1 << 10);
    pub const REVERSIBLE: ComponentMask = ComponentMask(1 << 11);
    pub const NUMB_PATH: ComponentMask = ComponentMask(1 << 12);
    pub const P_KEY: ComponentMask = ComponentMask(1 << 13);
    pub const QOS_CLASS: ComponentMask = ComponentMask(1 << 14);
    pub const SL: ComponentMask = ComponentMask(1 << 15);
    pub const MTU_SELECTOR: ComponentMask = ComponentMask(1 << 16);
    pub const MTU: ComponentMask = ComponentMask(1 << 17);
    pub const RATE_SELECTOR: ComponentMask = ComponentMask(1 << 18);
    pub const RATE: ComponentMask = ComponentMask(1 << 19);
    pub const PACKET_LIFE_TIME_SELECTOR: ComponentMask = ComponentMask(1 << 20);
    pub const PACKET_LIFE_TIME: ComponentMask = ComponentMask(1 << 21);
    pub const PREFERENCE: ComponentMask = ComponentMask(1 << 22);

    /// What IPoIB fills in to ask for a path, 0x340C: both GIDs, TClass, one path, P_Key (Linux `ipoib_main.c`, `path_rec_start`).
    pub const IPOIB_QUERY: ComponentMask = DGID.and(SGID).and(TCLASS).and(NUMB_PATH).and(P_KEY);
    const _: () = assert!(IPOIB_QUERY.0 == 0x340c);
}
