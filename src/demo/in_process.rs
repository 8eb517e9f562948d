//! Demo hosts without the kernel.
use super::{DemoHost, Sent};
use crate::cli::InterfaceAddress;
use crate::node::{Node, NodeConfig};
use crate::subnet::Subnet;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};
pub(super) struct StackHost {}
impl StackHost {
    pub(super) fn start(_config: NodeConfig, _addresses: &[InterfaceAddress], _subnet: &Subnet) -> anyhow::Result<StackHost> {
        anyhow::bail!("not yet")
    }
}
impl DemoHost for StackHost {
    fn node(&self) -> &Node { unimplemented!() }
    fn is_running(&self) -> bool { true }
    fn echo(&self, _to: IpAddr, _want: usize, _timeout: Duration) -> anyhow::Result<BTreeMap<IpAddr, Duration>> { unimplemented!() }
    fn listen(&self) -> anyhow::Result<Box<dyn FnOnce(Instant) -> anyhow::Result<()> + Send + '_>> { unimplemented!() }
    fn send(&self, _to: IpAddr, _bytes: usize, _deadline: Instant) -> anyhow::Result<Sent> { unimplemented!() }
}
