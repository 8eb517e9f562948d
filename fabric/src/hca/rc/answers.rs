//! Acknowledgements and responses that wait to be sent, in order (IBA 9.7.5.1).

use super::aeth::{Credits, Nak, Syndrome};
use super::memory::Region;
use super::{Buffers, Outgoing, Payload};
use std::collections::VecDeque;
use std::sync::Arc;
use wire::Psn;
use wire::packet::{Aeth, Extended, Opcode};

/// An answer that waits to be sent.
pub(super) enum Answer {
    Ack {
        psn: Psn,
        syndrome: Syndrome,
        msn: u32,
    },
    Read {
        psn: Psn,
        msn: u32,
        region: Arc<Region>,
        offset: u64,
        left: u64,
        first: bool,
    },
    Atomic {
        psn: Psn,
        msn: u32,
        original: u64,
    },
}

/// The queue of answers.
#[derive(Default)]
pub(super) struct Answers(VecDeque<Answer>);

impl Answers {
    pub(super) fn push(&mut self, answer: Answer) {
        self.0.push_back(answer);
    }

    /// Queues an acknowledgement. One that waits and tells less goes: the queue stays short whatever comes.
    pub(super) fn acknowledge(&mut self, psn: Psn, syndrome: Syndrome, msn: u32) {
        if let Some(Answer::Ack {
            psn: waiting,
            syndrome: said,
            ..
        }) = self.0.back()
            && (*said == syndrome || matches!(said, Syndrome::Ack(_)))
            && psn.diff(*waiting) >= 0
        {
            self.0.pop_back();
        }
        self.0.push_back(Answer::Ack { psn, syndrome, msn });
    }

    /// Responses that are not sent yet, without acknowledgements.
    pub(super) fn open(&self) -> usize {
        let responses = self.0.iter();
        responses
            .filter(|a| !matches!(a, Answer::Ack { .. }))
            .count()
    }

    /// The next answer to leave.
    pub(super) fn poll_packet(
        &mut self,
        pmtu: usize,
        credits: Credits,
        buffers: &Arc<Buffers>,
    ) -> Option<Outgoing> {
        let mut ext = Extended::default();
        let mut payload = Payload::default();
        let aeth = |syndrome: Syndrome, msn| {
            Some(Aeth {
                syndrome: syndrome.emit(),
                msn,
            })
        };
        let acked = Syndrome::Ack(credits);
        let (opcode, at) = match self.0.front_mut()? {
            Answer::Ack { psn, syndrome, msn } => {
                ext.aeth = aeth(*syndrome, *msn);
                (Opcode::RC_ACKNOWLEDGE, *psn)
            }
            Answer::Atomic { psn, msn, original } => {
                ext.aeth = aeth(acked, *msn);
                ext.atomic_ack = Some(*original);
                (Opcode::RC_ATOMIC_ACK, *psn)
            }
            Answer::Read {
                psn,
                msn,
                region,
                offset,
                left,
                first,
            } => {
                let len = (*left).min(pmtu as u64);
                let mut bytes = buffers.take();
                bytes.resize(len as usize, 0);
                let at = *psn;
                if region.read(*offset, &mut bytes) {
                    (*offset, *left, *psn) = (*offset + len, *left - len, psn.add(1));
                    let opcode = match (std::mem::take(first), *left == 0) {
                        (true, true) => Opcode::RC_RDMA_READ_RESPONSE_ONLY,
                        (true, false) => Opcode::RC_RDMA_READ_RESPONSE_FIRST,
                        (false, true) => Opcode::RC_RDMA_READ_RESPONSE_LAST,
                        (false, false) => Opcode::RC_RDMA_READ_RESPONSE_MIDDLE,
                    };
                    if opcode != Opcode::RC_RDMA_READ_RESPONSE_MIDDLE {
                        ext.aeth = aeth(acked, *msn);
                    }
                    payload = Payload::new(Arc::new(bytes), 0..len as usize);
                    (opcode, at)
                } else {
                    // Cannot be: a region keeps its length.
                    *left = 0;
                    ext.aeth = aeth(Syndrome::Nak(Nak::RemoteOperation), *msn);
                    (Opcode::RC_ACKNOWLEDGE, at)
                }
            }
        };
        let more = matches!(self.0.front(), Some(Answer::Read { left: 1.., .. }));
        if !more {
            self.0.pop_front();
        }
        Some(Outgoing {
            opcode,
            solicited: false,
            ack_req: false,
            psn: at,
            ext,
            payload,
        })
    }
}
