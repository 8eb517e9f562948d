//! ServiceRecord: who offers which service, for a time (IBA 15.2.5.15).

use super::records::{Field, matches};
use super::{Answer, Records, Request, Subnet};
use std::time::{Duration, Instant};
use wire::mad::MadStatus;
use wire::mad::attr::ServiceRecord;
use wire::{Gid, PKey};

/// Records in all, and of one port.
const MAX_SERVICES: usize = 16_384;
const MAX_PER_PORT: usize = 128;
const FOR_EVER: u32 = u32::MAX;

const COMPONENTS: &[Field] = &[
    (0, 0, 64),
    (1, 64, 128),
    (2, 192, 16),
    (5, 256, 128),
    (6, 384, 512),
];

/// All records, with the time when each expires.
#[derive(Default)]
pub(super) struct Services(Vec<(ServiceRecord, Option<Instant>)>);

impl Services {
    fn owned(subnet: &Subnet<'_>, request: &Request<'_>, record: &ServiceRecord) -> bool {
        request.trusted || subnet.by_gid(record.service_gid) == Some(request.port)
    }

    fn same(a: &ServiceRecord, b: &ServiceRecord) -> bool {
        a.service_id == b.service_id
            && a.service_gid == b.service_gid
            && a.service_p_key == b.service_p_key
    }

    pub(super) fn set(
        &mut self,
        now: Instant,
        subnet: &Subnet<'_>,
        request: &Request<'_>,
        record: ServiceRecord,
    ) -> Answer {
        // Identifier and GID are the key (IBA 15.2.5.15); a foreign port's services are not for others to offer.
        let has_key = request.sa.component_mask.0 & 0b11 == 0b11;
        let in_partition = record.service_p_key.0 == 0
            || subnet
                .topo
                .port(request.port)
                .is_some_and(|p| p.pkey_like(record.service_p_key).is_some());
        if !has_key || !Self::owned(subnet, request, &record) || !in_partition {
            return Err(MadStatus::SA_REQ_INVALID);
        }
        let mut record = record;
        if request.sa.component_mask.0 & 1 << 4 == 0 {
            record.service_lease = FOR_EVER;
        }
        let expires = (record.service_lease != FOR_EVER)
            .then(|| now + Duration::from_secs(record.service_lease.into()));
        if let Some(old) = self.0.iter_mut().find(|(old, _)| Self::same(old, &record)) {
            *old = (record, expires);
        } else {
            let of_port = self
                .0
                .iter()
                .filter(|(old, _)| old.service_gid == record.service_gid)
                .count();
            if self.0.len() >= MAX_SERVICES || of_port >= MAX_PER_PORT {
                return Err(MadStatus::SA_NO_RESOURCES);
            }
            self.0.push((record, expires));
        }
        Ok(Records::one(&record.emit()))
    }

    pub(super) fn delete(&mut self, subnet: &Subnet<'_>, request: &Request<'_>) -> Answer {
        let mask = request.sa.component_mask.0;
        let found = self
            .0
            .iter()
            .position(|(old, _)| matches(mask, &request.sa.data, &old.emit(), COMPONENTS))
            .ok_or(MadStatus::SA_NO_RECORDS)?;
        if !Self::owned(subnet, request, &self.0[found].0) {
            return Err(MadStatus::SA_REQ_INVALID);
        }
        let (record, _) = self.0.remove(found);
        Ok(Records::one(&record.emit()))
    }

    pub(super) fn query(
        &self,
        now: Instant,
        subnet: &Subnet<'_>,
        request: &Request<'_>,
    ) -> Records {
        let mut records = Records::new(ServiceRecord::LEN);
        let own = subnet.topo.port(request.port);
        for (record, expires) in &self.0 {
            let visible = request.trusted
                || own.is_some_and(|p| {
                    let key = record.service_p_key;
                    key == PKey(0) || p.pkey_like(key).is_some()
                });
            if !visible
                || !matches(
                    request.sa.component_mask.0,
                    &request.sa.data,
                    &record.emit(),
                    COMPONENTS,
                )
            {
                continue;
            }
            let mut record = *record;
            if let Some(expires) = expires {
                record.service_lease = expires.saturating_duration_since(now).as_secs() as u32;
            }
            if !request.trusted && !Self::owned(subnet, request, &record) {
                record.service_key = [0; 16];
            }
            records.push(&record.emit());
        }
        records
    }

    pub(super) fn drop_port(&mut self, gid: Gid) {
        self.0.retain(|(record, _)| record.service_gid != gid);
    }
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.0.iter().filter_map(|(_, expires)| *expires).min()
    }
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.0
            .retain(|(_, expires)| expires.is_none_or(|at| at > now));
    }
}
