//! One type for lanes of this machine and lanes to servers. Engines use it if they have libraries
//! of both kinds.

use crate::client::RemoteZygote;
use crate::lane::RemoteLane;
use crosslane::batch::{Encode, Header};
use crosslane::lane::{Lane, LaneError, Stuck, Waiter};
use crosslane::pool::{self, Reserved, SetUp};
use crosslane::{Address, Borrowed, Error};
use crosslane_process::{ProcessLane, Zygote};
use std::time::Duration;

/// A lane of either kind.
#[derive(Debug)]
pub enum AnyLane {
    /// To a worker of this machine.
    Process(Box<ProcessLane>),
    /// To a server.
    Remote(Box<RemoteLane>),
}

/// A zygote of either kind: it makes lanes.
#[derive(Debug)]
pub enum AnyZygote {
    /// Makes lanes of this machine.
    Process(Box<Zygote>),
    /// Makes lanes to a server.
    Remote(Box<RemoteZygote>),
}

/// Passes each method to the lane inside.
macro_rules! pass {
    ($(fn $name:ident(&self $(, $argument:ident: $type:ty)*) $(-> $returns:ty)?;)*) => {
        $(fn $name(&self $(, $argument: $type)*) $(-> $returns)? {
            match self {
                AnyLane::Process(lane) => lane.$name($($argument),*),
                AnyLane::Remote(lane) => lane.$name($($argument),*),
            }
        })*
    };
    ($(fn $name:ident(&mut self $(, $argument:ident: $type:ty)*) $(-> $returns:ty)?;)*) => {
        $(fn $name(&mut self $(, $argument: $type)*) $(-> $returns)? {
            match self {
                AnyLane::Process(lane) => lane.$name($($argument),*),
                AnyLane::Remote(lane) => lane.$name($($argument),*),
            }
        })*
    };
}

impl Lane for AnyLane {
    pass! {
        fn id(&self) -> u64;
        fn process(&self) -> i32;
        fn most(&self) -> usize;
        fn borrowed(&self) -> Option<Borrowed<'_>>;
        fn shares_its_process(&self) -> bool;
        fn frame(&self) -> &[u8];
        fn in_flight(&self) -> usize;
        fn is_cancelled(&self) -> bool;
        fn progress(&self) -> (u32, u32);
        fn rests_until(&self) -> u64;
        fn is_held(&self, exchange: u64) -> bool;
        fn may_have_begun(&self, exchange: u64) -> bool;
        fn stuck(&self) -> Stuck;
        fn has_ended(&self) -> bool;
        fn lives(&self) -> bool;
        fn has_news(&self) -> bool;
        fn waiter(&self) -> Waiter<'_>;
        fn round_trip(&self) -> Duration;
        fn spin(&self) -> Duration;
    }

    pass! {
        fn submit(&mut self, address: Address, rows: usize, arguments: &dyn Encode) -> Result<Option<u64>, LaneError>;
        fn cancel(&mut self) -> Result<(), LaneError>;
        fn try_collect(&mut self) -> Result<Option<Header>, LaneError>;
        fn try_collect_head(&mut self) -> Result<Option<Header>, LaneError>;
        fn copy_rest(&mut self);
        fn release(&mut self);
        fn halt(&mut self) -> bool;
        fn check(&mut self) -> Result<(), LaneError>;
        fn stack(&mut self) -> String;
    }
}

impl pool::Zygote for AnyZygote {
    type Lane = AnyLane;

    fn boot(&mut self) -> Result<AnyLane, Error> {
        match self {
            AnyZygote::Process(zygote) => Ok(AnyLane::Process(Box::new(zygote.boot()?))),
            AnyZygote::Remote(zygote) => Ok(AnyLane::Remote(Box::new(zygote.boot()?))),
        }
    }

    fn set_up(&self) -> Option<SetUp> {
        let AnyZygote::Process(zygote) = self else { return None };
        zygote.set_up()
    }

    /// A server bounds the workers of its functions itself.
    fn reserved(&self) -> Vec<(Reserved, Self)> {
        let AnyZygote::Process(zygote) = self else { return Vec::new() };
        let reserved = zygote.reserved().into_iter();
        reserved.map(|(of, zygote)| (of, AnyZygote::Process(Box::new(zygote)))).collect()
    }
}
