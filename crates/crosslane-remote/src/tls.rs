//! Encrypted connections, by rustls.
//!
//! A client trusts the authorities that the system trusts, or, if the environment has the variable `SSL_CERT_FILE`, those of that
//! file. Clients show who they are by their token, and have no certificates.

use crate::socket::Socket;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection};
use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::path::Path;
use std::sync::Arc;

/// The most bytes that are encrypted ahead of what the socket takes.
const AHEAD: usize = 256 << 10;

fn broken(error: impl fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

/// What a server shows: its certificate with those that vouch for it, and its key, in PEM.
///
/// # Errors
/// Which of the files cannot be read, or does not hold what it should.
pub fn server(certificate: &Path, key: &Path) -> io::Result<Arc<ServerConfig>> {
    let named = |file: &Path| {
        let file = file.display().to_string();
        move |error: rustls::pki_types::pem::Error| broken(format!("{file}: {error}"))
    };
    let certificates = CertificateDer::pem_file_iter(certificate).map_err(named(certificate))?;
    let certificates = certificates.collect::<Result<Vec<_>, _>>().map_err(named(certificate))?;
    let key = PrivateKeyDer::from_pem_file(key).map_err(named(key))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(broken)?.with_no_client_auth().with_single_cert(certificates, key);
    Ok(Arc::new(config.map_err(|error| broken(format!("{}: {error}", certificate.display())))?))
}

/// The keys of an encrypted connection, and what is not yet written or read of it.
pub(crate) struct Session(Connection);

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Session")
    }
}

/// With a server that must show that it has this name.
pub(crate) fn client(host: &str) -> io::Result<Session> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err(broken(
            "the system trusts no authority for certificates (Debian: ca-certificates; or SSL_CERT_FILE)",
        ));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(broken)?.with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).map_err(broken)?;
    let connection = ClientConnection::new(Arc::new(config), name).map_err(broken)?;
    Ok(Session::new(connection.into()))
}

impl Session {
    fn new(mut connection: Connection) -> Self {
        connection.set_buffer_limit(Some(AHEAD));
        Self(connection)
    }

    /// That of a client whose greeting is still to come.
    pub(crate) fn accept(config: Arc<ServerConfig>) -> io::Result<Self> {
        Ok(Self::new(ServerConnection::new(config).map_err(broken)?.into()))
    }

    pub(crate) fn receive(&mut self, mut socket: &Socket, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Whoever ends a connection says so here; one that does not may have been cut.
                read => return read,
            }
            self.0.read_tls(&mut socket)?;
            let read = self.0.process_new_packets();
            // The other side is told of what is wrong, and of the handshake.
            match self.flush(socket) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
            read.map_err(broken)?;
        }
    }

    pub(crate) fn send(&mut self, socket: &Socket, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut taken = self.0.writer().write_vectored(parts)?;
        let mut flushed = self.flush(socket);
        if taken == 0 && flushed.is_ok() {
            taken = self.0.writer().write_vectored(parts)?;
            flushed = self.flush(socket);
        }
        match flushed {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock || taken == 0 => Err(error),
            _ => Ok(taken),
        }
    }

    /// Whether something was decrypted that was not received.
    pub(crate) fn has_news(&mut self) -> bool {
        // An error is found by who receives.
        self.0.process_new_packets().map_or(true, |state| state.plaintext_bytes_to_read() > 0)
    }

    /// Agrees with the other side on keys; an error while that has to be waited for.
    pub(crate) fn greet(&mut self, mut socket: &Socket) -> io::Result<()> {
        loop {
            self.flush(socket)?;
            if !self.0.is_handshaking() {
                return Ok(());
            }
            if self.0.read_tls(&mut socket)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.0.process_new_packets().map_err(broken)?;
        }
    }

    pub(crate) fn is_pending(&self) -> bool {
        self.0.wants_write()
    }

    pub(crate) fn flush(&mut self, mut socket: &Socket) -> io::Result<()> {
        while self.0.wants_write() {
            self.0.write_tls(&mut socket)?;
        }
        Ok(())
    }

    pub(crate) fn close(&mut self, socket: &Socket) {
        self.0.send_close_notify();
        let _ = self.flush(socket);
    }
}
