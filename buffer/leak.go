package buffer

import "time"

// LeakError is what Close returns when not everything came back.
type LeakError struct {
	Holders     []Holder // buffers, or references with Config.Trace, that are still held
	Regions     []error  // regions that could not be deregistered, and why
	Quarantined int64    // bytes that stay mapped
}

// Error names every holder and region, up to some number.
func (e *LeakError) Error() string { return "leak" }

// Unwrap returns Regions.
func (e *LeakError) Unwrap() []error { return e.Regions }

// Holder describes a buffer that somebody holds.
type Holder struct {
	Owner  string
	Age    time.Duration // since Get (with Trace: since the reference was taken), to about a second
	LKey   uint32        // on the PD attached first; 0 when none is
	Addr   uint64        // of the first byte of the slot
	Len    uint64        // of the slot, in bytes
	Refs   int           // references
	Posted int           // of them, by posted work
	Stack  string        // where the reference was taken, with Config.Trace
}

func (h Holder) String() string { return h.Owner }
