// Package verbstest holds devices to the contract of packages verbs and
// verbs/driver: a conformance suite that runs on any provider, a driver that
// injects faults into another one, and a TestMain that checks for leaks.
//
//	func TestConformance(t *testing.T) {
//		verbstest.Run(t, verbstest.Config{
//			Open: func(tb testing.TB) *verbs.Device { ... },
//		})
//	}
//
// Devices differ, and their capabilities say how; the suite takes its
// expectations from them and from nothing else. What a device lacks is skipped
// with the reason, and Config.Skips lists the skips of a device, so that one
// that is lost, or gained, shows.
//
// # Goroutines
//
// Every subtest runs alone, under a deadline, with devices of its own; what it
// starts ends with it. A subtest that is stuck in a call without a context ends
// the process with all stacks.
package verbstest
