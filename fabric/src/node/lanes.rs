//! Virtual lanes of a port: which service level leaves by which lane (IBA 7.6.6, 14.2.5.8).

use wire::ServiceLevel;
use wire::mad::attr::SlToVl;

/// Tables of a port that sends not everything on VL0.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Lanes {
    /// Data lanes that are in use.
    operational: u8,
    /// By input port; of an HCA there is only 0.
    tables: Vec<SlToVl>,
}

impl Lanes {
    /// `None` if everything leaves by VL0. `operational_vls`: as PortInfo codes it.
    pub(crate) fn new(operational_vls: u8, tables: Vec<SlToVl>) -> Option<Lanes> {
        let plain = tables.iter().all(|t| *t == SlToVl::default());
        (!plain).then(|| Lanes {
            operational: match operational_vls {
                5.. => 15,
                code => 1 << code.saturating_sub(1),
            },
            tables,
        })
    }

    /// The lane of `sl` for what came in by `input`; `None`: it is to be dropped, for its lane is 15 or is not in use.
    fn lane(&self, input: u8, sl: ServiceLevel) -> Option<u8> {
        let table = self.tables.get(usize::from(input));
        Some(table.map_or(0, |t| t.vl(sl))).filter(|vl| *vl < self.operational)
    }
}

/// As [`Lanes::lane`], for a port that may have no tables.
pub(crate) fn lane(lanes: Option<&Lanes>, input: u8, sl: ServiceLevel) -> Option<u8> {
    lanes.map_or(Some(0), |l| l.lane(input, sl))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_follow_the_table_of_the_input() {
        let mut table = SlToVl::default();
        (table.vl[3], table.vl[4], table.vl[5]) = (1, 15, 2);
        assert_eq!(Lanes::new(2, vec![SlToVl::default(); 3]), None);
        let lanes = Lanes::new(2, vec![SlToVl::default(), table]).expect("tables that matter");
        let of = |input, sl| lane(Some(&lanes), input, ServiceLevel(sl));
        assert_eq!((of(0, 3), of(1, 3), of(7, 3)), (Some(0), Some(1), Some(0)));
        assert_eq!(
            (of(1, 4), of(1, 5)),
            (None, None),
            "VL15, and a lane of three where two are in use"
        );
        assert_eq!(lane(None, 0, ServiceLevel(9)), Some(0));
        for (code, count) in [(0, 1), (1, 1), (2, 2), (3, 4), (4, 8), (5, 15), (15, 15)] {
            let lanes = Lanes::new(code, vec![table]).expect("tables that matter");
            assert_eq!(lanes.operational, count);
        }
    }
}
