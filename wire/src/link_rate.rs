//! Width and speed of links, and the rates they make (IBA 5.3, 14.2.5.6; rate codes of 15.2.5.16).

use crate::id::RateCode;
use crate::mad::attr::{LinkWidth, PortInfo};
use std::fmt;
use std::str::FromStr;

/// Signalling speed of a lane, slowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinkSpeed {
    /// 2.5 Gbit/s.
    Sdr,
    /// 5 Gbit/s.
    Ddr,
    /// 10 Gbit/s.
    Qdr,
    /// 10 Gbit/s with 64/66 encoding. PortInfo has no code of its own for it: there it is QDR.
    Fdr10,
    /// 14 Gbit/s.
    Fdr,
    /// 25 Gbit/s.
    Edr,
    /// 50 Gbit/s.
    Hdr,
    /// 100 Gbit/s.
    Ndr,
    /// 200 Gbit/s.
    Xdr,
}

/// Speed, name, Mbit/s of a lane as rate codes count it, bit in LinkSpeed, bit in LinkSpeedExt, bit in LinkSpeedExt2.
const SPEEDS: [(LinkSpeed, &str, u32, u8, u8, u8); 9] = [
    (LinkSpeed::Sdr, "SDR", 2_500, 1, 0, 0),
    (LinkSpeed::Ddr, "DDR", 5_000, 2, 0, 0),
    (LinkSpeed::Qdr, "QDR", 10_000, 4, 0, 0),
    (LinkSpeed::Fdr10, "FDR10", 10_000, 4, 0, 0),
    (LinkSpeed::Fdr, "FDR", 14_000, 4, 1, 0),
    (LinkSpeed::Edr, "EDR", 25_000, 4, 2, 0),
    (LinkSpeed::Hdr, "HDR", 50_000, 4, 4, 0),
    (LinkSpeed::Ndr, "NDR", 100_000, 4, 8, 0),
    (LinkSpeed::Xdr, "XDR", 200_000, 4, 8, 1),
];

/// LinkSpeedExtEnabled: none of them.
const NO_EXTENDED_SPEED: u8 = 30;

/// Lanes and their bit in LinkWidth, narrowest first.
const WIDTHS: [(u8, LinkWidth); 5] = [
    (1, LinkWidth::X1),
    (2, LinkWidth::X2),
    (4, LinkWidth::X4),
    (8, LinkWidth::X8),
    (12, LinkWidth::X12),
];

impl LinkSpeed {
    /// All, slowest first.
    pub const ALL: [LinkSpeed; 9] = [
        LinkSpeed::Sdr,
        LinkSpeed::Ddr,
        LinkSpeed::Qdr,
        LinkSpeed::Fdr10,
        LinkSpeed::Fdr,
        LinkSpeed::Edr,
        LinkSpeed::Hdr,
        LinkSpeed::Ndr,
        LinkSpeed::Xdr,
    ];

    fn row(self) -> &'static (LinkSpeed, &'static str, u32, u8, u8, u8) {
        &SPEEDS[self as usize]
    }
}

impl fmt::Display for LinkSpeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().1)
    }
}

/// Width and speed of a link, written as `4xQDR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkRate {
    /// 1, 2, 4, 8 or 12.
    lanes: u8,
    speed: LinkSpeed,
}

impl Default for LinkRate {
    /// 4xSDR, 10 Gbit/s: what the broadcast groups of IPoIB ask for by default.
    fn default() -> Self {
        LinkRate {
            lanes: 4,
            speed: LinkSpeed::Sdr,
        }
    }
}

impl LinkRate {
    /// `None` if no link has so many lanes.
    pub const fn new(lanes: u8, speed: LinkSpeed) -> Option<Self> {
        match lanes {
            1 | 2 | 4 | 8 | 12 => Some(LinkRate { lanes, speed }),
            _ => None,
        }
    }

    /// Number of lanes.
    pub fn lanes(self) -> u8 {
        self.lanes
    }

    /// Speed of each lane.
    pub fn speed(self) -> LinkSpeed {
        self.speed
    }

    /// What two ports agree on: the fewer lanes, the lower speed.
    pub fn min(self, other: Self) -> Self {
        LinkRate {
            lanes: self.lanes.min(other.lanes),
            speed: self.speed.min(other.speed),
        }
    }

    /// Mbit/s of all lanes.
    pub fn mbps(self) -> u32 {
        u32::from(self.lanes) * self.speed.row().2
    }

    /// The rate code of this link: the fastest that is not faster than it.
    pub fn code(self) -> RateCode {
        RateCode::all()
            .filter(|code| code.mbps().is_some_and(|mbps| mbps <= self.mbps()))
            .max_by_key(|code| code.mbps())
            // 1xSDR has the lowest code, and no link is slower.
            .unwrap_or(RateCode(2))
    }

    /// What PortInfo says is active; `None` if it says nothing of meaning.
    pub fn active(info: &PortInfo) -> Option<Self> {
        let lanes = WIDTHS.iter().find(|w| w.1 == info.link_width_active)?.0;
        let speed = match (info.link_speed_ext_active, info.link_speed_ext_active2) {
            (0, 0) => SPEEDS
                .iter()
                .find(|s| s.3 == info.link_speed_active)
                .map(|s| s.0)?,
            (bit, 0) => SPEEDS.iter().find(|s| s.4 == bit).map(|s| s.0)?,
            (_, bit) => SPEEDS.iter().find(|s| s.5 == bit).map(|s| s.0)?,
        };
        Some(LinkRate { lanes, speed })
    }

    /// The most that PortInfo says is enabled; `None` if that is nothing of meaning.
    pub fn enabled(info: &PortInfo) -> Option<Self> {
        let width = |w: &&(u8, LinkWidth)| info.link_width_enabled.0 & w.1.0 != 0;
        let lanes = WIDTHS.iter().rfind(width)?.0;
        let extended = match info.link_speed_ext_enabled {
            NO_EXTENDED_SPEED => 0,
            bits => bits,
        };
        let speed = SPEEDS.iter().rfind(|s| match (s.4, s.5) {
            (0, 0) => info.link_speed_enabled & s.3 != 0,
            (bit, 0) => extended & bit != 0,
            (_, bit) => info.link_speed_ext_enabled2 & bit != 0,
        });
        Some(LinkRate {
            lanes,
            speed: speed?.0,
        })
    }

    /// Says in `info` that all up to this is supported and enabled.
    pub fn set_supported(self, info: &mut PortInfo) {
        // 2x came late: what has 4, 8 or 12 lanes need not know it, and the standard's codes for "1x or 4x" leave it out.
        let widths = WIDTHS
            .iter()
            .filter(|w| w.0 == self.lanes || w.0 < self.lanes && w.1 != LinkWidth::X2);
        let mask = widths.fold(0, |mask, w| mask | w.1.0);
        let (speed, ext, ext2) = SPEEDS
            .iter()
            .filter(|s| s.0 <= self.speed)
            .fold((0, 0, 0), |(a, b, c), s| (a | s.3, b | s.4, c | s.5));
        info.link_width_supported = LinkWidth(mask);
        info.link_width_enabled = LinkWidth(mask);
        info.link_speed_supported = speed;
        info.link_speed_enabled = speed;
        info.link_speed_ext_supported = ext;
        info.link_speed_ext_enabled = ext;
        info.link_speed_ext_supported2 = ext2;
        info.link_speed_ext_enabled2 = ext2;
    }

    /// Says in `info` that this is active.
    pub fn set_active(self, info: &mut PortInfo) {
        let row = self.speed.row();
        // `new` lets only the widths of the table in.
        let width = WIDTHS.iter().find(|w| w.0 == self.lanes);
        info.link_width_active = width.map_or(LinkWidth::X1, |w| w.1);
        info.link_speed_active = row.3;
        (info.link_speed_ext_active, info.link_speed_ext_active2) = match row.5 {
            0 => (row.4, 0),
            bit => (0, bit),
        };
    }
}

impl fmt::Display for LinkRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.lanes, self.speed)
    }
}

/// Not a width and a speed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLinkRate;

impl fmt::Display for BadLinkRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a link's width and speed (1x, 2x, 4x, 8x or 12x, then SDR, DDR, QDR, FDR10, FDR, EDR, HDR, NDR or XDR)")
    }
}

impl std::error::Error for BadLinkRate {}

impl FromStr for LinkRate {
    type Err = BadLinkRate;

    fn from_str(text: &str) -> Result<Self, BadLinkRate> {
        let (lanes, name) = text.split_once('x').ok_or(BadLinkRate)?;
        let speed = SPEEDS.iter().find(|s| s.1 == name).ok_or(BadLinkRate)?.0;
        let lanes = lanes.parse().map_err(|_| BadLinkRate)?;
        LinkRate::new(lanes, speed).ok_or(BadLinkRate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_standard() {
        for (text, gbps) in [
            ("1xSDR", 2.5),
            ("4xSDR", 10.0),
            ("12xSDR", 30.0),
            ("4xDDR", 20.0),
            ("2xQDR", 20.0),
            ("4xQDR", 40.0),
            ("4xFDR10", 40.0),
            ("1xFDR", 14.0),
            ("2xFDR", 28.0),
            ("4xFDR", 56.0),
            ("8xFDR", 112.0),
            ("12xFDR", 168.0),
            ("4xEDR", 100.0),
            ("12xEDR", 300.0),
            ("2xHDR", 100.0),
            ("4xHDR", 200.0),
            ("12xHDR", 600.0),
            ("4xNDR", 400.0),
            ("12xNDR", 1200.0),
            ("4xXDR", 800.0),
            ("8xXDR", 1600.0),
        ] {
            let rate: LinkRate = text.parse().expect(text);
            assert_eq!(rate.to_string(), text);
            assert_eq!(rate.code().to_string(), format!("{gbps} Gbit/s"));
        }
        for text in ["", "x", "3xSDR", "4xsdr", "4x", "4xSDR ", "300xSDR"] {
            assert_eq!(text.parse::<LinkRate>(), Err(BadLinkRate), "{text}");
        }
    }

    #[test]
    fn port_info_tells_what_was_set() {
        for (speed, ..) in SPEEDS {
            for (lanes, width) in WIDTHS {
                let rate = LinkRate { lanes, speed };
                let mut info = PortInfo::default();
                rate.set_supported(&mut info);
                rate.set_active(&mut info);
                assert_eq!(info.link_width_active, width);
                assert_ne!(info.link_width_supported.0 & width.0, 0);
                let enabled = LinkRate::enabled(&info).expect("a rate");
                assert_eq!((enabled.lanes, enabled.code()), (lanes, rate.code()));
                let read = LinkRate::active(&PortInfo::parse(&info.emit()).expect("64 bytes"));
                let read = read.expect("a rate");
                assert_eq!((read.lanes, read.code()), (lanes, rate.code()));
            }
        }
        assert_eq!(LinkRate::active(&PortInfo::default()), None);
        assert_eq!(LinkRate::enabled(&PortInfo::default()), None);
        let mut info = PortInfo::default();
        LinkRate::new(4, LinkSpeed::Ndr)
            .expect("a rate")
            .set_supported(&mut info);
        info.link_speed_ext_enabled = NO_EXTENDED_SPEED;
        info.link_width_enabled = LinkWidth::X1;
        let enabled = LinkRate::enabled(&info).map(|rate| rate.mbps());
        assert_eq!(enabled, Some(10_000));
    }
}
