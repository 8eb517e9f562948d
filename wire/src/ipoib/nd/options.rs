//! Options of Neighbor Discovery messages; of the known ones, the link-layer addresses (RFC 4861 section 4.6, RFC 4391 section 9.3).

use super::NdError;
use crate::ipoib::LinkAddress;

/// Options, checked to have lengths that fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct NdOptions<'a>(pub(super) &'a [u8]);

/// The option types that hold a link-layer address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkLayerOption {
    Source = 1,
    Target = 2,
}

impl<'a> NdOptions<'a> {
    /// Checks that the lengths of all options fit (RFC 4861 section 4.6).
    pub fn parse(bytes: &'a [u8]) -> Result<Self, NdError> {
        let mut rest = bytes;
        while let &[_, ref after @ ..] = rest {
            let units = after.first().copied().unwrap_or(0);
            rest = rest
                .get(usize::from(units) * 8..)
                .filter(|_| units != 0)
                .ok_or(NdError::OptionLength(units))?;
        }
        Ok(Self(bytes))
    }

    /// Each option's type and bytes (type and length included).
    pub fn iter(&self) -> impl Iterator<Item = (u8, &'a [u8])> + use<'a> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let &[kind, units, ..] = rest else {
                return None;
            };
            let (option, after) = rest.split_at_checked(usize::from(units) * 8)?;
            rest = after;
            Some((kind, option))
        })
    }

    /// The first source link-layer address of InfiniBand's length.
    pub fn source_link_address(&self) -> Option<LinkAddress> {
        self.link_address(LinkLayerOption::Source)
    }

    /// The first target link-layer address of InfiniBand's length.
    pub fn target_link_address(&self) -> Option<LinkAddress> {
        self.link_address(LinkLayerOption::Target)
    }

    fn link_address(&self, wanted: LinkLayerOption) -> Option<LinkAddress> {
        self.iter()
            .filter(|(kind, _)| *kind == wanted as u8)
            .find_map(|(_, option)| parse_link_layer_option(option))
    }
}

/// Type, length 3, two zero bytes, address (RFC 4391 section 9.3).
pub(super) const LINK_LAYER_OPTION_LEN: usize = 24;

pub(super) fn link_layer_option(
    kind: LinkLayerOption,
    address: LinkAddress,
) -> [u8; LINK_LAYER_OPTION_LEN] {
    let mut option = [0; LINK_LAYER_OPTION_LEN];
    option[0] = kind as u8;
    option[1] = 3;
    option[4..].copy_from_slice(&address.to_bytes());
    option
}

/// `option` begins with its type; `None` if it has another length than an InfiniBand address needs.
pub(super) fn parse_link_layer_option(option: &[u8]) -> Option<LinkAddress> {
    if option.len() == LINK_LAYER_OPTION_LEN {
        LinkAddress::parse(&option[4..])
    } else {
        None
    }
}
