//! Credentials that are kept: encrypted, in the store that a fleet shares (BEHAVIOURS 116; invariant 9).

mod chains;
mod keys;
mod vault;

pub use chains::Chains;
pub use keys::Keys;
pub use vault::{Unsealed, Vault};
