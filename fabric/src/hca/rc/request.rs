//! A work request on its way, and the packets it is cut into (IBA 9.4).

use super::buffers::Buffer;
use super::{Buffers, Outgoing, Payload};
use std::sync::Arc;
use verbs::{ConnectedSend, ConnectedService, Operation, RemoteAddress};
use wire::Psn;
use wire::packet::{AtomicEth, Extended, Opcode, Reth};

/// A posted work request.
pub(super) struct Request {
    pub(super) id: u64,
    pub(super) work: Work,
    pub(super) signalled: bool,
    pub(super) solicited: bool,
    pub(super) fence: bool,
    /// Number of the request, from 1: the responder's MSN once it is done.
    pub(super) ssn: u64,
    /// Its PSNs, those of RDMA READ responses too.
    pub(super) first: u64,
    pub(super) end: u64,
}

/// What to do, with what it needs.
pub(super) enum Work {
    Send {
        payload: Arc<Buffer>,
        immediate: Option<u32>,
    },
    Write {
        payload: Arc<Buffer>,
        to: RemoteAddress,
        immediate: Option<u32>,
    },
    Read {
        from: RemoteAddress,
        len: u32,
        /// What came so far.
        data: Vec<u8>,
    },
    CompareSwap {
        at: RemoteAddress,
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        at: RemoteAddress,
        add: u64,
    },
}

impl Request {
    /// Its packets begin at number `first`.
    pub(super) fn new(
        send: &ConnectedSend<'_>,
        buffers: &Arc<Buffers>,
        pmtu: usize,
        ssn: u64,
        first: u64,
    ) -> Self {
        let (work, length) = match send.operation {
            Operation::Send { payload, immediate } => {
                let work = Work::Send {
                    payload: buffers.copy(payload),
                    immediate,
                };
                (work, payload.len())
            }
            Operation::Write {
                payload,
                to,
                immediate,
            } => {
                let work = Work::Write {
                    payload: buffers.copy(payload),
                    to,
                    immediate,
                };
                (work, payload.len())
            }
            Operation::Read { from, len } => {
                let data = Vec::new();
                (Work::Read { from, len, data }, len as usize)
            }
            Operation::CompareSwap { at, compare, swap } => {
                (Work::CompareSwap { at, compare, swap }, 0)
            }
            Operation::FetchAdd { at, add } => (Work::FetchAdd { at, add }, 0),
        };
        Request {
            id: send.id,
            work,
            signalled: send.signalled,
            solicited: send.solicited,
            fence: send.fence,
            ssn,
            first,
            end: first + (length.div_ceil(pmtu) as u64).max(1),
        }
    }

    /// RDMA READ or ATOMIC: done by a response, not by an acknowledgement.
    pub(super) fn wants_response(&self) -> bool {
        !matches!(self.work, Work::Send { .. } | Work::Write { .. })
    }
    /// Bytes it keeps.
    pub(super) fn bytes(&self) -> usize {
        match &self.work {
            Work::Send { payload, .. } | Work::Write { payload, .. } => payload.len(),
            _ => 0,
        }
    }

    /// Its packet at number `at`, without PSN.
    pub(super) fn packet(&self, service: ConnectedService, pmtu: usize, at: u64) -> Outgoing {
        let offset = (at - self.first) as usize * pmtu;
        let (first, last) = (at == self.first, at + 1 == self.end);
        let reth = |to: &RemoteAddress, done: usize, length: usize| Reth {
            virtual_address: to.address.wrapping_add(done as u64),
            r_key: to.r_key,
            dma_length: (length - done) as u32,
        };
        let atomic = |at: &RemoteAddress, swap_or_add, compare| AtomicEth {
            virtual_address: at.address,
            r_key: at.r_key,
            swap_or_add,
            compare,
        };
        let mut ext = Extended::default();
        let mut payload = Payload::default();
        let mut cut = |bytes: &Arc<Buffer>| {
            let end = bytes.len().min(offset + pmtu);
            payload = Payload::new(bytes.clone(), offset..end);
        };
        // Operations of parts: first, middle, last, only.
        let part = |base: u8, immediate: bool| match (first, last) {
            (true, false) => base,
            (false, false) => base + 1,
            (false, true) => base + 2 + u8::from(immediate),
            (true, true) => base + 4 + u8::from(immediate),
        };
        let operation = match &self.work {
            Work::Send {
                payload: bytes,
                immediate,
            } => {
                cut(bytes);
                ext.immediate = immediate.filter(|_| last);
                part(Opcode::RC_SEND_FIRST.0, immediate.is_some())
            }
            Work::Write {
                payload: bytes,
                to,
                immediate,
            } => {
                cut(bytes);
                ext.immediate = immediate.filter(|_| last);
                ext.reth = first.then(|| reth(to, 0, bytes.len()));
                part(Opcode::RC_RDMA_WRITE_FIRST.0, immediate.is_some())
            }
            Work::Read { from, len, .. } => {
                ext.reth = Some(reth(from, offset, *len as usize));
                Opcode::RC_RDMA_READ_REQUEST.0
            }
            Work::CompareSwap { at, compare, swap } => {
                ext.atomic = Some(atomic(at, *swap, *compare));
                Opcode::RC_COMPARE_SWAP.0
            }
            Work::FetchAdd { at, add } => {
                ext.atomic = Some(atomic(at, *add, 0));
                Opcode::RC_FETCH_ADD.0
            }
        };
        let told = matches!(self.work, Work::Send { .. }) || ext.immediate.is_some();
        Outgoing {
            opcode: super::opcode(service, operation),
            solicited: self.solicited && last && told,
            ack_req: false,
            psn: Psn(0),
            ext,
            payload,
        }
    }
}
