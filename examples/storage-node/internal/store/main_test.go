package store

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain turns the test binary into one of the subprocesses that the crash and full-disk tests start, or runs the
// tests and looks for goroutines that were left.
func TestMain(m *testing.M) {
	if role := os.Getenv("STORE_TEST_ROLE"); role != "" {
		os.Exit(runRole(role, os.Getenv("STORE_TEST_DIR")))
	}
	goleak.VerifyTestMain(m)
}
