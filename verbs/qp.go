package verbs

import "context"

// QPConfig is what a queue pair is made of.
type QPConfig struct {
	SendCQ, RecvCQ *CQ  // RecvCQ nil: SendCQ
	SRQ            *SRQ // nil: the QP has a receive queue of its own

	MaxSendWR  int // outstanding send requests; default 128
	MaxRecvWR  int // outstanding receives; default 128; without meaning with an SRQ
	MaxSendSGE int // default 1
	MaxRecvSGE int // default 1
	MaxInline  int // bytes of SendInline data; default 0
	// OnEvent is called on the device's event goroutine and must not block.
	OnEvent func(Event)
}

// QPInfo is what QP.Query returns.
type QPInfo struct {
	QPN           uint32
	State         QPState // the device's
	SendPosted    int     // requests posted or not yet polled
	RecvPosted    int     // likewise, of the QP's own receive queue
	MaxSendWR     int
	MaxRecvWR     int
	MaxInline     int
	BoundWindows  int
	ScopedKeys    int
	EverConnected bool
}

// QP is a reliable connected queue pair.
type QP struct{}

// QPN is the queue pair's number.
func (q *QP) QPN() uint32 { return 0 }

// Device returns the device.
func (q *QP) Device() *Device { return nil }

// PD returns the protection domain.
func (q *QP) PD() *PD { return nil }

// LocalAddr and RemoteAddr are "host:port" once connected.
func (q *QP) LocalAddr() string { return "" }

// RemoteAddr is the peer's address, "host:port", once connected.
func (q *QP) RemoteAddr() string { return "" }

// Features are what the connection can do; they hold once connected.
func (q *QP) Features() Features { return Features{} }

// State is the QP's state as the core knows it, without asking the device: INIT,
// RTS once connected, ERR once that is known, RESET once closed.
func (q *QP) State() QPState { return 0 }

// PostSend posts send requests and returns how many were accepted; with less
// than all, the error says why the next one was not: ErrInvalid (what is wrong),
// ErrQueueFull (poll completions first), ErrQPState (not connected, or ERR is
// known), ErrNotSupported (Caps or Features lack it), ErrClosed (the QP, or the
// MR of an SGE). It borrows wrs and does not block.
func (q *QP) PostSend(wrs []SendWR) (int, error) { return 0, ErrNotSupported }

// PostRecv posts receives on the QP's own receive queue, as PostSend.
func (q *QP) PostRecv(wrs []RecvWR) (int, error) { return 0, ErrNotSupported }

// BindMW posts the binding of w to the bytes [off, off+n) of mr, which has
// AccessMWBind, with the remote rights acc. It completes with wrid. w.RKey is
// the new key from then on: a request posted later on this QP may carry it to
// the peer.
func (q *QP) BindMW(w *MW, mr *MR, off, n uint64, acc Access, wrid uint64) error {
	return ErrNotSupported
}

// Connect asks the listener at addr for a connection and returns the peer's
// answer, private data included. It blocks until then or until ctx ends. On
// error the QP is in ERR and can only be closed. A peer's refusal is a
// *RejectError.
func (q *QP) Connect(ctx context.Context, addr string, p ConnParam) (ConnParam, error) {
	return ConnParam{}, ErrNotSupported
}

// References counts the SGEs of requests of the QP, posted or not yet polled,
// that name m.
func (q *QP) References(m *MR) int { return 0 }

// Query returns the QP's attributes.
func (q *QP) Query() (QPInfo, error) { return QPInfo{}, ErrNotSupported }

// SetError puts the QP to ERR: everything outstanding completes with
// WR_FLUSH_ERR.
func (q *QP) SetError() error { return ErrNotSupported }

// Disconnect ends the connection gracefully: what was posted is sent, then the
// peer is told. It does not block; Disconnected says when it is over. New sends
// are refused with ErrQPState.
func (q *QP) Disconnect() error { return ErrNotSupported }

// Disconnected is closed once the connection is gone, whichever side ended it
// and however, and the QP has been put to ERR; or the QP is closed.
func (q *QP) Disconnected() <-chan struct{} { return nil }

// Drain waits until the ledger has no request of the QP outstanding, or ctx
// ends. It never polls: somebody else has to. Requests of an SRQ are not the
// QP's.
func (q *QP) Drain(ctx context.Context) error { return ErrNotSupported }

// Close destroys the queue pair at once, and with it all access of the device
// on its behalf. It returns the requests that will never complete, exactly
// once. With windows bound or scoped keys live it returns *BusyError and changes
// nothing. After *StuckError a further Close waits again and returns the
// orphans. Entries of an SRQ that the QP had taken come back as completions
// with WR_FLUSH_ERR where the device still delivers them, else from SRQ.Close.
func (q *QP) Close() (orphans []Orphan, err error) { return nil, ErrNotSupported }
