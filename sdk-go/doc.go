// Package cronoq is the Go SDK of cronoq, a durable task queue.
//
// The package holds the wire contract so far, in internal/cronoqpb.
package cronoq
