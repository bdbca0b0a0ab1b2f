//! Parses and changes URLs and the texts in their queries by the rules of the web, for the prelude's `URL`.

use std::panic;
use url::form_urlencoded::{byte_serialize, parse};
use url::{Url, quirks};

/// Separates the parts of an answer. No text has this byte in UTF-8.
pub(crate) const SEPARATOR: u8 = 0xff;

/// Parses a URL, alone or relative to a base, or changes one of its parts. Returns the URL's parts.
/// `None` if the input makes no URL. Or encodes or decodes a text for a query.
pub(crate) fn answer(operation: &str, first: &str, second: &str) -> Option<Vec<u8>> {
    let work = || {
        let url = match operation {
            "encode" => return Some(byte_serialize(first.as_bytes()).collect::<String>().into_bytes()),
            // A query of one pair, whose value is the text.
            "decode" => {
                let decoded = parse(format!("={first}").as_bytes()).next()?.1.into_owned();
                return Some(decoded.into_bytes());
            }
            "parse" => Url::parse(first).ok()?,
            "join" => Url::parse(second).ok()?.join(first).ok()?,
            part => changed(Url::parse(first).ok()?, part, second)?,
        };
        let origin = quirks::origin(&url);
        // In the order that the prelude expects.
        let parts = [
            quirks::href(&url),
            origin.as_str(),
            quirks::protocol(&url),
            quirks::username(&url),
            quirks::password(&url),
            quirks::host(&url),
            quirks::hostname(&url),
            quirks::port(&url),
            quirks::pathname(&url),
            quirks::search(&url),
            quirks::hash(&url),
        ];
        Some(parts.map(str::as_bytes).join(&SEPARATOR))
    };
    // The caller is C++, and a panic must not pass through C++.
    panic::catch_unwind(work).ok().flatten()
}

fn changed(mut url: Url, part: &str, value: &str) -> Option<Url> {
    match part {
        "protocol" => quirks::set_protocol(&mut url, value).ok()?,
        "username" => quirks::set_username(&mut url, value).ok()?,
        "password" => quirks::set_password(&mut url, value).ok()?,
        "host" => quirks::set_host(&mut url, value).ok()?,
        "hostname" => quirks::set_hostname(&mut url, value).ok()?,
        "port" => quirks::set_port(&mut url, value).ok()?,
        "pathname" => quirks::set_pathname(&mut url, value),
        "search" => quirks::set_search(&mut url, value),
        "hash" => quirks::set_hash(&mut url, value),
        _ => return None,
    }
    Some(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(operation: &str, first: &str, second: &str) -> Option<Vec<String>> {
        let answer = answer(operation, first, second)?;
        let parts = answer.split(|byte| *byte == SEPARATOR);
        Some(parts.map(|part| String::from_utf8(part.to_vec()).unwrap()).collect())
    }

    #[test]
    fn a_url_has_eleven_parts() {
        assert_eq!(
            parts("join", "../b?q#h", "HTTPS://me:pw@Bücher.example:8443/a/x/y").unwrap(),
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
        assert_eq!(parts("pathname", "http://a/b", "c\nd").unwrap()[0], "http://a/cd");
    }

    #[test]
    fn texts_of_queries_have_any_characters() {
        assert_eq!(parts("encode", "a b&=ü\n", "").unwrap(), ["a+b%26%3D%C3%BC%0A"]);
        assert_eq!(parts("decode", "a+b%26=%C3%BC%0A%zz%ff", "").unwrap(), ["a b&=ü\n%zz\u{fffd}"]);
        assert_eq!(parts("decode", "", "").unwrap(), [""]);
    }
}
