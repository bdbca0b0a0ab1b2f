//! Answers the questions of a C library for addresses (RFC 1035, over a stream).

use super::hosts::Hosts;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use simple_dns::rdata::{A, AAAA, RData};
use simple_dns::{CLASS, Name, Packet, QTYPE, RCODE, ResourceRecord, SimpleDnsError, TYPE};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How many seconds an answer holds.
const HOLDS: u32 = 60;
/// The most bytes of a question.
const LONGEST: usize = 512;
/// The bytes before a question: its length.
const LENGTH: usize = 2;
/// How long the next question may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection over which a C library asks for names.
#[derive(Debug)]
pub(super) struct Asker {
    stream: UnixStream,
    until: Instant,
}

impl Asker {
    pub(super) fn new(stream: UnixStream) -> Self {
        Self { stream, until: Instant::now() + PATIENCE }
    }

    pub(super) fn poll(&self) -> PollFd<'_> {
        PollFd::new(&self.stream, PollFlags::IN)
    }

    /// Whether it has asked nothing for long.
    pub(super) fn is_overdue(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Answers what was asked, without a wait: a thread resolves names that are not known. Returns
    /// whether more questions may come here.
    pub(super) fn answer(&mut self, hosts: &Arc<Hosts>) -> bool {
        // The C library asks for addresses of IPv4 and of IPv6 at once.
        let mut asked = [0; 2 * (LENGTH + LONGEST)];
        let asked = match rustix::net::recv(&self.stream, &mut asked[..], RecvFlags::DONTWAIT) {
            Ok((1.., length)) => &asked[..length],
            Err(Errno::AGAIN | Errno::INTR) => return true,
            _ => return false,
        };
        let Some(answers) = known_answers(asked, hosts) else {
            let (Ok(stream), hosts, asked) = (self.stream.try_clone(), Arc::clone(hosts), asked.to_vec())
            else {
                return false;
            };
            let thread = std::thread::Builder::new().name("crosslane-names".into());
            // If there is no thread, the asker sees the end of its connection.
            let _ = thread.spawn(move || serve(&stream, &asked, |name| hosts.resolve(name)));
            return false;
        };
        self.until = Instant::now() + PATIENCE;
        // An asker that does not read its answers gets no more of them.
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        rustix::net::send(&self.stream, &answers, flags) == Ok(answers.len())
    }
}

/// The answers to whole questions whose names are known; `None` if there is something else among them.
fn known_answers(mut asked: &[u8], hosts: &Hosts) -> Option<Vec<u8>> {
    let mut answers = Vec::new();
    while !asked.is_empty() {
        let (length, rest) = asked.split_first_chunk()?;
        let (question, rest) = rest.split_at_checked(u16::from_be_bytes(*length).into())?;
        answers.extend(answer(question, |name| hosts.known(name)).ok()??);
        asked = rest;
    }
    Some(answers)
}

/// Answers questions, the first bytes of which are `asked`, until the other end is closed, or asks nothing
/// for long. `resolve` returns the addresses of a name, or `None` if there is no such name.
pub(crate) fn serve(
    mut stream: &UnixStream,
    asked: &[u8],
    resolve: impl Fn(&str) -> Option<Vec<IpAddr>>,
) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut questions = asked.chain(stream);
    loop {
        let mut length = [0; LENGTH];
        questions.read_exact(&mut length)?;
        let length = u16::from_be_bytes(length).into();
        if length > LONGEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut question = vec![0; length];
        questions.read_exact(&mut question)?;
        let answer = answer(&question, |name| Some(resolve(name))).map_err(io::Error::other)?;
        stream.write_all(&answer.unwrap_or_default())?;
    }
}

/// The answer to a question, with its length before it. `resolve` returns the addresses of a name, or
/// `None` if there is no such name. If it knows neither, there is no answer.
fn answer(
    question: &[u8],
    resolve: impl Fn(&str) -> Option<Option<Vec<IpAddr>>>,
) -> Result<Option<Vec<u8>>, SimpleDnsError> {
    let asked = Packet::parse(question)?;
    let mut reply = Packet::parse(question)?.into_reply();
    // The C library asks for one name at once.
    let [question] = &asked.questions[..] else { return Err(SimpleDnsError::InvalidDnsPacket) };
    let is_asked = |address: &IpAddr| match address {
        IpAddr::V4(_) => question.qtype == QTYPE::TYPE(TYPE::A),
        IpAddr::V6(_) => question.qtype == QTYPE::TYPE(TYPE::AAAA),
    };
    let Some(found) = resolve(&question.qname.to_string()) else { return Ok(None) };
    match found {
        Some(addresses) => {
            let asked = addresses.into_iter().filter(is_asked);
            reply.answers.extend(asked.map(|address| record(question.qname.clone(), address)));
        }
        None => *reply.rcode_mut() = RCODE::NameError,
    }
    let reply = reply.build_bytes_vec_compressed()?;
    let length = u16::try_from(reply.len()).map_err(|_| SimpleDnsError::InvalidDnsPacket)?;
    Ok(Some([&length.to_be_bytes(), &reply[..]].concat()))
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

    fn question(name: &str, kind: TYPE) -> Vec<u8> {
        let mut packet = Packet::new_query(7);
        let name = Name::new(name).unwrap();
        packet.questions.push(Question::new(name, QTYPE::TYPE(kind), QCLASS::CLASS(CLASS::IN), false));
        packet.build_bytes_vec().unwrap()
    }

    /// A question as it is in the stream.
    fn sent(name: &str) -> Vec<u8> {
        let question = question(name, TYPE::A);
        [&u16::try_from(question.len()).unwrap().to_be_bytes(), &question[..]].concat()
    }

    /// The code of the next answer in the stream.
    fn received(mut stream: &UnixStream) -> RCODE {
        let mut length = [0; LENGTH];
        stream.read_exact(&mut length).unwrap();
        let mut answer = vec![0; u16::from_be_bytes(length).into()];
        stream.read_exact(&mut answer).unwrap();
        Packet::parse(&answer).unwrap().rcode()
    }

    fn asker() -> (Asker, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Asker::new(ours), theirs)
    }

    fn hosts() -> Arc<Hosts> {
        Arc::new(Hosts::new(vec!["localhost:443".parse().unwrap()], Box::new(|_| {})))
    }

    #[test]
    fn a_name_that_is_not_known_is_resolved_by_a_thread_and_then_known() {
        let (hosts, (mut first, theirs)) = (hosts(), asker());
        (&theirs).write_all(&[sent("localhost"), sent("b.example")].concat()).unwrap();
        assert!(!first.answer(&hosts), "a thread has the connection");
        assert_eq!([received(&theirs), received(&theirs)], [RCODE::NoError, RCODE::NameError]);
        (&theirs).write_all(&sent("localhost")).unwrap();
        assert_eq!(received(&theirs), RCODE::NoError);
        let (mut second, theirs) = asker();
        assert!(second.answer(&hosts), "nothing is asked yet");
        (&theirs).write_all(&[sent("localhost"), sent("b.example")].concat()).unwrap();
        assert!(second.answer(&hosts));
        assert_eq!([received(&theirs), received(&theirs)], [RCODE::NoError, RCODE::NameError]);
        drop(theirs);
        assert!(!second.answer(&hosts));
    }

    #[test]
    fn a_question_in_pieces_is_answered() {
        let (hosts, (mut asker, theirs)) = (hosts(), asker());
        let question = sent("b.example");
        (&theirs).write_all(&question[..5]).unwrap();
        assert!(!asker.answer(&hosts));
        (&theirs).write_all(&question[5..]).unwrap();
        assert_eq!(received(&theirs), RCODE::NameError);
    }

    #[test]
    fn an_asker_that_reads_no_answers_is_left() {
        let (hosts, (mut asker, theirs)) = (hosts(), asker());
        theirs.set_nonblocking(true).unwrap();
        loop {
            (&theirs).write_all(&sent("b.example")).unwrap();
            if !asker.answer(&hosts) {
                break;
            }
        }
    }

    fn ask(name: &'static str, kind: TYPE) -> (RCODE, Vec<String>) {
        let bytes = question(name, kind);
        let addresses = vec!["10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap()];
        let resolve = |name: &str| Some((name == "a.example").then(|| addresses.clone()));
        let answer = answer(&bytes, resolve).unwrap().unwrap();
        let answer = Packet::parse(&answer[LENGTH..]).unwrap();
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
