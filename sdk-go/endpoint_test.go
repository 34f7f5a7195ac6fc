package cronoq

import (
	"encoding/json"
	"os"
	"testing"
)

// endpointVector is one text of conformance/vectors/endpoints.json.
type endpointVector struct {
	Text       string  `json:"text"`
	Configured *string `json:"configured"`
	TLS        *string `json:"tls"`
	Redirect   *string `json:"redirect"`
	IsLoopback bool    `json:"is_loopback"`
}

// TestEndpoint_ReadsAsAllSDKsDo reads the shared texts; a campaign names a larger set of them.
// Covers R15.
func TestEndpoint_ReadsAsAllSDKsDo(t *testing.T) {
	path := os.Getenv("CRONOQ_ENDPOINT_VECTORS")
	if path == "" {
		path = "../conformance/vectors/endpoints.json"
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Vectors []endpointVector `json:"vectors"`
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Vectors) < 100 {
		t.Fatalf("only %d vectors", len(file.Vectors))
	}
	for _, vector := range file.Vectors {
		redirect, err := parseRedirect(vector.Text)
		expectEndpoint(t, "redirect", vector.Text, vector.Redirect, redirect, err)
		if err == nil && redirect.isLoopback() != vector.IsLoopback {
			t.Errorf("%q: loopback is %v", vector.Text, redirect.isLoopback())
		}
		configured, err := parseConfigured(vector.Text, false)
		expectEndpoint(t, "configured", vector.Text, vector.Configured, configured, err)
		secured, err := parseConfigured(vector.Text, true)
		expectEndpoint(t, "tls", vector.Text, vector.TLS, secured, err)
	}
}

func expectEndpoint(t *testing.T, way, text string, expected *string, got endpoint, err error) {
	t.Helper()
	switch {
	case expected == nil && err == nil:
		t.Errorf("%s %q: is read as %s and should be refused", way, text, got)
	case expected != nil && err != nil:
		t.Errorf("%s %q: %v, expected %s", way, text, err, *expected)
	case expected != nil && got.String() != *expected:
		t.Errorf("%s %q: is read as %s, expected %s", way, text, got, *expected)
	}
}
