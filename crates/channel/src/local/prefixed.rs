//! Addresses as people write them for the `local` back end: with the length of their prefix.

use std::net::IpAddr;
use std::str::FromStr;

/// An address with the length of its prefix: `10.0.0.2/24`, `fd00::2/64`.
///
/// # Examples
/// ```
/// use megapipe::Prefixed;
///
/// let address: Prefixed = "10.0.0.2/24".parse()?;
/// assert_eq!((address.address, address.prefix_bits), ([10, 0, 0, 2].into(), 24));
/// # Ok::<(), megapipe::PrefixedError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefixed {
    /// The address.
    pub address: IpAddr,
    /// Bits of it that the whole link shares.
    pub prefix_bits: u8,
}

/// Why a text is none.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PrefixedError {
    /// It is not `ADDRESS/BITS`.
    #[error("{0:?} is not ADDRESS/BITS, as 10.0.0.2/24 or fd00::2/64")]
    Shape(String),
    /// More bits than the address has.
    #[error("{text:?}: a prefix has at most {bits_max} bits")]
    Bits {
        /// What was given.
        text: String,
        /// Bits of an address of this version.
        bits_max: u8,
    },
}

crate::error_chain::debug_with_causes!(PrefixedError);

impl FromStr for Prefixed {
    type Err = PrefixedError;

    fn from_str(text: &str) -> Result<Self, PrefixedError> {
        let shape = || PrefixedError::Shape(text.to_owned());
        let (address, bits) = text.split_once('/').ok_or_else(shape)?;
        let address: IpAddr = address.parse().map_err(|_| shape())?;
        let prefix_bits: u8 = bits.parse().map_err(|_| shape())?;
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        if prefix_bits > bits_max {
            return Err(PrefixedError::Bits { text: text.to_owned(), bits_max });
        }
        Ok(Self { address, prefix_bits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_prefix_that_fits() {
        let parsed: Prefixed = "10.1.2.3/24".parse().unwrap();
        assert_eq!((parsed.address, parsed.prefix_bits), (IpAddr::from([10, 1, 2, 3]), 24));
        assert!("fd00::1/128".parse::<Prefixed>().is_ok());
        for wrong in ["10.0.0.1", "10.0.0.1/33", "10.0.0/8", "fd00::1/129", "x/1", "1.2.3.4/-1"] {
            assert!(wrong.parse::<Prefixed>().is_err(), "{wrong}");
        }
    }
}
