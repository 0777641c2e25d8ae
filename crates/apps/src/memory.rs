//! Memory checks before allocation, so that a lack of memory is an error at start
//! and not the end of the process.

use std::collections::TryReserveError;
use std::io;

use megapipe_shm::Region;

/// An empty vector with capacity `len`.
pub(crate) fn reserved<T>(len: usize) -> Result<Vec<T>, TryReserveError> {
    let mut room = Vec::new();
    room.try_reserve_exact(len)?;
    Ok(room)
}

/// Zeros in memory that the kernel lends page by page as it is written. `vec!` alone does that, and
/// aborts where there is no memory; so the same amount is asked for before.
pub(crate) fn zeroed<T: Copy + Default>(len: usize) -> Result<Vec<T>, TryReserveError> {
    drop(reserved::<T>(len)?);
    Ok(vec![T::default(); len])
}

/// Makes sure that allocations of `bytes` in all will succeed now. They are mapped and unmapped:
/// what malloc(3) gets back it may keep, and then a thread's stacks cannot be mapped.
pub(crate) fn require(bytes: usize) -> io::Result<()> {
    Region::heap(bytes).map(drop).map_err(|_| io::ErrorKind::OutOfMemory.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_much_is_an_error() {
        assert!(reserved::<u64>(usize::MAX / 16).is_err());
        assert!(zeroed::<u32>(usize::MAX / 8).is_err());
        let error = require(usize::MAX / 2).expect_err("more than the address space");
        assert_eq!(error.kind(), io::ErrorKind::OutOfMemory);
        assert!(require(1 << 20).is_ok());
        assert_eq!(zeroed::<u32>(3), Ok(vec![0; 3]));
        assert!(reserved::<u32>(100).is_ok_and(|room| room.capacity() >= 100 && room.is_empty()));
    }
}
