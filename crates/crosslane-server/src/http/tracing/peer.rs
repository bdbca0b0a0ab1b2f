//! The user at the other end of a TCP connection within this machine.

use rustix::process::geteuid;
use std::fmt::Write;
use std::fs::read_to_string;
use std::net::{IpAddr, SocketAddr};

/// The state of a connection that both ends have. The kernel names no user for one that was closed.
const ESTABLISHED: &str = "01";

/// The user that stands for all users which this user namespace does not know.
const OVERFLOW: u32 = 65534;

/// Whether a program of this process's user has opened a connection from `peer` to `here`.
pub(crate) fn is_own(peer: SocketAddr, here: SocketAddr) -> bool {
    let own = geteuid().as_raw();
    own != OVERFLOW && user(peer, here) == Some(own)
}

/// The user whose program has opened a connection from `peer` to `here`. `None` if the kernel does not
/// say so, such as for a program in another network namespace.
fn user(peer: SocketAddr, here: SocketAddr) -> Option<u32> {
    // A socket for IPv6 may have an address of IPv4.
    let mapped = |address: SocketAddr| match address.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        IpAddr::V6(_) => address,
    };
    let of_v6 = || find("/proc/self/net/tcp6", mapped(peer), mapped(here));
    match peer.is_ipv4() {
        true => find("/proc/self/net/tcp", peer, here).or_else(of_v6),
        false => of_v6(),
    }
}

/// The user of the socket with these addresses in a table of the kernel.
fn find(table: &str, local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    let (local, remote) = (written(local), written(remote));
    read_to_string(table).ok()?.lines().find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().take(8).collect();
        let [_, its, others, state, _, _, _, user] = fields[..] else { return None };
        let is_it = its == local && others == remote && state == ESTABLISHED;
        user.parse().ok().filter(|_| is_it)
    })
}

/// An address as the kernel writes it: words of the machine, in hexadecimal digits.
fn written(address: SocketAddr) -> String {
    let bytes = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let mut text = String::new();
    for word in bytes.as_chunks::<4>().0 {
        let _ = write!(text, "{:08X}", u32::from_ne_bytes(*word));
    }
    let _ = write!(text, ":{:04X}", address.port());
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Shutdown, TcpListener, TcpStream};

    #[test]
    fn the_user_of_a_connection_is_known_while_it_is_open() {
        let own = rustix::process::geteuid().as_raw();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, peer) = listener.accept().unwrap();
            let here = server.local_addr().unwrap();
            assert_eq!(user(peer, here), Some(own), "{address}");
            assert_eq!(user(here, here), None, "{address}");
            client.shutdown(Shutdown::Write).unwrap();
            assert_eq!(user(peer, here), None, "{address}");
        }
    }
}
