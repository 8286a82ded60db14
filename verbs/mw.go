package verbs

// MW is a type 2 memory window.
type MW struct{}

// RKey is the key of the last bind that was posted, 0 before the first.
func (w *MW) RKey() uint32 { return 0 }

// PD returns the protection domain.
func (w *MW) PD() *PD { return nil }

// Bound reports whether the window is bound or being bound.
func (w *MW) Bound() bool { return false }

// Close gives the window up and with it the access it gave. It is refused with
// *BusyError while a bind or invalidation of it is outstanding.
func (w *MW) Close() error { return ErrNotSupported }
