//! Directed-route processing of SMPs at one node (IBA 14.2.2; C14-9 and C14-13 and their five cases each).
//!
//! Works in place on the 256 bytes: only the hop pointer and one byte of the return path ever change on the way. The numbers in the comments
//! are the cases of C14-9 (outbound) and C14-13 (returning). The LRH of a directed-route SMP is not looked at beyond its DLID: Linux answers
//! with its own LID as SLID, where the standard wants the permissive LID.

use super::DropReason;
use wire::Lid;

/// Where a directed-route SMP goes after this node has processed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// To the node at the other end of this port.
    Out(u8),
    /// A request at its end: to the subnet management agent or subnet manager here.
    Here,
    /// A response back at its beginning: to the subnet manager that asked.
    Back,
    /// The directed part of the route is over; the rest is LID-routed to this LID.
    ByLid(Lid),
}

/// What of a node the rules depend on.
#[derive(Clone, Copy, Debug)]
pub struct SmiNode {
    /// Switches forward; channel adapters only begin and end routes.
    pub is_switch: bool,
    /// Number of physical ports.
    pub ports: u8,
}

const STATUS: usize = 4;
const HOP_POINTER: usize = 6;
const HOP_COUNT: usize = 7;
const DR_SLID: usize = 32;
const DR_DLID: usize = 34;
const INITIAL_PATH: usize = 128;
const RETURN_PATH: usize = 192;
/// The path vectors have 64 bytes, of which byte 0 is not used.
const MAX_HOPS: u8 = 63;

fn lid(mad: &[u8; 256], at: usize) -> Lid {
    Lid(u16::from_be_bytes([mad[at], mad[at + 1]]))
}

impl SmiNode {
    /// A directed-route SMP came in by `ingress`.
    pub fn receive(self, mad: &mut [u8; 256], ingress: u8) -> Result<Route, DropReason> {
        let (pointer, count) = (mad[HOP_POINTER], mad[HOP_COUNT]);
        if count > MAX_HOPS {
            return Err(DropReason::BadRoute);
        }
        if mad[STATUS] & 0x80 != 0 {
            return self.receive_returning(mad, ingress);
        }
        match pointer {
            // 9:1 is a beginning, which never comes off a link. Nor does an empty path that begins and ends here: the answer would have no
            // way back.
            0 if count > 0 || (ingress != 0 && lid(mad, DR_SLID) == Lid::PERMISSIVE) => {
                Err(DropReason::BadRoute)
            }
            // 9:2: an intermediate hop.
            p if p < count => {
                mad[RETURN_PATH + usize::from(p)] = ingress;
                mad[HOP_POINTER] = p + 1;
                self.out(mad[INITIAL_PATH + usize::from(p) + 1])
            }
            // 9:3: the end of the directed part.
            p if p == count => {
                if count > 0 {
                    mad[RETURN_PATH + usize::from(p)] = ingress;
                }
                mad[HOP_POINTER] = p + 1;
                self.end(lid(mad, DR_DLID), Route::Here)
            }
            // 9:4: came the last part by LID.
            p if p == count + 1 => Ok(Route::Here),
            _ => Err(DropReason::BadRoute),
        }
    }

    /// A response comes back by the port that its request left by: else somebody answers for others.
    fn receive_returning(self, mad: &mut [u8; 256], ingress: u8) -> Result<Route, DropReason> {
        let (pointer, count) = (mad[HOP_POINTER], mad[HOP_COUNT]);
        match pointer {
            // 13:4: came the last part by LID; or never left this node.
            0 if ingress == 0 || lid(mad, DR_SLID) != Lid::PERMISSIVE => Ok(Route::Back),
            p if (1..=count).contains(&p) && mad[INITIAL_PATH + usize::from(p)] != ingress => {
                Err(DropReason::BadRoute)
            }
            // 13:3: the end of the directed part.
            1 => {
                mad[HOP_POINTER] = 0;
                self.end(lid(mad, DR_SLID), Route::Back)
            }
            // 13:2: an intermediate hop; 13:1 where a LID-routed first part ends here.
            p if (2..=count + 1).contains(&p) => {
                mad[HOP_POINTER] = p - 1;
                self.out(mad[RETURN_PATH + usize::from(p) - 1])
            }
            _ => Err(DropReason::BadRoute),
        }
    }

    /// A subnet manager at this node sends a directed-route request, or the agent here sends a response. `requester`: for a response, the SLID
    /// of the request, where it goes if the request came its last part by LID.
    pub fn send(self, mad: &mut [u8; 256], requester: Lid) -> Result<Route, DropReason> {
        let (pointer, count) = (mad[HOP_POINTER], mad[HOP_COUNT]);
        if count > MAX_HOPS {
            return Err(DropReason::BadRoute);
        }
        if mad[STATUS] & 0x80 == 0 {
            if pointer != 0 {
                return Err(DropReason::BadRoute);
            }
            mad[HOP_POINTER] = 1;
            return match count {
                // 9:3 with an empty path: to this very node.
                0 => self.end(lid(mad, DR_DLID), Route::Here),
                // 9:1
                _ => self.begin(mad[INITIAL_PATH + 1]),
            };
        }
        if pointer != count + 1 {
            return Err(DropReason::BadRoute);
        }
        if lid(mad, DR_DLID) != Lid::PERMISSIVE {
            return if requester.is_unicast() {
                Ok(Route::ByLid(requester))
            } else {
                Err(DropReason::BadRoute)
            };
        }
        mad[HOP_POINTER] = count;
        match count {
            // 13:3 with an empty path.
            0 => self.end(lid(mad, DR_SLID), Route::Back),
            // 13:1
            _ => self.begin(mad[RETURN_PATH + usize::from(count)]),
        }
    }

    /// Forward, which only switches do.
    fn out(self, port: u8) -> Result<Route, DropReason> {
        if self.is_switch {
            self.begin(port)
        } else {
            Err(DropReason::BadRoute)
        }
    }

    /// Leave by a port that exists.
    fn begin(self, port: u8) -> Result<Route, DropReason> {
        if (1..=self.ports).contains(&port) {
            Ok(Route::Out(port))
        } else {
            Err(DropReason::BadRoute)
        }
    }

    /// The directed part is over: `here` unless a LID-routed part follows, which only a switch can start.
    fn end(self, next: Lid, here: Route) -> Result<Route, DropReason> {
        match next {
            Lid::PERMISSIVE => Ok(here),
            lid if self.is_switch && lid.is_unicast() => Ok(Route::ByLid(lid)),
            _ => Err(DropReason::BadRoute),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::mad::{AttrId, MadStatus, Method, Smp};

    #[test]
    fn nobody_answers_for_others() {
        let switch = SmiNode {
            is_switch: true,
            ports: 8,
        };
        let answer = |pointer| {
            let mut smp = Smp::directed(Method::GET, AttrId::NODE_INFO, 0, 1, &[2, 3])
                .response(MadStatus::OK);
            smp.return_path[1] = 5;
            smp.set_hop_pointer(pointer);
            smp.emit()
        };
        // At the first switch, and at the second one.
        for (pointer, asked_by, right) in [(1, 2, Route::Back), (2, 3, Route::Out(5))] {
            for ingress in 0..=8 {
                let routed = switch.receive(&mut answer(pointer), ingress);
                let expected = if ingress == asked_by {
                    Ok(right)
                } else {
                    Err(DropReason::BadRoute)
                };
                assert_eq!(routed, expected, "{pointer} {ingress}");
            }
        }
        // Nor by the back door for routes that end LID-routed.
        assert_eq!(switch.receive(&mut answer(0), 2), Err(DropReason::BadRoute));
    }
}
