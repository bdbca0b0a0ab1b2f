//! Why a lane fails.

/// Why a lane can no longer be used.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LaneError {
    /// The guest's process ended, or closed its end.
    #[error("{0}")]
    Died(String),
    /// The guest broke the protocol.
    #[error("its worker wrote garbage: {0}")]
    Corrupt(String),
    /// The system refused something that the lane needs.
    #[error("its worker cannot be reached: {0}")]
    System(String),
    /// The batch cannot be told in the format at all, exceeds the setting `largest_batch`, or there is no memory for it. The
    /// lane is whole: nothing was sent, or the reply was taken and thrown away.
    #[error("{0}")]
    TooLarge(String),
}

impl LaneError {
    /// The error of a reply of so many bytes, of which an engine takes `largest`.
    pub fn large_reply(length: u64, largest: usize) -> Self {
        Self::TooLarge(format!(
            "its reply of {length} bytes exceeds {largest} bytes; the setting largest_batch changes this limit"
        ))
    }

    /// The error of a reply of so many bytes for which there is no memory.
    pub fn no_memory(length: u64) -> Self {
        Self::TooLarge(format!("the engine has no memory for its reply of {length} bytes"))
    }
}
