//! The hosts that may be connected to, and the addresses at which they are.

use crosslane::{Host, lock};
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The port of name servers.
pub(crate) const NAME_SERVER: u16 = 53;
/// How long an address stays that of a name. Then it may be another machine's.
const VALID: Duration = Duration::from_secs(3600);
/// How long an answer is given again.
const FRESH: Duration = Duration::from_secs(5);
/// The most addresses that are remembered.
const MOST_ADDRESSES: usize = 4096;
/// Where clouds tell their machines secrets, besides the addresses of the link.
const METADATA_V4: [Ipv4Addr; 2] = [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(168, 63, 129, 16)];
/// The first two parts of such addresses of IPv6.
const METADATA_V6: [[u16; 2]; 2] = [[0xfd00, 0xec2], [0xfd20, 0xce]];
/// The most refusals that are reported.
const MOST_REPORTS: usize = 64;

/// What a broker allows.
pub(super) struct Hosts {
    listed: Vec<Host>,
    /// The addresses of listed names, with the ports that are allowed there, and when they were resolved.
    resolved: Mutex<HashMap<(IpAddr, Option<u16>), Instant>>,
    /// The last answers. The C library asks twice for each connection: for addresses of IPv4 and of IPv6.
    answers: Mutex<HashMap<String, (Instant, Vec<IpAddr>)>>,
    reported: Mutex<HashSet<String>>,
    report: Box<dyn Fn(&str) + Send + Sync>,
}

impl Hosts {
    pub(super) fn new(listed: Vec<Host>, report: Box<dyn Fn(&str) + Send + Sync>) -> Self {
        Self {
            listed,
            resolved: Mutex::default(),
            answers: Mutex::default(),
            reported: Mutex::default(),
            report,
        }
    }

    /// Whether a connection to this address may be made.
    pub(super) fn allows(&self, to: SocketAddr) -> bool {
        let ip = to.ip().to_canonical();
        let resolved = lock(&self.resolved);
        let is_known = |port| resolved.get(&(ip, port)).is_some_and(|when| when.elapsed() < VALID);
        // A user that lists all ports of a host does not mean the name server that may be on it.
        let all_ports = to.port() != NAME_SERVER;
        let is_listed = |host: &Host| host.is_at(to) && (all_ports || host.port().is_some());
        (all_ports && is_known(None)) || is_known(Some(to.port())) || self.listed.iter().any(is_listed)
    }

    /// The addresses of a name, or `None` within if it is not listed; `None` if it has to be resolved.
    pub(super) fn known(&self, name: &str) -> Option<Option<Vec<IpAddr>>> {
        if !self.listed.iter().any(|host| host.is_named(name)) {
            self.refused(&format!("the name {name}"));
            return Some(None);
        }
        let answers = lock(&self.answers);
        let last = answers.get(name.trim_end_matches('.')).filter(|(when, _)| when.elapsed() < FRESH);
        last.map(|(_, addresses)| Some(addresses.clone()))
    }

    /// The addresses of a name; `None` if it is not listed. This may take as long as a name server.
    pub(super) fn resolve(&self, name: &str) -> Option<Vec<IpAddr>> {
        if let Some(known) = self.known(name) {
            return known;
        }
        let ports: Vec<_> = self.listed.iter().filter(|host| host.is_named(name)).map(Host::port).collect();
        let name = name.trim_end_matches('.');
        let found = (name, 0).to_socket_addrs();
        let addresses = found.into_iter().flatten().map(|address| address.ip().to_canonical());
        let addresses: Vec<_> = addresses.collect();
        // The owner of a listed name decides which addresses it has. A special address must be listed
        // itself.
        let known = addresses.iter().filter(|address| !is_special(**address));
        let mut resolved = lock(&self.resolved);
        resolved.retain(|_, when| when.elapsed() < VALID);
        for key in known.flat_map(|address| ports.iter().map(|port| (*address, *port))) {
            if resolved.len() < MOST_ADDRESSES || resolved.contains_key(&key) {
                resolved.insert(key, Instant::now());
            }
        }
        drop(resolved);
        if !addresses.is_empty() {
            let mut answers = lock(&self.answers);
            answers.retain(|_, (when, _)| when.elapsed() < FRESH);
            if answers.len() < MOST_ADDRESSES {
                answers.insert(name.to_owned(), (Instant::now(), addresses.clone()));
            }
        }
        Some(addresses)
    }

    /// Reports that something was refused, once.
    pub(super) fn refused(&self, what: &str) {
        let mut reported = lock(&self.reported);
        if reported.len() >= MOST_REPORTS || !reported.insert(what.to_owned()) {
            return;
        }
        let is_last = reported.len() == MOST_REPORTS;
        drop(reported);
        (self.report)(what);
        if is_last {
            (self.report)("more, which is not reported");
        }
    }
}

/// Whether an address is no machine on the internet or on a network of a company, but this machine, one
/// on its link, a group, or a service that tells secrets of a cloud.
pub(crate) fn is_special(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_special_v4(address),
        IpAddr::V6(address) => {
            let [a, b, c, d, e, f, g, h] = address.segments();
            let embedded = |high: u16, low: u16| {
                is_special_v4(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
            };
            address.is_loopback()
                || address.is_unspecified()
                || address.is_multicast()
                || address.is_unicast_link_local()
                || METADATA_V6.contains(&[a, b])
                || [a, b, c, d, e, f] == [0; 6]
                || ([a, b] == [0x64, 0xff9b] && embedded(g, h))
                || (a == 0x2002 && embedded(b, c))
        }
    }
}

fn is_special_v4(address: Ipv4Addr) -> bool {
    address.is_loopback()
        || address.octets()[0] == 0
        || address.is_multicast()
        || address.is_broadcast()
        || address.is_link_local()
        || METADATA_V4.contains(&address)
}

impl std::fmt::Debug for Hosts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hosts").field("listed", &self.listed).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_names_lead_to_machines_on_networks() {
        for address in [
            "0.0.0.0",
            "127.0.0.1",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
            "100.100.100.200",
            "::",
            "::1",
            "fe80::1",
            "ff02::1",
            "fd00:ec2::254",
            "64:ff9b::a9fe:a9fe",
            "::7f00:1",
            "2002:7f00:1::1",
        ] {
            assert!(is_special(address.parse().unwrap()), "{address}");
        }
        for address in ["10.0.0.7", "93.184.216.34", "fd00::7", "2606:2800::1", "64:ff9b::5db8:d822"] {
            assert!(!is_special(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn addresses_of_listed_names_are_known_for_their_ports() {
        let hosts = |listed: &str| {
            let listed = listed.split(',').map(|host| host.parse().unwrap()).collect();
            Hosts::new(listed, Box::new(|_| {}))
        };
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let known = hosts("localhost:80");
        assert!(known.resolve("localhost").unwrap().contains(&at(80).ip()));
        assert!(known.allows(at(80)) && !known.allows(at(81)));
        assert_eq!(known.resolve("other.example"), None);
        let all_ports = hosts("localhost");
        assert!(all_ports.allows(at(80)) && !all_ports.allows(at(53)));
        assert!(hosts("localhost:53").allows(at(53)));
        let unknown = hosts("127.0.0.1:80");
        assert_eq!(unknown.resolve("localhost"), None);
    }

    #[test]
    fn refusals_are_reported_once_and_not_for_ever() {
        let reports = std::sync::Arc::new(Mutex::new(Vec::new()));
        let all = std::sync::Arc::clone(&reports);
        let hosts = Hosts::new(Vec::new(), Box::new(move |what| lock(&all).push(what.to_owned())));
        for number in 0..2 * MOST_REPORTS {
            hosts.refused("the same");
            hosts.refused(&number.to_string());
        }
        let reports = lock(&reports);
        assert_eq!((reports.len(), &reports[0][..]), (MOST_REPORTS + 1, "the same"));
        assert!(reports[MOST_REPORTS].contains("not reported"));
    }
}
