//! Which connections sandboxed functions may make.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Which connections sandboxed functions may make. As a text, it is `false`, `true`, or the hosts with
/// commas between them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Net {
    /// None.
    #[default]
    Nothing,
    /// Those to these hosts, over TCP.
    Hosts(Vec<Host>),
    /// All, also to programs on this machine.
    Everything,
}

impl Net {
    /// Whether all of these connections are also allowed by the other.
    pub(crate) fn is_within(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Nothing, _) | (_, Self::Everything) => true,
            (Self::Hosts(ours), Self::Hosts(theirs)) => {
                ours.iter().all(|host| theirs.iter().any(|other| host.is_within(other)))
            }
            _ => false,
        }
    }
}

impl FromStr for Net {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match &text.trim().to_ascii_lowercase()[..] {
            "false" | "" => Self::Nothing,
            "true" => Self::Everything,
            word @ ("on" | "off" | "yes" | "no" | "all" | "none") => {
                return Err(format!("{word:?} is not a host: write true or false"));
            }
            hosts => {
                let hosts = hosts.split(',').map(str::trim).filter(|host| !host.is_empty());
                Self::Hosts(hosts.map(str::parse).collect::<Result<_, _>>()?)
            }
        })
    }
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("false"),
            Self::Everything => f.write_str("true"),
            Self::Hosts(hosts) => {
                for (index, host) in hosts.iter().enumerate() {
                    let comma = if index > 0 { "," } else { "" };
                    write!(f, "{comma}{host}")?;
                }
                Ok(())
            }
        }
    }
}

impl TryFrom<String> for Net {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Net> for String {
    fn from(net: Net) -> Self {
        net.to_string()
    }
}

/// A host, and the port on it. Its text is `api.example.com:443`, `*.example.com` (all hosts below, and
/// all ports), `10.0.0.7:5432`, or `[::1]:80`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// In lower case.
    name: Name,
    /// All ports, if there is none.
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Name {
    Address(IpAddr),
    Exact(String),
    /// All names that end with this text, which begins with a dot.
    Below(String),
}

impl Host {
    /// The port on it that may be connected to, if not all.
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// Whether this name is that of the host.
    pub fn is_named(&self, name: &str) -> bool {
        let name = name.trim_end_matches('.');
        match &self.name {
            Name::Address(_) => false,
            Name::Exact(exact) => exact.eq_ignore_ascii_case(name),
            Name::Below(end) => {
                let start = name.len().saturating_sub(end.len());
                start > 0 && name.get(start..).is_some_and(|tail| tail.eq_ignore_ascii_case(end))
            }
        }
    }

    /// Whether it is listed by this address. `localhost` stands for the addresses of this machine that
    /// are no other machine's.
    pub fn is_at(&self, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        let is_listed = match &self.name {
            Name::Address(listed) => listed.to_canonical() == ip,
            Name::Exact(name) => name == "localhost" && ip.is_loopback(),
            Name::Below(_) => false,
        };
        is_listed && self.has_port(address.port())
    }

    fn has_port(&self, port: u16) -> bool {
        self.port.is_none_or(|listed| listed == port)
    }

    fn is_within(&self, other: &Self) -> bool {
        let has_name = match (&self.name, &other.name) {
            (Name::Below(ours), Name::Below(theirs)) => ours.ends_with(theirs),
            (Name::Exact(name), _) => other.is_named(name),
            (ours, theirs) => ours == theirs,
        };
        has_name && (other.port.is_none() || other.port == self.port)
    }
}

impl FromStr for Host {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if ["true", "false"].contains(&text) {
            return Err(format!("{text} stands alone, and not in a list of hosts"));
        }
        let wrong = || format!("{text:?} is not a host: write it as api.example.com:443");
        let (name, port) = match text.rsplit_once(':') {
            Some((name, port)) if !name.contains(':') || name.ends_with(']') => {
                (name, Some(port.parse().ok().filter(|port| *port > 0).ok_or_else(wrong)?))
            }
            // An address of IPv6 has colons itself.
            _ => (text, None),
        };
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        if let Ok(address) = bare.parse() {
            return Ok(Self { name: Name::Address(address), port });
        }
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let (is_below, rest) = match name.strip_prefix("*.") {
            Some(rest) => (true, rest),
            None => (false, &name[..]),
        };
        let is_label = |label: &str| {
            !label.is_empty()
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        };
        // It was meant as an address.
        let ends_with_number =
            rest.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()));
        if rest.len() > 253 || ends_with_number || !rest.split('.').all(is_label) {
            return Err(wrong());
        }
        let name = if is_below { Name::Below(format!(".{rest}")) } else { Name::Exact(name) };
        Ok(Self { name, port })
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Name::Address(IpAddr::V6(address)) => write!(f, "[{address}]")?,
            Name::Address(address) => write!(f, "{address}")?,
            Name::Exact(name) => f.write_str(name)?,
            Name::Below(end) => write!(f, "*{end}")?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Net {
        text.parse().unwrap()
    }

    #[test]
    fn texts_are_read_as_they_are_written() {
        let hosts = "api.example.com:443,*.example.org,10.0.0.7:5432,[::1]:80,[fd00::1],localhost";
        for text in ["true", "false", hosts] {
            assert_eq!(net(text).to_string(), text);
        }
        assert_eq!(net(" API.Example.com.:443 , ::1 ").to_string(), "api.example.com:443,[::1]");
        let error = |text: &str| text.parse::<Net>().unwrap_err();
        for text in
            ["https://a.example", "a:b", "a:0", "a:70000", "a b", "*", "a.*.b", "-:", "a..b", "10.0.0.256"]
        {
            assert!(error(text).contains("api.example.com:443"), "{text}");
        }
        assert!(error("a.example,true").contains("stands alone"));
        assert!(error("ON").contains("true or false") && net("True") == Net::Everything);
    }

    #[test]
    fn a_host_is_known_by_its_name_or_its_address() {
        let host = |text: &str| text.parse::<Host>().unwrap();
        assert!(host("a.example").is_named("A.Example."));
        assert!(!host("a.example").is_named("b.a.example"));
        assert!(host("*.a.example").is_named("b.A.example") && host("*.a.example").is_named("c.b.a.example"));
        assert!(!host("*.a.example").is_named("a.example") && !host("*.a.example").is_named("ba.example"));
        assert!(!host("*.a.example").is_named(".a.example"));
        let at = |text: &str, address: &str| host(text).is_at(address.parse().unwrap());
        assert!(at("10.0.0.7", "10.0.0.7:1") && at("10.0.0.7:1", "[::ffff:10.0.0.7]:1"));
        assert!(!at("10.0.0.7:1", "10.0.0.7:2") && !at("10.0.0.7", "0.0.0.0:1"));
        assert!(at("localhost:1", "127.0.0.1:1") && at("localhost:1", "[::1]:1"));
        assert!(!at("localhost:1", "0.0.0.0:1") && !at("a.example", "127.0.0.1:1"));
    }

    #[test]
    fn a_list_may_be_within_another() {
        for (ours, theirs) in [
            ("false", "false"),
            ("a.example:1", "true"),
            ("a.example:1", "a.example"),
            ("b.a.example:1,*.b.a.example", "*.a.example"),
        ] {
            assert!(net(ours).is_within(&net(theirs)), "{ours} {theirs}");
        }
        for (ours, theirs) in [
            ("true", "a.example"),
            ("a.example", "a.example:1"),
            ("a.example", "false"),
            ("*.example", "*.a.example"),
        ] {
            assert!(!net(ours).is_within(&net(theirs)), "{ours} {theirs}");
        }
    }
}
