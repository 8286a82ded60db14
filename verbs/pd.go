package verbs

import "context"

// PD is a protection domain: memory and QPs work together only within one.
type PD struct{}

// Device returns the device.
func (pd *PD) Device() *Device { return nil }

// RegMR registers mem, 1 byte to Caps.MaxMRSize. It borrows mem until
// Deregister returned nil: the memory stays mapped, and pinned if it is of the
// Go heap and the device is not in this process. Remote write and remote atomic
// rights need AccessLocalWrite. It may take long for large memory.
func (pd *PD) RegMR(mem []byte, acc Access) (*MR, error) { return nil, ErrNotSupported }

// RegMRs registers all of mems, or none.
func (pd *PD) RegMRs(ctx context.Context, mems [][]byte, acc Access) ([]*MR, error) {
	return nil, ErrNotSupported
}

// AllocMW makes a type 2 memory window, with Caps.MW2.
func (pd *PD) AllocMW() (*MW, error) { return nil, ErrNotSupported }

// CreateQP makes a queue pair in state INIT: receives may be posted.
func (pd *PD) CreateQP(c QPConfig) (*QP, error) { return nil, ErrNotSupported }

// CreateSRQ makes a shared receive queue, with Caps.SRQ.
func (pd *PD) CreateSRQ(c SRQConfig) (*SRQ, error) { return nil, ErrNotSupported }

// Close gives the domain up. With live MRs, MWs, QPs or SRQs it returns
// *BusyError and changes nothing.
func (pd *PD) Close() error { return ErrNotSupported }
