//! Signatures; bodies follow.
#![allow(missing_docs, unused_variables)]
use crate::{Counters, NeighbourConfig, NeighbourInfo, Output, PathError, PathInfo, Source};
use std::net::IpAddr;
use std::time::Instant;
use wire::Gid;
use wire::ipoib::{ArpPacket, LinkAddress};
use wire::mad::PathRecord;

pub struct Neighbours {}

impl Neighbours {
    pub fn new(config: NeighbourConfig, seed: u64) -> Self {
        Neighbours {}
    }
    pub fn link_up(&mut self, now: Instant, local: LinkAddress) {}
    pub fn link_down(&mut self, now: Instant) {}
    pub fn add_address(&mut self, now: Instant, ip: IpAddr, prefix_len: u8) {}
    pub fn remove_address(&mut self, now: Instant, ip: IpAddr) {}
    pub fn send(&mut self, now: Instant, next_hop: IpAddr, packet: Vec<u8>) {}
    pub fn resolve(&mut self, now: Instant, ip: IpAddr) {}
    pub fn handle_arp(&mut self, now: Instant, from: Source, packet: &ArpPacket) {}
    pub fn handle_nd(&mut self, now: Instant, from: Source, ipv6_packet: &[u8]) {}
    pub fn path_result(&mut self, now: Instant, gid: Gid, result: Result<PathRecord, PathError>) {}
    pub fn used(&mut self, now: Instant, next_hop: IpAddr) {}
    pub fn confirmed(&mut self, now: Instant, ip: IpAddr) {}
    pub fn send_failed(&mut self, now: Instant, next_hop: IpAddr) {}
    pub fn gid_in_service(&mut self, now: Instant, gid: Gid) {}
    pub fn gid_out_of_service(&mut self, now: Instant, gid: Gid) {}
    pub fn refresh_paths(&mut self, now: Instant) {}
    pub fn poll_output(&mut self) -> Option<Output> {
        None
    }
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }
    pub fn handle_timeout(&mut self, now: Instant) {}
    pub fn get(&self, now: Instant, ip: IpAddr) -> Option<NeighbourInfo> {
        None
    }
    pub fn neighbours(&self, now: Instant) -> impl Iterator<Item = NeighbourInfo> {
        std::iter::empty()
    }
    pub fn paths(&self, now: Instant) -> impl Iterator<Item = PathInfo> {
        std::iter::empty()
    }
    pub fn counters(&self) -> Counters {
        Counters::default()
    }
}
