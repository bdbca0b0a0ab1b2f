//! A fork has a copy of a lane, but the lane belongs to the fork's parent. If the fork drops its copy,
//! the lane still works in the parent.

use crate::alone;
use crosslane::lane::{Lane, LaneError};
use crosslane::{Address, ColumnBuilder, DataType, Entry, batch};
use crosslane_process::guest::{Emitted, Next};
use crosslane_process::testing::both_ends;

fn text(length: usize) -> ColumnBuilder {
    let mut column = ColumnBuilder::new(&DataType::Varchar);
    column.bytes(&vec![b'x'; length]).unwrap();
    column
}

#[test]
fn a_fork_cancels_nothing_of_its_parents() {
    let _alone = alone();
    let (mut lane, mut guest) = both_ends(4096);
    assert!(lane.submit(Address::whole(0, Entry::Scan), 1, &text(1)).unwrap().is_some());
    // SAFETY: the fork runs only code of the lane, and ends without running the rest of this program.
    unsafe {
        let fork = libc::fork();
        if fork == 0 {
            libc::alarm(10);
            let refused = matches!(lane.cancel(), Err(LaneError::System(_)));
            libc::_exit(i32::from(!refused));
        }
        let mut status = -1;
        assert_eq!(libc::waitpid(fork, &raw mut status, 0), fork);
        assert_eq!(status, 0, "the fork cancelled");
    }
    let Next::Call(call) = guest.next_call_or(|| false).unwrap() else { panic!("no scan") };
    assert!(matches!(guest.emit(&call, 1, &text(3), || false).unwrap(), Emitted::Sent));
    assert_eq!(lane.try_collect().unwrap().expect("what was emitted").rows, 1);
    assert_eq!(batch::column(lane.frame(), &DataType::Varchar).unwrap().bytes(0).len(), 3);
}
