//! Parses and changes URLs by the rules of the web, for the prelude's `URL`.

use std::panic;
use url::{Url, quirks};

/// Returns all parts of a URL, in the order that the prelude expects.
fn parts(url: &Url) -> [&str; 11] {
    [
        quirks::href(url),
        "",
        quirks::protocol(url),
        quirks::username(url),
        quirks::password(url),
        quirks::host(url),
        quirks::hostname(url),
        quirks::port(url),
        quirks::pathname(url),
        quirks::search(url),
        quirks::hash(url),
    ]
}

/// Parses a URL, alone or relative to a base, or changes one of its parts. Returns the URL's parts,
/// one per line, because no URL has line breaks. `None` if the input makes no URL.
pub(crate) fn answer(operation: &str, first: &str, second: &str) -> Option<String> {
    let work = || {
        let url = match operation {
            "parse" => Url::parse(first).ok()?,
            "join" => Url::parse(second).ok()?.join(first).ok()?,
            part => changed(Url::parse(first).ok()?, part, second)?,
        };
        let origin = quirks::origin(&url);
        let mut parts = parts(&url);
        parts[1] = &origin;
        Some(parts.join("\n"))
    };
    // The caller is C++, and a panic must not pass through C++.
    panic::catch_unwind(work).ok().flatten()
}

fn changed(mut url: Url, part: &str, value: &str) -> Option<Url> {
    let change = match part {
        "protocol" => quirks::set_protocol,
        "username" => quirks::set_username,
        "password" => quirks::set_password,
        "host" => quirks::set_host,
        "hostname" => quirks::set_hostname,
        "port" => quirks::set_port,
        "pathname" => |url: &mut Url, value: &str| {
            quirks::set_pathname(url, value);
            Ok(())
        },
        "search" => |url: &mut Url, value: &str| {
            quirks::set_search(url, value);
            Ok(())
        },
        "hash" => |url: &mut Url, value: &str| {
            quirks::set_hash(url, value);
            Ok(())
        },
        _ => return None,
    };
    change(&mut url, value).ok()?;
    Some(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_eleven_parts() {
        let text = answer("join", "../b?q#h", "HTTPS://me:pw@Bücher.example:8443/a/x/y").unwrap();
        assert_eq!(
            text.split('\n').collect::<Vec<_>>(),
            [
                "https://me:pw@xn--bcher-kva.example:8443/a/b?q#h",
                "https://xn--bcher-kva.example:8443",
                "https:",
                "me",
                "pw",
                "xn--bcher-kva.example:8443",
                "xn--bcher-kva.example",
                "8443",
                "/a/b",
                "?q",
                "#h"
            ]
        );
        assert_eq!(answer("parse", "http://a b/", ""), None);
    }

    #[test]
    fn an_invalid_part_changes_nothing() {
        assert_eq!(answer("port", "mailto:a@b", "1"), None);
        let changed = answer("pathname", "http://a/b", "c\nd").unwrap();
        assert!(changed.starts_with("http://a/cd\n"), "{changed:?}");
    }
}
