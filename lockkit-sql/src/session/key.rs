use lockkit_core::LockName;
use sha2::{Digest as _, Sha256};

/// A wide hash of namespace and name, which differs from that of anybody else who hashes names.
pub(crate) fn hash(name: &LockName) -> [u8; 32] {
    Sha256::new().chain_update("lockkit session\0").chain_update(name.digest()).finalize().into()
}
