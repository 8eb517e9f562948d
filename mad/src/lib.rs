//! Management datagrams above the wire formats: transactions and the client of subnet administration. Sans-IO: state machines that are fed
//! MADs and the time, and give MADs, events and the next time-out.
//!
//! * [`Transactions`]: outstanding requests of any class by TID, with retries (IBA 13.4.6.4); also for the subnet manager's SMPs
//! * [`SaClient`]: asks the SA (IBA chapter 15) and takes its Reports
//! * [`Cm`]: the communication manager (IBA chapter 12)
#![forbid(unsafe_code)]

mod cm;
mod rmpp;
mod sa;
mod transaction;

pub use cm::{Cm, CmAddress, CmConfig, CmCounters, CmError, CmEvent, CmOutput, ConnectionId};
pub use sa::{
    RequestId, SaClient, SaClientConfig, SaClientCounters, SaError, SaEvent, SaRequest, SaResponse,
    SmAddress,
};
pub use transaction::{Expired, RetryPolicy, Transactions};
