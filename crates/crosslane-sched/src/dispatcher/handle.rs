//! The handle of a dispatcher.

use super::dispatchers::EventDispatcher;
use crate::scheduler::Group;
use std::sync::Arc;

/// A dispatcher that was added to a running scheduler
/// ([`Handle::dispatcher`](crate::Handle::dispatcher)).
///
/// [`Io::with_dispatcher`](crate::Io::with_dispatcher) registers sockets with it. After this handle
/// is dropped, the dispatcher takes no new sockets, and ends with its last one.
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
