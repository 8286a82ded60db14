package verbs

// SRQConfig is what a shared receive queue is made of.
type SRQConfig struct {
	MaxWR  int // entries; default 256
	MaxSGE int // SGEs of one request; default 1
	// OnEvent is called on the device's event goroutine and must not block.
	OnEvent func(Event)
}

// SRQ is a shared receive queue.
type SRQ struct{}

// PD returns the protection domain.
func (s *SRQ) PD() *PD { return nil }

// PostRecv posts receives and returns how many were accepted; with less than
// all, the error says why the next one was not. It borrows wrs and does not
// block.
func (s *SRQ) PostRecv(wrs []RecvWR) (int, error) { return 0, ErrNotSupported }

// SetLimit arms one EventSRQLimitReached for when fewer than n entries are left;
// with Caps.SRQLimit.
func (s *SRQ) SetLimit(n int) error { return ErrNotSupported }

// Posted is how many requests are posted or not yet polled.
func (s *SRQ) Posted() int { return 0 }

// References counts the SGEs of posted requests that name m.
func (s *SRQ) References(m *MR) int { return 0 }

// Close destroys the queue and returns its requests that never completed,
// exactly once. With live QPs on it it returns *BusyError and changes nothing.
func (s *SRQ) Close() (orphans []Orphan, err error) { return nil, ErrNotSupported }
