//! Layouts as tables: `record!` makes a struct with `parse` and `emit` from one line per field, each with its bit offset and width as the
//! standard's tables give them. Both directions come from the same line, so they cannot disagree.

/// A value that occupies a run of bits in a big-endian layout.
pub(crate) trait Field: Sized {
    fn get(bytes: &[u8], offset: usize, width: usize) -> Self;
    fn put(&self, bytes: &mut [u8], offset: usize, width: usize);
}

/// Bits `offset .. offset + width` (counted from the most significant bit of byte 0) as a number; `width` is at most 128.
pub(crate) fn get_bits(bytes: &[u8], offset: usize, width: usize) -> u128 {
    let mut value = 0u128;
    let mut at = offset;
    let end = offset + width;
    while at < end {
        let take = (8 - at % 8).min(end - at);
        let shift = 8 - at % 8 - take;
        let part = (bytes[at / 8] >> shift) & (0xffu16 >> (8 - take)) as u8;
        value = (value << take) | u128::from(part);
        at += take;
    }
    value
}

/// Stores the low `width` bits of `value` at bit `offset`, leaving the bits around it.
pub(crate) fn put_bits(bytes: &mut [u8], offset: usize, width: usize, value: u128) {
    let mut at = offset;
    let end = offset + width;
    while at < end {
        let take = (8 - at % 8).min(end - at);
        let shift = 8 - at % 8 - take;
        let mask = (0xffu16 >> (8 - take)) as u8;
        let part = (value >> (end - at - take)) as u8 & mask;
        bytes[at / 8] = (bytes[at / 8] & !(mask << shift)) | (part << shift);
        at += take;
    }
}

macro_rules! int_field {
    ($($t:ty),*) => {$(
        impl Field for $t {
            fn get(bytes: &[u8], offset: usize, width: usize) -> Self { get_bits(bytes, offset, width) as $t }
            fn put(&self, bytes: &mut [u8], offset: usize, width: usize) { put_bits(bytes, offset, width, u128::from(*self)) }
        }
    )*};
}
int_field!(u8, u16, u32, u64, u128);

impl Field for bool {
    fn get(bytes: &[u8], offset: usize, width: usize) -> Self {
        get_bits(bytes, offset, width) != 0
    }
    fn put(&self, bytes: &mut [u8], offset: usize, width: usize) {
        put_bits(bytes, offset, width, u128::from(*self))
    }
}

/// Byte-aligned blobs.
impl<const N: usize> Field for [u8; N] {
    fn get(bytes: &[u8], offset: usize, _width: usize) -> Self {
        let mut value = [0; N];
        value.copy_from_slice(&bytes[offset / 8..offset / 8 + N]);
        value
    }
    fn put(&self, bytes: &mut [u8], offset: usize, _width: usize) {
        bytes[offset / 8..offset / 8 + N].copy_from_slice(self);
    }
}

/// Tables of larger items, one after the other.
macro_rules! array_field {
    ($($t:ty),* $(,)?) => {$(
        impl<const N: usize> $crate::bits::Field for [$t; N] {
            fn get(bytes: &[u8], offset: usize, width: usize) -> Self {
                std::array::from_fn(|i| $crate::bits::Field::get(bytes, offset + i * (width / N), width / N))
            }
            fn put(&self, bytes: &mut [u8], offset: usize, width: usize) {
                for (i, item) in self.iter().enumerate() {
                    $crate::bits::Field::put(item, bytes, offset + i * (width / N), width / N);
                }
            }
        }
    )*};
}
pub(crate) use array_field;
array_field!(u16, u32, u64);

/// Makes a newtype of an integer a [`Field`].
macro_rules! newtype_field {
    ($($t:ident($int:ty)),* $(,)?) => {$(
        impl $crate::bits::Field for $t {
            fn get(bytes: &[u8], offset: usize, width: usize) -> Self {
                $t(<$int as $crate::bits::Field>::get(bytes, offset, width))
            }
            fn put(&self, bytes: &mut [u8], offset: usize, width: usize) {
                $crate::bits::Field::put(&self.0, bytes, offset, width)
            }
        }
    )*};
}
pub(crate) use newtype_field;

/// `record! { /// doc  pub struct Name[BYTES] { /// doc  field: Type @ bit_offset : bit_width, ... } }`
///
/// Reserved bits are absent from the table: ignored by `parse`, zero after `emit`.
macro_rules! record {
    ($(#[$meta:meta])* pub struct $name:ident[$size:expr] {
        $($(#[$fmeta:meta])* $field:ident : $ty:ty = $off:tt : $width:tt),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name { $($(#[$fmeta])* pub $field: $ty),* }

        impl $name {
            /// Length on the wire, bytes.
            pub const LEN: usize = $size;

            /// Reads the layout from the front of `bytes`; `None` if there are fewer than [`Self::LEN`].
            pub fn parse(bytes: &[u8]) -> Option<Self> {
                let bytes = bytes.get(..$size)?;
                Some(Self { $($field: <$ty as $crate::bits::Field>::get(bytes, $off, $width)),* })
            }

            /// Writes the layout into the first [`Self::LEN`] bytes; reserved bits become zero.
            pub fn emit(&self) -> [u8; $size] {
                let mut bytes = [0u8; $size];
                $($crate::bits::Field::put(&self.$field, &mut bytes, $off, $width);)*
                bytes
            }
        }

        /// A record is a field of larger ones, at a whole byte.
        impl $crate::bits::Field for $name {
            fn get(bytes: &[u8], offset: usize, _width: usize) -> Self {
                bytes.get(offset / 8..).and_then(Self::parse).unwrap_or_default()
            }
            fn put(&self, bytes: &mut [u8], offset: usize, _width: usize) {
                bytes[offset / 8..offset / 8 + $size].copy_from_slice(&self.emit());
            }
        }

        impl Default for $name {
            /// All fields zero.
            fn default() -> Self {
                let bytes = [0u8; $size];
                Self { $($field: <$ty as $crate::bits::Field>::get(&bytes, $off, $width)),* }
            }
        }
    };
}
pub(crate) use record;
