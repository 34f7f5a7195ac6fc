package cronoq

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/BurntSushi/toml"
	"google.golang.org/grpc/codes"
)

func secs(duration time.Duration) float64 { return duration.Seconds() }

// TestDefaults_AreThoseOfAllSDKs compares the constants with conformance/defaults.toml, in both
// directions.
func TestDefaults_AreThoseOfAllSDKs(t *testing.T) {
	var shared map[string]map[string]any
	if _, err := toml.DecodeFile("../conformance/defaults.toml", &shared); err != nil {
		t.Fatal(err)
	}
	worker, connection, err := WorkerOptions{}.filled()
	if err != nil {
		t.Fatal(err)
	}
	client, _, err := ClientOptions{}.filled()
	if err != nil {
		t.Fatal(err)
	}
	var fatal []any
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		if isFatal(code) {
			fatal = append(fatal, codeName(code))
		}
	}
	own := map[string]map[string]any{
		"worker": {
			"backoff_initial":        secs(connection.backoff.Initial),
			"backoff_max":            secs(connection.backoff.Maximum),
			"connect_timeout":        secs(connection.connectTimeout),
			"drain_timeout":          secs(worker.DrainTimeout),
			"insecure_redirect_http": worker.InsecureRedirectHTTP,
			"keepalive_interval":     secs(connection.keepalive.Interval),
			"keepalive_interval_min": secs(keepaliveMin),
			"keepalive_timeout":      secs(connection.keepalive.Timeout),
			"session_reset":          secs(worker.SessionReset),
			"slots":                  int64(worker.Slots),
		},
		"reconnect": {
			"fatal_codes": fatal, "redirects_max": int64(redirectsMax),
			"tries_max": int64(triesMax), "tries_window_backoffs": int64(triesWindowBackoffs),
		},
		"session": {
			"beats_per_ttl": int64(beatsPerTTL), "lease_ttl_default": secs(leaseTTLDefault),
			"message_room_bytes": int64(messageRoom), "progress_bytes_max": int64(progressBytesMax),
			"progress_interval": secs(progressInterval), "protocol_version": int64(protocolVersion),
			"receipts_since": int64(receiptsSince), "reports_per_message_max": int64(reportsPerMessage),
		},
		"client": {
			"backoff_initial":     secs(connection.backoff.Initial),
			"backoff_max":         secs(connection.backoff.Maximum),
			"connect_timeout":     secs(connection.connectTimeout),
			"deadline":            secs(client.Deadline),
			"keepalive_interval":  secs(connection.keepalive.Interval),
			"keepalive_timeout":   secs(connection.keepalive.Timeout),
			"max_message_bytes":   int64(client.MaxMessageBytes),
			"max_tasks_per_batch": int64(client.MaxTasksPerBatch), "max_wait": secs(client.MaxWait),
			"submits_in_flight": int64(submitsInFlight),
		},
	}
	for section := range own {
		names := slices.Sorted(maps.Keys(own[section]))
		if expected := slices.Sorted(maps.Keys(shared[section])); !slices.Equal(expected, names) {
			t.Errorf("%s: expected %v, got %v", section, expected, names)
		}
	}
	for section, constants := range shared {
		for name, expected := range constants {
			got := own[section][name]
			if list, isList := expected.([]any); isList {
				slices.SortFunc(fatal, func(a, b any) int { return compareText(a, b) })
				if !slices.Equal(list, fatal) {
					t.Errorf("%s.%s: expected %v, got %v", section, name, expected, fatal)
				}
			} else if expected != got {
				t.Errorf("%s.%s: expected %v, got %v", section, name, expected, got)
			}
		}
	}
}

func compareText(a, b any) int {
	if a.(string) < b.(string) {
		return -1
	}
	return 1
}

// TestOptions_RefuseWhatIsOutOfRange makes clients and workers that cannot be.
// Covers R13.
func TestOptions_RefuseWhatIsOutOfRange(t *testing.T) {
	for name, options := range map[string]WorkerOptions{
		"slots":     {Slots: -1},
		"keepalive": {Keepalive: Keepalive{Interval: time.Second}},
		"backoff":   {Backoff: Backoff{Initial: time.Second, Maximum: time.Millisecond}},
		"tls":       {TLS: &TLSOptions{Cert: "cert.pem"}},
		"http":      {Endpoint: "http://a:1", TLS: &TLSOptions{}},
		"endpoint":  {Endpoint: "ftp://a:1"},
		"drain":     {DrainTimeout: -time.Second},
	} {
		if _, err := NewWorker(options); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	for name, options := range map[string]ClientOptions{
		"deadline": {Deadline: -1}, "message": {MaxMessageBytes: 1}, "batch": {MaxTasksPerBatch: -1},
		"wait": {MaxWait: time.Duration(math.MinInt64)},
	} {
		if _, err := NewClient(options); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

// TestOptions_HideTheirToken: neither printing nor JSON shows it.
func TestOptions_HideTheirToken(t *testing.T) {
	client := ClientOptions{Endpoint: "here", Token: "s3cret"}
	worker := WorkerOptions{Endpoint: "here", Token: "s3cret"}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		for _, options := range []any{client, &client, worker, &worker} {
			text := fmt.Sprintf(verb, options)
			if strings.Contains(text, "s3cret") || !strings.Contains(text, "here") {
				t.Errorf("%s of %T is %s", verb, options, text)
			}
		}
	}
	madeClient, err := NewClient(client)
	if err != nil {
		t.Fatal(err)
	}
	defer madeClient.Close()
	madeWorker, err := NewWorker(worker)
	if err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		for _, made := range []any{madeClient, madeWorker} {
			if text := fmt.Sprintf(verb, made); strings.Contains(text, "s3cret") {
				t.Errorf("%s of %T is %s", verb, made, text)
			}
		}
	}
	for _, options := range []any{client, worker} {
		raw, err := json.Marshal(options)
		if err != nil || strings.Contains(string(raw), "s3cret") {
			t.Errorf("JSON of %T is %s, %v", options, raw, err)
		}
	}
}
