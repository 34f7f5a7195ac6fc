package cronoq

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"unicode"
)

// defaultPort is that of a configured endpoint which names none.
const defaultPort = 7070

// endpoint is where a server listens, and whether the way there is encrypted.
type endpoint struct {
	scheme string
	host   string
	port   int
}

// isEncrypted is true when the connection uses TLS.
func (e endpoint) isEncrypted() bool { return e.scheme == "https" }

// isLoopback is true when the host names this machine in a way that no resolver can change.
func (e endpoint) isLoopback() bool {
	if e.host == "localhost" {
		return true
	}
	address, err := netip.ParseAddr(e.host)
	return err == nil && address.IsLoopback()
}

// target is the form that a dialer takes: host:port, IPv6 in brackets.
func (e endpoint) target() string { return net.JoinHostPort(e.host, strconv.Itoa(e.port)) }

func (e endpoint) String() string { return e.scheme + "://" + e.target() }

// parseConfigured reads an endpoint that a user configured (RR-01).
func parseConfigured(text string, hasTLS bool) (endpoint, error) {
	if !strings.Contains(text, "://") {
		scheme := "http"
		if hasTLS {
			scheme = "https"
		}
		text = scheme + "://" + text
	}
	parsed, err := parseEndpoint(text, map[string]int{"http": defaultPort, "https": defaultPort})
	if err != nil {
		return endpoint{}, err
	}
	if hasTLS && !parsed.isEncrypted() {
		return endpoint{}, fmt.Errorf("endpoint %q is http, but TLS settings were given", text)
	}
	return parsed, nil
}

// parseRedirect reads an endpoint that a server named (RR-13).
func parseRedirect(text string) (endpoint, error) {
	return parseEndpoint(text, map[string]int{"http": 80, "https": 443})
}

func parseEndpoint(text string, ports map[string]int) (endpoint, error) {
	malformed := fmt.Errorf("endpoint %q is not of the form scheme://host:port", text)
	if text == "" || strings.ContainsFunc(text, isOutOfPlace) {
		return endpoint{}, malformed
	}
	parts, err := url.Parse(text)
	if err != nil {
		return endpoint{}, malformed
	}
	port, isKnown := ports[parts.Scheme]
	if !isKnown {
		return endpoint{}, fmt.Errorf("endpoint %q is neither http nor https", text)
	}
	if parts.User != nil {
		return endpoint{}, fmt.Errorf("endpoint carries user information")
	}
	hasMore := (parts.Path != "" && parts.Path != "/") || parts.RawQuery != "" || parts.ForceQuery ||
		parts.Fragment != ""
	host := strings.ToLower(parts.Hostname())
	if hasMore || parts.Opaque != "" || !isHost(host) {
		return endpoint{}, malformed
	}
	if digits := parts.Port(); digits != "" {
		port, err = strconv.Atoi(digits)
		if err != nil || port < 1 || port > 65535 {
			return endpoint{}, malformed
		}
	}
	return endpoint{parts.Scheme, host, port}, nil
}

func isOutOfPlace(letter rune) bool { return unicode.IsSpace(letter) || !unicode.IsPrint(letter) }

func isHost(host string) bool {
	if strings.Contains(host, ":") {
		address, err := netip.ParseAddr(host)
		return err == nil && address.Is6()
	}
	for label := range strings.SplitSeq(strings.TrimRight(host, "."), ".") {
		if label == "" || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	return true
}
