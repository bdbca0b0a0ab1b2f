//! If the system limits the size of files, it ends a process that makes a larger file.

use crate::alone;
use crosslane::lane::{Lane, LaneError};
use crosslane::{Address, ColumnBuilder, DataType};
use crosslane_process::testing::both_ends;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A limit of the process, until this is dropped.
struct Limited(Rlimit);

impl Limited {
    fn to(bytes: u64) -> Self {
        let usual = getrlimit(Resource::Fsize);
        setrlimit(Resource::Fsize, Rlimit { current: Some(bytes), ..usual }).unwrap();
        Self(usual)
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        setrlimit(Resource::Fsize, self.0).unwrap();
    }
}

#[test]
fn a_batch_beyond_the_limit_of_files_is_an_error() {
    let _alone = alone();
    let (mut lane, _guest) = both_ends(4096);
    let _limited = Limited::to(1 << 20);
    let mut text = ColumnBuilder::new(&DataType::Varchar);
    text.bytes(&vec![b'x'; 2 << 20]).unwrap();
    let refused = lane.submit(Address::call(0), 1, &text);
    assert!(matches!(&refused, Err(LaneError::TooLarge(why)) if why.contains("too large")), "{refused:?}");
    // The lane still works, and takes a smaller batch.
    let mut text = ColumnBuilder::new(&DataType::Varchar);
    text.bytes(&vec![b'x'; 1 << 19]).unwrap();
    assert_eq!(lane.submit(Address::call(0), 1, &text).unwrap(), Some(1));
    assert!(crosslane_ring::Ends::create(1 << 20).is_err());
}
