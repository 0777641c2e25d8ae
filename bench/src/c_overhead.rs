//! What `mp_read` and its completion cost from C beyond the same calls from Rust.
use crate::scratch::Scratch;

/// The comparison could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum COverheadError {
    #[error("libmegapipe is not built (cargo build --release builds it beside megapipe)")]
    NotBuilt,
}

pub(crate) fn nanoseconds(_: &Scratch, _: usize) -> Result<Vec<f64>, COverheadError> {
    Err(COverheadError::NotBuilt)
}
