//! Values of settings: what may stand in their places, which errors say.

use crate::cli::{Numbers, parse_guid, parse_pkey, parse_qpn};
use serde::{Deserialize, Deserializer, de};
use std::fmt;
use std::str::FromStr;
use wire::{Guid, PKey, Qpn};

/// Reads a number in its range.
struct NumberVisitor(Numbers);

impl de::Visitor<'_> for NumberVisitor {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }

    fn visit_u64<E: de::Error>(self, n: u64) -> Result<u64, E> {
        match self.0.contains(n) {
            true => Ok(n),
            false => Err(E::invalid_value(de::Unexpected::Unsigned(n), &self)),
        }
    }

    fn visit_i64<E: de::Error>(self, n: i64) -> Result<u64, E> {
        match u64::try_from(n) {
            Ok(n) => self.visit_u64(n),
            Err(_) => Err(E::invalid_value(de::Unexpected::Signed(n), &self)),
        }
    }
}

/// Functions that read numbers, or optional ones, from a file.
macro_rules! numbers {
    ($($name:ident: $type:ty = $numbers:expr;)*) => {
        $(pub(super) fn $name<'de, D: Deserializer<'de>, T: From<$type>>(from: D) -> Result<T, D::Error> {
            const NUMBERS: Numbers = $numbers;
            // The type holds them all.
            const { assert!(NUMBERS.most() <= <$type>::MAX as u64) };
            let number = from.deserialize_u64(NumberVisitor(NUMBERS))?;
            Ok(T::from(number as $type))
        })*
    };
}

/// What TOML has at most.
const MAX: u64 = i64::MAX as u64;

numbers! {
    mtu: u32 = Numbers::MTU;
    retries: u8 = Numbers::RETRIES;
    ack_timeout: u8 = Numbers::new(1, 31, "n of 4.096 us * 2^n", 15);
    connections: u32 = Numbers::new(1, 65_536, "connections", 2048);
    idle: u64 = Numbers::new(1, 86_400, "seconds", 240);
    ports: u8 = Numbers::new(1, 254, "ports", 128);
    priority: u8 = Numbers::new(0, 15, "priority", 5);
    key: u64 = Numbers::new(0, MAX, "key", 1);
    interval: u64 = Numbers::new(1, 86_400, "seconds", 10);
    up_to_3: u8 = Numbers::new(0, 3, "2 bits", 1);
    lease: u16 = Numbers::new(0, 65_535, "seconds", 60);
    packet: u32 = Numbers::new(256, 4096, "bytes: a power of 2", 2048);
    up_to_15: u8 = Numbers::new(0, 15, "4 bits", 2);
    q_key: u32 = Numbers::new(0, u32::MAX as u64, "Q_Key", 0x0b1b);
}

fn parsed<'de, D: Deserializer<'de>, T>(
    from: D,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<T, D::Error> {
    parse(&String::deserialize(from)?).map_err(de::Error::custom)
}

fn by_from_str<T: FromStr<Err: ToString>>(s: &str) -> Result<T, String> {
    s.parse().map_err(|error: T::Err| error.to_string())
}

pub(super) fn optional<'de, D: Deserializer<'de>, T: FromStr<Err: ToString>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    parsed(from, by_from_str).map(Some)
}

pub(super) fn list<'de, D: Deserializer<'de>, T: FromStr<Err: ToString>>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    Vec::<String>::deserialize(from)?
        .iter()
        .map(|s| by_from_str(s))
        .collect::<Result<_, _>>()
        .map_err(de::Error::custom)
}

pub(super) fn optional_guid<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Guid>, D::Error> {
    parsed(from, parse_guid).map(Some)
}

pub(super) fn optional_qpn<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Qpn>, D::Error> {
    parsed(from, parse_qpn).map(Some)
}

pub(super) fn optional_pkey<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PKey>, D::Error> {
    parsed(from, parse_pkey).map(Some)
}

pub(super) fn pkey<'de, D: Deserializer<'de>>(from: D) -> Result<PKey, D::Error> {
    parsed(from, parse_pkey)
}
