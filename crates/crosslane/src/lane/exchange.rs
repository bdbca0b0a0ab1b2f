//! Exchanges: the uses of functions over a lane.
//!
//! The engine opens an exchange for an [`Entry`] of a function with its first batch. Then both
//! sides send batches until each side has sent its last one. A failure is the guest's last message.
//! A scalar call is an exchange of one batch in each direction. [`crate::Kind`] defines the entries
//! of a function, and the columns of their batches.
//!
//! The engine can cancel an exchange. It then discards the remaining messages of the exchange. The
//! lane is free as soon as the guest has ended the exchange.

use crate::batch::{BATCH, FAILURE, Header, LAST};
use crate::lane::LaneError;

/// The use of a function for which an exchange is opened. "In" is the engine's batches, "out" the
/// guest's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum Entry {
    /// In: rows. Out: as many results. One batch in each direction.
    #[default]
    Call = 1,
    /// In: the arguments. Out: the rows of a table.
    Scan = 2,
    /// In: rows with the numbers of their groups. The guest adds the rows to the states of these
    /// groups.
    Update = 3,
    /// In: pairs of states. The guest adds one state of each pair to the other.
    Combine = 4,
    /// In: the numbers of groups. Out: their results.
    Finish = 5,
    /// The guest prepares itself before the first use of its functions.
    SetUp = 6,
    /// In: the arguments. Out: the partitions of a table.
    Partitions = 7,
    /// In: the numbers of groups. Out: their states as bytes.
    Save = 8,
    /// In: the numbers of groups, and saved states. The guest adds them to the states of these
    /// groups.
    Load = 9,
    /// In: the numbers of groups that no longer exist.
    Forget = 10,
    /// The guest removes all that [`Entry::SetUp`] prepared.
    TearDown = 11,
    /// In: a batch of a stream. Out: batches of another stream.
    Map = 12,
    /// In: all batches of a stream. Out: batches of another stream. The batches that open and end
    /// the exchange have no rows.
    Iterate = 13,
}

/// All entries.
const ENTRIES: [Entry; 13] = [
    Entry::Call,
    Entry::Scan,
    Entry::Update,
    Entry::Combine,
    Entry::Finish,
    Entry::SetUp,
    Entry::Partitions,
    Entry::Save,
    Entry::Load,
    Entry::Forget,
    Entry::TearDown,
    Entry::Map,
    Entry::Iterate,
];

impl Entry {
    /// The number of entries.
    pub(crate) const COUNT: usize = ENTRIES.len();

    /// The entry with this number in a [`Header`].
    pub fn of(number: u32) -> Option<Self> {
        ENTRIES.into_iter().find(|entry| *entry as u32 == number)
    }

    /// Whether the entry changes states in the guest. A second use, or uses on two lanes at once,
    /// would give another result.
    pub(crate) fn changes_states(self) -> bool {
        matches!(self, Self::Update | Self::Combine | Self::Load | Self::Forget)
    }

    /// Whether the guest answers with exactly one batch.
    pub fn is_answered_once(self) -> bool {
        !matches!(self, Self::Scan | Self::Partitions | Self::Map | Self::Iterate)
    }

    /// Whether the engine may open another exchange for this entry before the guest has ended the
    /// first one.
    fn follows_itself(self) -> bool {
        matches!(self, Self::Call | Self::Map)
    }
}

/// The position of an engine's batch in its exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The batch opens an exchange and is the only batch of the engine.
    Whole,
    /// The batch opens an exchange, and more batches follow.
    First,
    /// The batch belongs to the open exchange, and more batches follow.
    Next,
    /// The batch is the last of the open exchange.
    Last,
}

impl Part {
    fn opens(self) -> bool {
        matches!(self, Part::Whole | Part::First)
    }

    fn ends(self) -> bool {
        matches!(self, Part::Whole | Part::Last)
    }
}

/// The function and the exchange that an engine's batch is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// The function's index in its library.
    pub function: u32,
    /// The use of the function.
    pub entry: Entry,
    /// The position of the batch in its exchange.
    pub part: Part,
}

impl Address {
    /// A call: one batch in, and one batch of as many rows out.
    pub fn call(function: u32) -> Self {
        Self::whole(function, Entry::Call)
    }

    /// A batch that opens an exchange and is the engine's only one.
    pub fn whole(function: u32, entry: Entry) -> Self {
        Self { function, entry, part: Part::Whole }
    }
}

/// The engine's count of the exchanges of a lane, for all kinds of lanes.
///
/// The engine can send several calls before their results arrive, and also several batches of a
/// stream. During any other exchange, the lane has no second exchange.
#[derive(Debug, Default)]
pub struct Exchanges {
    /// The number of the exchange that was opened last.
    opened: u64,
    /// The number of exchanges that the guest has not ended. The guest ends them in the order of
    /// their opening.
    open: usize,
    /// The entry of the open exchanges.
    entry: Entry,
    /// Whether the engine still has to send batches of the exchange that was opened last.
    sending: bool,
    /// The engine discards messages of exchanges up to this number.
    cancelled: u64,
}

impl Exchanges {
    /// The number of exchanges that the guest has not ended.
    pub fn in_flight(&self) -> usize {
        self.open
    }

    /// Whether every exchange that the guest has not ended is cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled == self.opened
    }

    /// The header of a batch that the engine may send now; `None` while other exchanges must end
    /// first.
    ///
    /// # Panics
    /// If the batch belongs to an exchange that is not open, which is an error of the caller.
    pub fn header(&self, address: Address, rows: usize) -> Option<Header> {
        let Address { function, entry, part } = address;
        assert_eq!(part.opens(), !self.sending, "a batch of {part:?} out of turn");
        let follows = entry == self.entry && entry.follows_itself();
        if part.opens() && self.open > 0 && !follows {
            return None;
        }
        Some(Header {
            kind: BATCH,
            flags: if part.ends() { LAST } else { 0 },
            function,
            exchange: self.opened + u64::from(part.opens()),
            rows: rows as u32,
            entry: entry as u32,
            ..Header::default()
        })
    }

    /// Counts a batch that was sent. Returns the number of its exchange.
    pub fn sent(&mut self, address: Address) -> u64 {
        if address.part.opens() {
            self.opened += 1;
            self.open += 1;
            self.entry = address.entry;
        }
        self.sending = !address.part.ends();
        self.opened
    }

    /// Cancels all exchanges in flight. Returns the number of the last one.
    pub fn cancel(&mut self) -> u64 {
        self.cancelled = self.opened;
        self.sending = false;
        self.opened
    }

    /// Counts a message of the guest. Returns whether the message is for the caller; otherwise the
    /// caller discards it.
    ///
    /// # Errors
    /// [`LaneError::Corrupt`] if the guest must not send this message now.
    pub fn received(&mut self, header: &Header) -> Result<bool, LaneError> {
        let corrupt = |what: String| Err(LaneError::Corrupt(what));
        if self.open == 0 {
            return corrupt("a reply to no call".into());
        }
        let due = self.opened - self.open as u64 + 1;
        if header.exchange != due {
            return corrupt(format!("a message of exchange {}, where one of {due} was due", header.exchange));
        }
        if !matches!(header.kind, BATCH | FAILURE) {
            return corrupt(format!("a message of kind {}", header.kind));
        }
        let last = header.flags == LAST;
        if header.flags & !LAST != 0 {
            return corrupt(format!("a message with the flags {:#x}", header.flags));
        }
        let wanted = due > self.cancelled;
        // A failure ends its exchange, and so does the batch of an entry that is answered once.
        if !last && (header.kind == FAILURE || self.entry.is_answered_once()) {
            return corrupt(format!("a message of kind {} that is not the last", header.kind));
        }
        if last {
            self.open -= 1;
            self.sending &= self.open > 0;
        }
        Ok(wanted)
    }

    /// Counts a message of the guest that cannot be read. If its exchange has one message only, the
    /// exchange ends.
    pub fn unreadable(&mut self) {
        if self.entry.is_answered_once() {
            self.open = self.open.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCAN: Address = Address { function: 7, entry: Entry::Scan, part: Part::Whole };
    const UPDATE: Address = Address { entry: Entry::Update, ..SCAN };
    const COMBINE: Address = Address { entry: Entry::Combine, ..SCAN };
    const FINISH: Address = Address { entry: Entry::Finish, ..SCAN };

    fn batch(exchange: u64, flags: u16) -> Header {
        Header { kind: BATCH, flags, exchange, ..Header::default() }
    }

    fn open(exchanges: &mut Exchanges, address: Address) -> u64 {
        let header = exchanges.header(address, 1).expect("its turn");
        assert_eq!(exchanges.sent(address), header.exchange);
        header.exchange
    }

    #[test]
    fn batches_of_a_stream_follow_one_another_and_have_many_answers() {
        const MAP: Address = Address { entry: Entry::Map, ..SCAN };
        let mut exchanges = Exchanges::default();
        assert_eq!((open(&mut exchanges, MAP), open(&mut exchanges, MAP)), (1, 2));
        assert_eq!(exchanges.header(Address::call(0), 1), None);
        for (exchange, flags) in [(1, 0), (1, LAST), (2, 0), (2, 0), (2, LAST)] {
            assert!(exchanges.received(&batch(exchange, flags)).unwrap());
        }
        assert_eq!(exchanges.in_flight(), 0);
    }

    #[test]
    fn calls_follow_one_another_and_a_scan_is_alone() {
        let mut exchanges = Exchanges::default();
        assert_eq!(open(&mut exchanges, Address::call(0)), 1);
        assert_eq!(open(&mut exchanges, Address::call(1)), 2);
        assert_eq!(exchanges.header(SCAN, 1), None);
        assert!(exchanges.received(&batch(1, LAST)).unwrap() && exchanges.received(&batch(2, LAST)).unwrap());
        assert_eq!(open(&mut exchanges, SCAN), 3);
        assert_eq!(exchanges.header(SCAN, 1), None);
        assert_eq!(exchanges.header(Address::call(0), 1), None);
        assert!(exchanges.received(&batch(3, 0)).unwrap() && exchanges.received(&batch(3, LAST)).unwrap());
        assert_eq!(exchanges.in_flight(), 0);
        assert_eq!(open(&mut exchanges, Address::call(0)), 4);
    }

    #[test]
    fn the_exchanges_of_an_aggregate_are_alone() {
        for address in [UPDATE, COMBINE, FINISH] {
            let mut exchanges = Exchanges::default();
            open(&mut exchanges, address);
            assert_eq!(exchanges.header(address, 1), None);
            assert_eq!(exchanges.header(Address::call(0), 1), None);
            // The only batch of an answer may be unreadable.
            exchanges.unreadable();
            assert_eq!(exchanges.in_flight(), 0);
            open(&mut exchanges, address);
            assert!(exchanges.received(&batch(2, LAST)).unwrap());
        }
    }

    #[test]
    fn what_is_cancelled_is_thrown_away_and_the_next_exchange_is_not() {
        let mut exchanges = Exchanges::default();
        open(&mut exchanges, SCAN);
        assert!(exchanges.received(&batch(1, 0)).unwrap());
        assert!(!exchanges.is_cancelled());
        assert_eq!(exchanges.cancel(), 1);
        assert!(exchanges.is_cancelled());
        assert!(!exchanges.received(&batch(1, 0)).unwrap());
        assert_eq!(exchanges.in_flight(), 1);
        assert!(!exchanges.received(&Header { kind: FAILURE, ..batch(1, LAST) }).unwrap());
        assert_eq!(exchanges.in_flight(), 0);
        open(&mut exchanges, Address::call(0));
        assert!(exchanges.received(&batch(2, LAST)).unwrap());
    }

    #[test]
    fn a_guest_that_is_out_of_turn_is_found_out() {
        for (address, header) in [
            (Address::call(0), batch(1, 0)),
            (Address::call(0), batch(0, LAST)),
            (Address::call(0), batch(2, LAST)),
            (Address::call(0), batch(1, 3)),
            (Address::call(0), Header { kind: 0, ..batch(1, LAST) }),
            (Address::call(0), Header { kind: crate::batch::CANCEL, ..batch(1, LAST) }),
            (UPDATE, batch(1, 0)),
            (COMBINE, batch(1, 0)),
            (FINISH, batch(1, 0)),
            (SCAN, Header { kind: FAILURE, ..batch(1, 0) }),
            (SCAN, batch(1, 2)),
        ] {
            let mut exchanges = Exchanges::default();
            assert!(exchanges.received(&header).is_err(), "nothing is open");
            open(&mut exchanges, address);
            assert!(matches!(exchanges.received(&header), Err(LaneError::Corrupt(_))), "{header:?}");
        }
        let mut exchanges = Exchanges::default();
        open(&mut exchanges, SCAN);
        assert!(exchanges.received(&batch(1, LAST)).unwrap());
        assert!(exchanges.received(&batch(1, 0)).is_err(), "a batch after the last");
    }

    #[test]
    fn batches_go_in_until_the_last() {
        let mut exchanges = Exchanges::default();
        let part = |part| Address { part, ..SCAN };
        assert_eq!(open(&mut exchanges, part(Part::First)), 1);
        assert_eq!(open(&mut exchanges, part(Part::Next)), 1);
        assert!(exchanges.received(&batch(1, 0)).unwrap(), "while the input is open");
        let last = exchanges.header(part(Part::Last), 1).unwrap();
        assert_eq!((last.exchange, last.flags), (1, LAST));
        exchanges.sent(part(Part::Last));
        assert!(exchanges.received(&batch(1, LAST)).unwrap());
        assert_eq!(open(&mut exchanges, part(Part::Whole)), 2);
    }

    #[test]
    fn entries_have_their_numbers() {
        for number in 0..20 {
            assert_eq!(
                Entry::of(number).map(|entry| entry as u32),
                (1..=13).contains(&number).then_some(number)
            );
        }
    }
}
