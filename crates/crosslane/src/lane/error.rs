//! The reasons why a lane fails.

/// The reason why a lane can no longer be used.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LaneError {
    /// The guest's process ended, or the guest closed its end of the lane.
    #[error("{0}")]
    Died(String),
    /// The guest broke the protocol.
    #[error("its worker wrote garbage: {0}")]
    Corrupt(String),
    /// The system refused something that the lane needs.
    #[error("its worker cannot be reached: {0}")]
    System(String),
    /// The batch does not fit the format, exceeds the setting `largest_batch`, or there is no
    /// memory for it. The lane still works: it has sent nothing, or it has taken the reply and
    /// discarded it.
    #[error("{0}")]
    TooLarge(String),
}

impl LaneError {
    /// The error of a reply of `length` bytes, if the engine takes at most `largest` bytes.
    pub fn large_reply(length: u64, largest: usize) -> Self {
        Self::TooLarge(format!(
            "its reply of {length} bytes exceeds {largest} bytes; the setting largest_batch changes this limit"
        ))
    }

    /// The error of a reply of `length` bytes for which there is no memory.
    pub fn no_memory(length: u64) -> Self {
        Self::TooLarge(format!("the engine has no memory for its reply of {length} bytes"))
    }
}
