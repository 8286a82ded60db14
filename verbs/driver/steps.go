package driver

import "time"

// RegSteps is what a registration did, and for how long. A step that the device
// does not have, or does not tell apart, is 0.
type RegSteps struct {
	Validate  time.Duration // arguments and limits
	Pin       time.Duration // pages faulted in, if they were not, and kept from moving
	Translate time.Duration // addresses put into the device's table
	Key       time.Duration // the key made and let in
	Pages     int64         // translated, those of head and tail included
	Pinned    int64         // bytes pinned
}

// StepTeller is an MR that tells what its registration did. It is for diagnosis:
// a device need not have it.
type StepTeller interface {
	RegSteps() RegSteps
}
