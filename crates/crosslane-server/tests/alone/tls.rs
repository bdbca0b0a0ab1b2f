//! Encrypted connections. A client reads in the environment which authorities it trusts.

use crate::common::{Client, DOUBLE, LARGE, options, start};
use crosslane_server::tls;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use std::fs;
use std::path::PathBuf;

/// Writes a file that is removed with the test's folder.
fn written(name: &str, text: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("crosslane-tls-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path
}

#[test]
fn a_server_shows_who_it_is_and_everything_travels_encrypted() {
    let authority_key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&authority_key).unwrap();
    let issuer = Issuer::new(params, authority_key);
    let key = KeyPair::generate().unwrap();
    let certificate =
        CertificateParams::new(vec!["localhost".into()]).unwrap().signed_by(&key, &issuer).unwrap();
    let certificate_file = written("server.pem", &certificate.pem());
    let key_file = written("key.pem", &key.serialize_pem());
    let trusted = written("authority.pem", &authority.pem());
    // SAFETY: this program has one test, and no other threads yet.
    unsafe { std::env::set_var("SSL_CERT_FILE", &trusted) };

    let mut options = options(&["crosslane+tls://localhost:0".parse().unwrap()]);
    assert!(start(options.clone()).unwrap_err().to_string().contains("there is no certificate"));
    assert!(tls::server(&key_file, &certificate_file).is_err());
    options.tls = Some(tls::server(&certificate_file, &key_file).unwrap());
    options.token = Some("secret".into());
    let server = start(options).unwrap();
    let address = &server.addresses()[0];
    let client = Client::attach(address, Some("secret")).unwrap();
    let values: Vec<i64> = (0..200_000).collect();
    assert_eq!(client.call(DOUBLE, &values).unwrap()[199_999], 399_998);
    assert_eq!(client.call(LARGE, &[3 << 20]).unwrap(), [3 << 20]);
    assert_eq!(client.scan(10_000, usize::MAX).unwrap().len(), 10_000);
    assert!(Client::attach(address, None).err().unwrap().to_string().contains("it needs a token"));

    // The client refuses another name than the certificate's, a connection without encryption, and an
    // authority that did not sign the certificate.
    let text = address.to_string();
    let error =
        |text: &str| Client::attach(&text.parse().unwrap(), Some("secret")).err().unwrap().to_string();
    assert!(error(&text.replace("localhost", "127.0.0.1")).contains("certificate"));
    let plain = error(&text.replace("crosslane+tls", "crosslane"));
    assert!(plain.contains("no server of crosslane"), "{plain}");
    let other =
        CertificateParams::new(Vec::new()).unwrap().self_signed(&KeyPair::generate().unwrap()).unwrap();
    fs::write(&trusted, other.pem()).unwrap();
    assert!(error(&text).contains("certificate"));
    // Connections that were made before still work.
    assert_eq!(client.call(DOUBLE, &[4]).unwrap(), [8]);
    fs::remove_dir_all(trusted.parent().unwrap()).unwrap();
}
