//! The handle of a dispatcher.

use super::dispatchers::EventDispatcher;
use crate::scheduler::Group;
use std::sync::Arc;

/// A dispatcher that was added to a running scheduler ([`Handle::dispatcher`](crate::Handle::dispatcher)).
///
/// Sockets are registered with it by [`Io::with_dispatcher`](crate::Io::with_dispatcher). After
/// the handle is dropped it takes no new ones, and ends with its last socket.
#[derive(Debug)]
pub struct Dispatcher {
    pub(crate) group: Arc<Group>,
    pub(crate) inner: Arc<EventDispatcher>,
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        // In another process the lock may be held for ever.
        if !self.group.process.is_this() {
            return;
        }
        self.group.dispatchers.close(&self.inner);
    }
}
