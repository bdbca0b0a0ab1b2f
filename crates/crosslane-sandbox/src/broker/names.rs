//! Answers the questions of a C library for addresses (RFC 1035, over a stream).

use super::hosts::Hosts;
use simple_dns::rdata::{A, AAAA, RData};
use simple_dns::{CLASS, Name, Packet, QTYPE, RCODE, ResourceRecord, SimpleDnsError, TYPE};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// How many seconds an answer holds.
const HOLDS: u32 = 60;
/// The most bytes of a question.
const LONGEST: u16 = 512;
/// How long the next question may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Answers questions until the other end is closed, or asks nothing for long.
pub(super) fn serve(mut stream: UnixStream, hosts: &Hosts) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    loop {
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        let length = u16::from_be_bytes(length);
        if length > LONGEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut question = vec![0; length.into()];
        stream.read_exact(&mut question)?;
        let answer = answer(&question, |name| hosts.resolve(name)).map_err(io::Error::other)?;
        let length = u16::try_from(answer.len()).map_err(io::Error::other)?;
        stream.write_all(&[&length.to_be_bytes(), &answer[..]].concat())?;
    }
}

/// The answer to a question. `resolve` returns the addresses of a name, or `None` if there is no such
/// name.
fn answer(question: &[u8], resolve: impl Fn(&str) -> Option<Vec<IpAddr>>) -> Result<Vec<u8>, SimpleDnsError> {
    let asked = Packet::parse(question)?;
    let mut reply = Packet::parse(question)?.into_reply();
    // The C library asks for one name at once.
    let [question] = &asked.questions[..] else { return Err(SimpleDnsError::InvalidDnsPacket) };
    let is_asked = |address: &IpAddr| match address {
        IpAddr::V4(_) => question.qtype == QTYPE::TYPE(TYPE::A),
        IpAddr::V6(_) => question.qtype == QTYPE::TYPE(TYPE::AAAA),
    };
    match resolve(&question.qname.to_string()) {
        Some(addresses) => {
            let asked = addresses.into_iter().filter(is_asked);
            reply.answers.extend(asked.map(|address| record(question.qname.clone(), address)));
        }
        None => *reply.rcode_mut() = RCODE::NameError,
    }
    reply.build_bytes_vec_compressed()
}

fn record(name: Name<'_>, address: IpAddr) -> ResourceRecord<'_> {
    let data = match address {
        IpAddr::V4(address) => RData::A(A::from(address)),
        IpAddr::V6(address) => RData::AAAA(AAAA::from(address)),
    };
    ResourceRecord::new(name, CLASS::IN, HOLDS, data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use simple_dns::{QCLASS, Question};

    fn ask(name: &'static str, kind: TYPE) -> (RCODE, Vec<String>) {
        let mut packet = Packet::new_query(7);
        let name = Name::new(name).unwrap();
        packet.questions.push(Question::new(name, QTYPE::TYPE(kind), QCLASS::CLASS(CLASS::IN), false));
        let bytes = packet.build_bytes_vec().unwrap();
        let addresses = vec!["10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap()];
        let answer = answer(&bytes, |name| (name == "a.example").then(|| addresses.clone())).unwrap();
        let answer = Packet::parse(&answer).unwrap();
        assert_eq!((answer.id(), answer.questions.len()), (7, 1));
        let address = |record: &ResourceRecord<'_>| match &record.rdata {
            RData::A(address) => IpAddr::from(std::net::Ipv4Addr::from(address.address)).to_string(),
            RData::AAAA(address) => IpAddr::from(std::net::Ipv6Addr::from(address.address)).to_string(),
            other => format!("{other:?}"),
        };
        (answer.rcode(), answer.answers.iter().map(address).collect())
    }

    #[test]
    fn a_name_has_the_addresses_that_are_asked_for() {
        assert_eq!(ask("a.example", TYPE::A), (RCODE::NoError, vec!["10.0.0.7".into()]));
        assert_eq!(ask("a.example", TYPE::AAAA), (RCODE::NoError, vec!["fd00::7".into()]));
        assert_eq!(ask("a.example", TYPE::TXT), (RCODE::NoError, vec![]));
        assert_eq!(ask("b.example", TYPE::A), (RCODE::NameError, vec![]));
    }

    #[test]
    fn garbage_is_an_error() {
        for bytes in [&b""[..], b"\0", &[0xff; 12], &[0xff; 300], &[0xc0; 64]] {
            assert!(answer(bytes, |_| None).is_err());
        }
    }
}
