//! The hosts that may be connected to, and the addresses at which they are.

use crosslane::Host;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long an address stays that of a name. Then it may be another machine's.
const VALID: Duration = Duration::from_secs(3600);
/// The most addresses that are remembered.
const MOST_ADDRESSES: usize = 4096;
/// The most refusals that are reported.
const MOST_REPORTS: usize = 64;

/// What a broker allows.
pub(super) struct Hosts {
    listed: Vec<Host>,
    /// The addresses of listed names, with the ports that are allowed there, and when they were told.
    told: Mutex<HashMap<(IpAddr, Option<u16>), Instant>>,
    reported: Mutex<HashSet<String>>,
    report: Box<dyn Fn(&str) + Send + Sync>,
}

impl Hosts {
    pub(super) fn new(listed: Vec<Host>, report: Box<dyn Fn(&str) + Send + Sync>) -> Self {
        Self { listed, told: Mutex::default(), reported: Mutex::default(), report }
    }

    /// Whether a connection to this address may be made.
    pub(super) fn allows(&self, to: SocketAddr) -> bool {
        let ip = to.ip().to_canonical();
        let told = unpoisoned(&self.told);
        let is_told = |port| told.get(&(ip, port)).is_some_and(|when| when.elapsed() < VALID);
        is_told(None) || is_told(Some(to.port())) || self.listed.iter().any(|host| host.is_at(to))
    }

    /// The addresses of a name; `None` if it is not listed. This may take as long as a name server.
    pub(super) fn resolve(&self, name: &str) -> Option<Vec<IpAddr>> {
        let ports: Vec<_> = self.listed.iter().filter(|host| host.is_named(name)).map(Host::port).collect();
        if ports.is_empty() {
            self.refused(&format!("the name {name}"));
            return None;
        }
        let found = (name.trim_end_matches('.'), 0).to_socket_addrs();
        let addresses = found.into_iter().flatten().map(|address| address.ip().to_canonical());
        // Clouds tell secrets at these addresses. Whoever owns a listed name could make it theirs.
        let mut addresses: Vec<_> = addresses.filter(|address| !is_link_local(*address)).collect();
        let mut told = unpoisoned(&self.told);
        told.retain(|_, when| when.elapsed() < VALID);
        addresses.truncate(MOST_ADDRESSES.saturating_sub(told.len()) / ports.len());
        for address in &addresses {
            told.extend(ports.iter().map(|port| ((*address, *port), Instant::now())));
        }
        Some(addresses)
    }

    /// Reports that something was refused, once.
    pub(super) fn refused(&self, what: &str) {
        let mut reported = unpoisoned(&self.reported);
        if reported.len() < MOST_REPORTS && reported.insert(what.to_owned()) {
            drop(reported);
            (self.report)(what);
        }
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for Hosts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hosts").field("listed", &self.listed).finish_non_exhaustive()
    }
}
