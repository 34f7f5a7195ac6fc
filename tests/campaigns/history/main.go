// Decides whether what clients and workers have seen can be explained by tasks that each live one
// life in one place: `history FILE...` reads operations, one JSON object a line, and prints a
// verdict as JSON. Exit code 0: explained, 1: broken, 2: a file that can't be read.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// patience bounds the search over all tasks of one history.
const patience = 5 * time.Minute

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: history FILE...")
		os.Exit(2)
	}
	var operations []operation
	for _, path := range os.Args[1:] {
		read, err := readFile(path)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		operations = append(operations, read...)
	}
	found := judge(operations, patience)
	text, err := json.MarshalIndent(found, "", "  ")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	fmt.Println(string(text))
	if !found.holds() {
		os.Exit(1)
	}
}
