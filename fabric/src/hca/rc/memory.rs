//! Registered memory of an HCA (IBA 10.6), reached by RDMA and ATOMIC operations of its connected queue pairs.

use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use verbs::{Access, MemoryRegion, RemoteAddress, VerbsError};

/// Most regions of an HCA.
const MAX_REGIONS: usize = 1 << 16;
/// Where virtual addresses begin. Each region begins at the same: keys tell them apart.
const BASE: u64 = 0x1000_0000;

/// The regions by their R_Key.
#[derive(Default)]
pub(in crate::hca) struct Regions {
    by_key: RwLock<HashMap<u32, Arc<Region>>>,
    next_key: AtomicU32,
}

/// One region.
pub(in crate::hca) struct Region {
    r_key: u32,
    access: Access,
    bytes: RwLock<Vec<u8>>,
}

/// The user's handle.
pub(in crate::hca) struct Registration {
    regions: Weak<Regions>,
    region: Arc<Region>,
}

/// What an operation needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    Read,
    Write,
    Atomic,
}

impl Regions {
    pub(in crate::hca) fn register(
        self: &Arc<Self>,
        bytes: Vec<u8>,
        access: Access,
    ) -> Result<Registration, VerbsError> {
        let mut by_key = self.by_key.write();
        if by_key.len() >= MAX_REGIONS {
            return Err(VerbsError::NoResources("memory regions", MAX_REGIONS));
        }
        // Ends: there are fewer regions than keys.
        let r_key = loop {
            let key = self.next_key.fetch_add(1, Relaxed).wrapping_add(1);
            if !by_key.contains_key(&key) {
                break key;
            }
        };
        let region = Arc::new(Region {
            r_key,
            access,
            bytes: RwLock::new(bytes),
        });
        by_key.insert(r_key, region.clone());
        Ok(Registration {
            regions: Arc::downgrade(self),
            region,
        })
    }

    pub(in crate::hca) fn len(&self) -> usize {
        self.by_key.read().len()
    }

    /// The region and the offset of `at`, if all of `len` bytes are inside and it allows the access.
    pub(super) fn find(
        &self,
        at: RemoteAddress,
        len: u64,
        need: Need,
    ) -> Option<(Arc<Region>, u64)> {
        let region = self.by_key.read().get(&at.r_key)?.clone();
        let allowed = match need {
            Need::Read => region.access.remote_read,
            Need::Write => region.access.remote_write,
            Need::Atomic => region.access.remote_atomic,
        };
        let offset = at.address.checked_sub(BASE)?;
        let end = offset.checked_add(len)?;
        let inside = end <= region.bytes.read().len() as u64;
        (allowed && inside).then_some((region, offset))
    }
}

impl Region {
    /// The range of `len` bytes from `offset` in a slice of `size`.
    fn range(size: usize, offset: u64, len: usize) -> Option<std::ops::Range<usize>> {
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(len)?;
        (end <= size).then_some(start..end)
    }

    pub(super) fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        let bytes = self.bytes.read();
        let range = Self::range(bytes.len(), offset, into.len());
        range
            .map(|range| into.copy_from_slice(&bytes[range]))
            .is_some()
    }

    pub(super) fn write(&self, offset: u64, from: &[u8]) -> bool {
        let mut bytes = self.bytes.write();
        let range = Self::range(bytes.len(), offset, from.len());
        range
            .map(|range| bytes[range].copy_from_slice(from))
            .is_some()
    }

    /// Replaces eight bytes, a number in the host's byte order (IBA 9.4.5), by what `change` makes of them; returns what was there.
    pub(super) fn atomic(&self, offset: u64, change: impl FnOnce(u64) -> u64) -> Option<u64> {
        let mut bytes = self.bytes.write();
        let range = Self::range(bytes.len(), offset, 8)?;
        let place: &mut [u8; 8] = bytes[range].first_chunk_mut()?;
        let found = u64::from_ne_bytes(*place);
        *place = change(found).to_ne_bytes();
        Some(found)
    }
}

impl MemoryRegion for Registration {
    fn address(&self) -> RemoteAddress {
        RemoteAddress {
            address: BASE,
            r_key: self.region.r_key,
        }
    }
    fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        self.region.read(offset, into)
    }
    fn write(&self, offset: u64, from: &[u8]) -> bool {
        self.region.write(offset, from)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(regions) = self.regions.upgrade() {
            regions.by_key.write().remove(&self.region.r_key);
        }
    }
}
