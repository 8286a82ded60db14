package verbs

import (
	"fmt"
	"time"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// RegSteps is what the device did in a registration.
type RegSteps = driver.RegSteps

// RegReport is what a registration did, step by step.
type RegReport struct {
	Device string
	Length uint64 // bytes
	// Check is what the core took to validate, Call the time in the driver.
	Check, Call time.Duration
	// Steps are those of the call, where the driver tells them apart (Told): a
	// kernel driver does all in one system call.
	Steps RegSteps
	Told  bool
	Err   error // what the registration failed with
}

// String is one line.
func (r RegReport) String() string {
	s := fmt.Sprintf("register %d bytes on %s: check %v, device %v", r.Length, r.Device, r.Check, r.Call)
	if r.Told {
		s += fmt.Sprintf(" (validate %v, fault in and pin %v, translate %v, key %v; %d pages, %d bytes pinned)",
			r.Steps.Validate, r.Steps.Pin, r.Steps.Translate, r.Steps.Key, r.Steps.Pages, r.Steps.Pinned)
	}
	if r.Err != nil {
		s += ": " + r.Err.Error()
	}
	return s
}

// RegMRReport is RegMR that says what it did, also when it failed.
func (pd *PD) RegMRReport(mem []byte, acc Access) (*MR, RegReport, error) {
	rep := RegReport{Device: pd.dev.caps.Name, Length: uint64(len(mem))}
	m, err := pd.regMR(mem, acc, &rep)
	rep.Err = err
	return m, rep, err
}
