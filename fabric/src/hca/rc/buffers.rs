//! Memory of messages, kept for those to come: the allocator gives large blocks back to the kernel, and to have their pages again costs more
//! than to copy the message.

use parking_lot::Mutex;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};

/// Blocks kept by an HCA, and the largest that is kept: 4 MiB at IPoIB's 65,520 bytes.
const MAX_KEPT: usize = 64;
const MAX_LEN: usize = 1 << 17;

/// The blocks that are free.
#[derive(Default)]
pub(in crate::hca) struct Buffers(Mutex<Vec<Vec<u8>>>);

/// Bytes that go back to where they are from.
#[derive(Default)]
pub(in crate::hca) struct Buffer {
    bytes: Vec<u8>,
    home: Weak<Buffers>,
}

impl Buffers {
    /// An empty one.
    pub(in crate::hca) fn take(self: &Arc<Self>) -> Buffer {
        Buffer {
            bytes: self.0.lock().pop().unwrap_or_default(),
            home: Arc::downgrade(self),
        }
    }

    /// A copy.
    pub(in crate::hca) fn copy(self: &Arc<Self>, bytes: &[u8]) -> Arc<Buffer> {
        let mut buffer = self.take();
        buffer.extend_from_slice(bytes);
        Arc::new(buffer)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if (1..=MAX_LEN).contains(&self.bytes.capacity())
            && let Some(home) = self.home.upgrade()
        {
            self.bytes.clear();
            let mut kept = home.0.lock();
            if kept.len() < MAX_KEPT {
                kept.push(std::mem::take(&mut self.bytes));
            }
        }
    }
}

impl Deref for Buffer {
    type Target = Vec<u8>;
    fn deref(&self) -> &Vec<u8> {
        &self.bytes
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}

impl PartialEq for Buffer {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Buffer {}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes.fmt(f)
    }
}

#[cfg(test)]
impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        let home = Weak::new();
        Buffer { bytes, home }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_used_again_up_to_a_limit() {
        let buffers = Arc::<Buffers>::default();
        let first = buffers.copy(&[7; 5_000]);
        let at = first.as_ptr();
        drop((first.clone(), first));
        let again = buffers.take();
        assert!(again.is_empty() && again.as_ptr() == at);
        let many: Vec<_> = (0..MAX_KEPT + 9).map(|_| buffers.copy(b"x")).collect();
        drop((many, again, buffers.copy(&[0; MAX_LEN + 1])));
        assert_eq!(buffers.0.lock().len(), MAX_KEPT);
        let late = buffers.copy(b"late");
        drop(buffers);
        assert_eq!(***late, *b"late");
    }
}
