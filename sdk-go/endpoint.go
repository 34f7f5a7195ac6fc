package cronoq

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
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
	// Of an IPv4 address within an IPv6 one the libraries of languages say different things.
	return err == nil && address.IsLoopback() && !address.Is4In6()
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

// parseEndpoint reads by hand: net/url mends what it finds and knows more forms than may be used
// here, where all SDKs must agree on a refusal.
func parseEndpoint(text string, ports map[string]int) (endpoint, error) {
	malformed := fmt.Errorf("endpoint %q is not of the form scheme://host:port", text)
	if strings.ContainsFunc(text, isOutOfPlace) {
		return endpoint{}, malformed
	}
	scheme, rest, hasScheme := strings.Cut(strings.ToLower(text), "://")
	port, isKnown := ports[scheme]
	if !hasScheme || !isKnown {
		return endpoint{}, fmt.Errorf("endpoint %q is neither http nor https", text)
	}
	if strings.Contains(rest, "@") {
		return endpoint{}, fmt.Errorf("endpoint carries user information")
	}
	host, digits, isPlace := splitPort(strings.TrimSuffix(rest, "/"))
	if !isPlace {
		return endpoint{}, malformed
	}
	if digits != "" {
		number, err := strconv.ParseUint(digits, 10, 16)
		if err != nil || number == 0 {
			return endpoint{}, malformed
		}
		port = int(number)
	}
	return endpoint{scheme, host, port}, nil
}

// splitPort splits host, host:port, [v6] and [v6]:port; the port may be empty.
func splitPort(authority string) (host, port string, isPlace bool) {
	if inner, isBracketed := strings.CutPrefix(authority, "["); isBracketed {
		address, rest, isClosed := strings.Cut(inner, "]")
		digits, hasPort := strings.CutPrefix(rest, ":")
		return address, digits, isClosed && (rest == "" || hasPort) && isIPv6(address)
	}
	host, port, _ = strings.Cut(authority, ":")
	return host, port, isName(host)
}

// isOutOfPlace is true for all but the visible letters of ASCII.
func isOutOfPlace(letter rune) bool { return letter <= ' ' || letter > '~' }

func isIPv6(host string) bool {
	address, err := netip.ParseAddr(host)
	return err == nil && address.Is6() && address.Zone() == ""
}

func isName(host string) bool {
	for label := range strings.SplitSeq(strings.TrimRight(host, "."), ".") {
		if label == "" || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	return true
}
