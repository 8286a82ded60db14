//go:build linux

package main

import "testing"

// A selection that matches nothing is an error.
func TestNothingSelected(t *testing.T) {
	*only = "no such table"
	if err := run(); err == nil {
		t.Fatal("it has passed")
	}
}
