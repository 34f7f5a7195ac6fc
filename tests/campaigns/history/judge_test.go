package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// broken returns the names of what a verdict holds against a history.
func broken(found verdict) string {
	var names []string
	for name, count := range map[string]int{
		"lost": len(found.Lost), "forgotten": len(found.Forgotten), "stale": len(found.Stale),
		"ids": len(found.Ids), "inexplicable": len(found.Inexplicable),
	} {
		if count > 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, " ")
}

// Every history in testdata begins with a line that says what a judge has to find in it; one that
// says "nothing" is explained.
func TestHistoriesAreJudgedAsTheySay(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.ndjson")
	if err != nil || len(paths) < 20 {
		t.Fatalf("%d histories: %v", len(paths), err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			first, _, _ := strings.Cut(string(text), "\n")
			wanted, ok := strings.CutPrefix(first, "# finds ")
			if !ok {
				t.Fatalf("it does not say what is to be found: %q", first)
			}
			wanted, _, _ = strings.Cut(wanted, ":")
			operations, err := readFile(path)
			if err != nil {
				t.Fatal(err)
			}
			found := judge(operations, time.Minute)
			got := broken(found)
			if wanted == "nothing" {
				wanted = ""
			}
			for _, name := range strings.Fields(wanted) {
				if !strings.Contains(got, name) {
					t.Errorf("found %q, not %q", got, name)
				}
			}
			if (wanted == "") != found.holds() {
				t.Errorf("found %q: %+v", got, found.Inexplicable)
			}
		})
	}
}

func TestWhatIsNoHistoryIsRefusedWithItsLine(t *testing.T) {
	for text, wanted := range map[string]string{
		`{"op":"submit"`:                                   "line 1",
		`{"op":"guess","key":"a","call":1}`:                `op "guess"`,
		`{"op":"get","call":1}`:                            `key ""`,
		`{"op":"get","key":"a","call":2,"return":1}`:       "returned before",
		`{"op":"get","key":"a","call":1,"state":"ready"}`:  "state",
		`{"op":"start","key":"a","call":1,"attempt":61}`:   "above 60",
		`{"op":"receipt","key":"a","call":1,"attempt":-1}`: "from 1",
	} {
		if _, err := readOperations(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), wanted) {
			t.Errorf("%s: %v, not %q", text, err, wanted)
		}
	}
}
