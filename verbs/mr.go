package verbs

import "context"

// MR is a memory region, or a scoped key of one.
type MR struct{}

// Addr is the address of the first byte, as peers use it.
func (m *MR) Addr() uint64 { return 0 }

// Length is in bytes.
func (m *MR) Length() uint64 { return 0 }

// LKey is the local key.
func (m *MR) LKey() uint32 { return 0 }

// RKey is the remote key, 0 without remote rights.
func (m *MR) RKey() uint32 { return 0 }

// Access is the set of rights.
func (m *MR) Access() Access { return 0 }

// PD returns the protection domain.
func (m *MR) PD() *PD { return nil }

// InFlight counts the SGEs of requests, posted or not yet polled, that name the
// region, over all queues.
func (m *MR) InFlight() int { return 0 }

// Scope makes a key for the bytes [off, off+n) of the region, with the remote
// rights acc, that only the peer of qp can use; with Caps.ScopedKeys. It is a
// child of m and of qp, has m's address space, and is ended by Deregister: no
// byte lands through it afterwards. It can not be named in an SGE. A scoped key
// that the peer's SEND_WITH_INV invalidated is still to be deregistered.
func (m *MR) Scope(qp *QP, off, n uint64, acc Access) (*MR, error) { return nil, ErrNotSupported }

// Deregister gives the region up. While requests, windows or scoped keys use
// it, it returns *BusyError and changes nothing; and also for memory with remote
// rights where the device's deregistration is no barrier (Caps.DeregBarrier),
// as long as a QP of the PD that was ever connected lives. On any error the
// region is still live, unless the error matches ErrDeviceLost or is a
// *StuckError; see Live.
func (m *MR) Deregister() error { return ErrNotSupported }

// DeregisterWait refuses new posts that name the region, waits until none is
// left, and deregisters. On error posts are allowed again.
func (m *MR) DeregisterWait(ctx context.Context) error { return ErrNotSupported }

// Revoke withdraws remote access (closes the region's scoped keys and windows),
// waits until no request names it, and deregisters. With killQPs, QPs that still
// use the region when ctx ends are put to ERR, which flushes their requests, and
// the completions are waited for for a moment longer.
func (m *MR) Revoke(ctx context.Context, killQPs bool) error { return ErrNotSupported }

// Live reports whether the device may still access the region: it is false only
// once a Deregister has succeeded or the device is lost.
func (m *MR) Live() bool { return false }
