package cronoq

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
)

// vectorFile is conformance/vectors/reconnect.json.
type vectorFile struct {
	Defaults json.RawMessage
	Vectors  []struct {
		Name   string
		Rules  []string
		Config json.RawMessage
		Chance []float64
		Steps  []struct {
			AtMs   float64 `json:"at_ms"`
			Event  vectorEvent
			Expect vectorDecision
		}
	}
}

type vectorConfig struct {
	Endpoint             string
	TLS                  bool
	HasToken             bool    `json:"has_token"`
	InsecureRedirectHTTP bool    `json:"insecure_redirect_http"`
	BackoffInitialMs     float64 `json:"backoff_initial_ms"`
	BackoffMaxMs         float64 `json:"backoff_max_ms"`
	SessionResetMs       float64 `json:"session_reset_ms"`
}

type vectorEvent struct {
	Type      string
	Endpoint  string
	Code      string
	NotLeader bool `json:"not_leader"`
}

type vectorDecision struct {
	Type         string
	Endpoint     string
	MaySendToken bool    `json:"may_send_token"`
	UntilMs      float64 `json:"until_ms"`
	Refused      bool
	Code         string
}

func inMs(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

func codeOf(t *testing.T, name string) codes.Code {
	t.Helper()
	var code codes.Code
	if err := code.UnmarshalJSON([]byte(`"` + name + `"`)); err != nil {
		t.Fatal(err)
	}
	return code
}

func (e vectorEvent) event(t *testing.T) event {
	t.Helper()
	switch e.Type {
	case "started":
		return started{}
	case "registered":
		return registered{}
	case "elapsed":
		return elapsed{}
	case "redirected":
		return redirected{e.Endpoint}
	case "ended":
		return ended{code: codeOf(t, e.Code), notLeader: e.NotLeader}
	}
	t.Fatalf("unknown event %q", e.Type)
	return nil
}

func asVector(t *testing.T, got decision) vectorDecision {
	t.Helper()
	switch got := got.(type) {
	case connect:
		return vectorDecision{
			Type: "connect", Endpoint: got.endpoint.String(), MaySendToken: got.maySendToken,
			Refused: got.refused != "",
		}
	case wait:
		return vectorDecision{
			Type: "wait", UntilMs: float64(got.until) / float64(time.Millisecond),
			Refused: got.refused != "",
		}
	case giveUp:
		return vectorDecision{Type: "give_up", Code: codeName(got.code)}
	case stay:
		return vectorDecision{Type: "stay"}
	}
	t.Fatalf("unknown decision %T", got)
	return vectorDecision{}
}

// codeName is the code as the wire's documents write it.
func codeName(code codes.Code) string {
	var name strings.Builder
	for index, letter := range code.String() {
		if index > 0 && letter >= 'A' && letter <= 'Z' {
			name.WriteByte('_')
		}
		name.WriteRune(letter)
	}
	return strings.ToUpper(name.String())
}

// TestReconnect_DecidesAsTheVectorsSay feeds the shared event lists to the policy.
func TestReconnect_DecidesAsTheVectorsSay(t *testing.T) {
	raw, err := os.ReadFile("../conformance/vectors/reconnect.json")
	if err != nil {
		t.Fatal(err)
	}
	var file vectorFile
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Vectors) == 0 {
		t.Fatal("no vectors")
	}
	for _, vector := range file.Vectors {
		t.Run(vector.Name, func(t *testing.T) {
			var config vectorConfig
			for _, layer := range []json.RawMessage{file.Defaults, vector.Config} {
				if err := json.Unmarshal(layer, &config); err != nil {
					t.Fatal(err)
				}
			}
			at, err := parseConfigured(config.Endpoint, config.TLS)
			if err != nil {
				t.Fatal(err)
			}
			chances := vector.Chance
			policy := newReconnectPolicy(reconnectSettings{
				endpoint: at, hasToken: config.HasToken,
				insecureRedirectHTTP: config.InsecureRedirectHTTP,
				backoffInitial:       inMs(config.BackoffInitialMs), backoffMax: inMs(config.BackoffMaxMs),
				sessionReset: inMs(config.SessionResetMs),
			}, func() float64 {
				next := chances[0] // Asking too often fails here.
				chances = chances[1:]
				return next
			})
			for number, step := range vector.Steps {
				got := asVector(t, policy.decide(step.Event.event(t), inMs(step.AtMs)))
				if math.Abs(got.UntilMs-step.Expect.UntilMs) <= 0.001 {
					got.UntilMs = step.Expect.UntilMs
				}
				if got != step.Expect {
					t.Fatalf("step %d %v: expected %+v, got %+v", number, vector.Rules, step.Expect, got)
				}
			}
		})
	}
}

// TestReconnect_RefusedEndpointsNameTheirFault reads endpoints that cannot be used.
func TestReconnect_RefusedEndpointsNameTheirFault(t *testing.T) {
	for _, text := range []string{"", "ftp://a:1", "http://u@a:1", "http://a:1/p", "http://a:70000"} {
		if _, err := parseRedirect(text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
	if _, err := parseConfigured("http://a", true); err == nil {
		t.Error("http was taken together with TLS settings")
	}
	got, err := parseConfigured("a.internal", true)
	if err != nil || fmt.Sprint(got) != "https://a.internal:7070" {
		t.Errorf("got %v, %v", got, err)
	}
}
