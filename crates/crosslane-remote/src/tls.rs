//! Encrypted connections, by rustls.
//!
//! A client trusts the authorities that the system trusts. If the environment variable
//! `SSL_CERT_FILE` is set, the client trusts the authorities in that file instead. Clients have no
//! certificates. They prove their identity with a token.

use crate::socket::Socket;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection};
use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::path::Path;
use std::sync::Arc;

/// The most bytes that a session buffers while the socket has no room.
const AHEAD: usize = 256 << 10;

fn broken(error: impl fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

/// Reads the certificate and the key of a server from PEM files. The first file also has the
/// certificates that vouch for the server's own.
///
/// # Errors
/// If a file cannot be read or has wrong content. The message names the file.
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

/// The TLS state of a connection: its keys, and the bytes that were not yet written or read.
#[derive(Debug)]
pub(crate) struct Session(Connection);

/// Starts a session with a server. The server must prove that it has this name.
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

    /// Starts a session with a client. The handshake is still to come.
    pub(crate) fn accept(config: Arc<ServerConfig>) -> io::Result<Self> {
        Ok(Self::new(ServerConnection::new(config).map_err(broken)?.into()))
    }

    pub(crate) fn receive(&mut self, mut socket: &Socket, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // 0 means that the other side ended the session with a message. An end without it
                // is an error, because bytes may be missing.
                read => return read,
            }
            self.0.read_tls(&mut socket)?;
            let read = self.0.process_new_packets();
            // Sends the replies of the handshake, and the alert if a packet was wrong.
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

    /// Whether there are decrypted bytes that were not received.
    pub(crate) fn has_news(&mut self) -> bool {
        // An error counts as news, because `receive` must return it.
        self.0.process_new_packets().map_or(true, |state| state.plaintext_bytes_to_read() > 0)
    }

    /// Does the handshake. Returns `WouldBlock` while it must wait for the socket.
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
