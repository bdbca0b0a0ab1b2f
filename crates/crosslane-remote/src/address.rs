//! The addresses at which servers listen and clients find them.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The port of an address without one, as in `crosslane://host`.
pub const PORT: u16 = 7411;

/// An address: `crosslane://host:port`, `crosslane+tls://host:port`, or
/// `crosslane+unix:///path/of/a/socket`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// A host's name or IP address, and a port. If a listener asks for port 0, the system chooses
    /// one.
    Tcp {
        /// An IPv6 address is without brackets.
        host: String,
        /// The port.
        port: u16,
        /// Whether the connection is encrypted, and the server proves its identity.
        tls: bool,
    },
    /// A Unix socket.
    Unix(PathBuf),
}

/// An error: the text is not an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no address of a server: {why}; write crosslane://host:port, crosslane+tls://host:port or crosslane+unix:///path/of/a/socket"
)]
pub struct NoAddress {
    text: String,
    why: &'static str,
}

impl FromStr for Address {
    type Err = NoAddress;

    fn from_str(text: &str) -> Result<Self, NoAddress> {
        let wrong = |why| NoAddress { text: text.to_owned(), why };
        if let Some(path) = text.strip_prefix("crosslane+unix://") {
            // The kernel allows 108 bytes, including the zero at the end.
            return match path.len() {
                _ if !path.starts_with('/') => Err(wrong("the path of a socket is absolute")),
                108.. => Err(wrong("the path of a socket has at most 107 bytes")),
                _ => Ok(Address::Unix(path.into())),
            };
        }
        let (rest, tls) = match (text.strip_prefix("crosslane://"), text.strip_prefix("crosslane+tls://")) {
            (Some(rest), _) => (rest, false),
            (None, Some(rest)) => (rest, true),
            (None, None) => return Err(wrong("it has another scheme")),
        };
        let (host, port) = match rest.strip_prefix('[') {
            Some(rest) => {
                let (host, after) = rest.split_once(']').ok_or_else(|| wrong("a bracket is not closed"))?;
                match after.strip_prefix(':') {
                    Some(port) => (host, Some(port)),
                    None if after.is_empty() => (host, None),
                    None => return Err(wrong("behind the host is something else than a port")),
                }
            }
            None => rest.split_once(':').map_or((rest, None), |(host, port)| (host, Some(port))),
        };
        if host.is_empty() || host.contains('/') {
            return Err(wrong("it has no host, or more than a host and a port"));
        }
        let port = port.map_or(Ok(PORT), str::parse).map_err(|_| wrong("its port is not 0 to 65535"))?;
        Ok(Address::Tcp { host: host.to_owned(), port, tls })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp { host, port, tls } => {
                let scheme = if *tls { "crosslane+tls" } else { "crosslane" };
                let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
                write!(f, "{scheme}://{open}{host}{close}:{port}")
            }
            Address::Unix(path) => write!(f, "crosslane+unix://{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        for (text, written) in [
            ("crosslane://models:80", "crosslane://models:80"),
            ("crosslane://models", "crosslane://models:7411"),
            ("crosslane+tls://models", "crosslane+tls://models:7411"),
            ("crosslane://[::1]:5", "crosslane://[::1]:5"),
            ("crosslane://[::1]", "crosslane://[::1]:7411"),
            ("crosslane+unix:///run/a.sock", "crosslane+unix:///run/a.sock"),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), written);
            assert_eq!(written.parse(), Ok(address));
        }
    }

    #[test]
    fn what_is_no_address_is_told_why() {
        for (text, why) in [
            ("models:80", "another scheme"),
            ("crosslane://", "no host"),
            ("crosslane://a/b", "more than a host"),
            ("crosslane://a:70000", "port"),
            ("crosslane://a:b", "port"),
            ("crosslane://[::1:5", "bracket"),
            ("crosslane://[::1]5", "something else"),
            ("crosslane+unix://run/a", "absolute"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        assert!(format!("crosslane+unix:///{}", "a".repeat(107)).parse::<Address>().is_err());
    }
}
