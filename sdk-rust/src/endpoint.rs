//! Decides what an endpoint text means and whether it may be used at all.
//!
//! A configured endpoint is `host:port`, `http://…` or `https://…`; a redirect is a URL, nothing
//! else. Knows no sockets and resolves no names: whether a host is loopback is judged by how it is
//! written. Read by hand, since URL libraries repair and normalize what must be refused here.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use crate::errors::{Error, ErrorKind, Result};

const DEFAULT_PORT: u16 = 7070;

/// Where a server listens, and whether the way there is encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) is_encrypted: bool,
    /// Lower case; an IPv6 address without its brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Endpoint {
    /// True when the host names this machine in a way that no resolver can change.
    pub(crate) fn is_loopback(&self) -> bool {
        self.host == "localhost"
            || self.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_encrypted { "https" } else { "http" };
        if self.host.contains(':') {
            write!(f, "{scheme}://[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{scheme}://{}:{}", self.host, self.port)
        }
    }
}

/// Reads an endpoint that a user configured (RR-01).
pub(crate) fn parse_configured(text: &str, has_tls: bool) -> Result<Endpoint> {
    let scheme = if has_tls { "https://" } else { "http://" };
    let whole = if text.contains("://") { text.to_owned() } else { format!("{scheme}{text}") };
    let endpoint = parse(&whole, |_| DEFAULT_PORT)?;
    if has_tls && !endpoint.is_encrypted {
        return Err(refusal(format!("endpoint {text:?} is http, but TLS settings were given")));
    }
    Ok(endpoint)
}

/// Reads an endpoint that a server named (RR-13).
pub(crate) fn parse_redirect(text: &str) -> Result<Endpoint> {
    parse(text, |is_encrypted| if is_encrypted { 443 } else { 80 })
}

fn refusal(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOption, text)
}

fn parse(text: &str, port_of: impl Fn(bool) -> u16) -> Result<Endpoint> {
    let malformed = || refusal(format!("endpoint {text:?} is not of the form scheme://host:port"));
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(malformed());
    }
    let (scheme, rest) = text.split_once("://").ok_or_else(malformed)?;
    let is_encrypted = match scheme.to_ascii_lowercase().as_str() {
        "http" => false,
        "https" => true,
        _ => return Err(refusal(format!("endpoint {text:?} is neither http nor https"))),
    };
    let authority = rest.strip_suffix('/').unwrap_or(rest);
    if authority.contains('@') {
        return Err(refusal("endpoint carries user information"));
    }
    if authority.contains(['/', '?', '#', '\\', '%']) {
        return Err(malformed());
    }
    let (host, port) = split_port(authority).ok_or_else(malformed)?;
    let port = match port {
        None => port_of(is_encrypted),
        Some(digits) => parse_port(digits).ok_or_else(malformed)?,
    };
    let host = parse_host(host).ok_or_else(malformed)?;
    Ok(Endpoint { is_encrypted, host, port })
}

/// Splits `host`, `host:port`, `[v6]` and `[v6]:port`; an empty port counts as none.
fn split_port(authority: &str) -> Option<(&str, Option<&str>)> {
    let (host, port) = if authority.starts_with('[') {
        let end = authority.find(']')? + 1;
        let (host, rest) = authority.split_at(end);
        if rest.is_empty() { (host, None) } else { (host, Some(rest.strip_prefix(':')?)) }
    } else {
        match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        }
    };
    Some((host, port.filter(|digits| !digits.is_empty())))
}

fn parse_port(digits: &str) -> Option<u16> {
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse::<u16>().ok().filter(|port| is_number && *port > 0)
}

fn parse_host(host: &str) -> Option<String> {
    if let Some(inner) = host.strip_prefix('[') {
        let address = inner.strip_suffix(']')?;
        address.parse::<Ipv6Addr>().ok()?;
        return Some(address.to_ascii_lowercase());
    }
    let lower = host.to_ascii_lowercase();
    let is_label = |label: &str| {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        !label.is_empty() && label.bytes().all(is_allowed)
    };
    lower.trim_end_matches('.').split('.').all(is_label).then_some(lower)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configured(text: &str) -> String {
        parse_configured(text, false).map_or_else(|error| error.to_string(), |e| e.to_string())
    }

    /// A configured endpoint needs neither scheme nor port (RR-01).
    #[test]
    fn configured_endpoints_have_defaults() {
        assert_eq!(configured("queue"), "http://queue:7070");
        assert_eq!(configured("https://Queue"), "https://queue:7070");
        assert_eq!(configured("[::1]:80"), "http://[::1]:80");
        assert!(parse_configured("http://queue", true).is_err());
        assert_eq!(parse_configured("queue", true).unwrap().to_string(), "https://queue:7070");
    }

    /// Whatever is more or less than scheme, host and port is refused (RR-13).
    #[test]
    fn redirects_to_anything_but_a_plain_url_are_refused() {
        let refused = [
            "",
            "queue:7070",
            "ftp://queue",
            "http://",
            "http://:80",
            "http://u@queue",
            "http://u:p@queue:80",
            "http://queue/x",
            "http://queue//",
            "http://queue?x",
            "http://queue#x",
            "http://que ue",
            "http://queue:0",
            "http://queue:65536",
            "http://queue:+80",
            "http://queue:x",
            "http://[::1",
            "http://[queue]:80",
            "http://a..b",
            "http://a%2eb",
            "http://::1",
            "//queue:80",
            "http:queue",
        ];
        for text in refused {
            assert!(parse_redirect(text).is_err(), "{text:?}");
        }
        assert_eq!(parse_redirect("http://queue/").unwrap().port, 80);
        assert_eq!(parse_redirect("HTTPS://queue").unwrap().port, 443);
    }

    #[derive(serde::Deserialize)]
    struct Vector {
        text: String,
        configured: Option<String>,
        tls: Option<String>,
        redirect: Option<String>,
        is_loopback: bool,
    }

    #[derive(serde::Deserialize)]
    struct Vectors {
        vectors: Vec<Vector>,
    }

    /// Endpoints are read as all SDKs read them; a campaign names a larger set of texts.
    // Covers R15.
    #[test]
    fn endpoints_are_read_as_all_sdks_do() {
        let shared = concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/vectors/endpoints.json");
        let path = std::env::var("CRONOQ_ENDPOINT_VECTORS").unwrap_or_else(|_| shared.to_owned());
        let file: Vectors = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        assert!(file.vectors.len() > 100);
        let told = |read: Result<Endpoint>| read.ok().map(|endpoint| endpoint.to_string());
        for vector in file.vectors {
            let text = vector.text;
            assert_eq!(told(parse_redirect(&text)), vector.redirect, "redirect {text:?}");
            assert_eq!(told(parse_configured(&text, false)), vector.configured, "{text:?}");
            assert_eq!(told(parse_configured(&text, true)), vector.tls, "tls {text:?}");
            let is_loopback = parse_redirect(&text).is_ok_and(|found| found.is_loopback());
            assert_eq!(is_loopback, vector.is_loopback, "loopback {text:?}");
        }
    }

    /// Only what is written as loopback counts as loopback (RR-15).
    #[test]
    fn loopback_is_judged_by_how_it_is_written() {
        let is_loopback = |text| parse_redirect(text).unwrap().is_loopback();
        assert!(is_loopback("http://localhost:1") && is_loopback("http://127.9.9.9:1"));
        assert!(is_loopback("http://[::1]:1"));
        assert!(!is_loopback("http://localhost.example:1") && !is_loopback("http://128.0.0.1:1"));
    }
}
