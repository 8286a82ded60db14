package driver

import "context"

// Device is an open RDMA device.
type Device interface {
	// Caps returns what the device has. It does not change while open.
	Caps() Caps
	AllocPD() (PD, error)
	CreateCompChannel() (CompChannel, error)
	// CreateCQ makes a CQ of at least depth entries. ch may be nil: the CQ is
	// then only polled. vector chooses the interrupt of the device, modulo
	// those it has.
	CreateCQ(depth int, ch CompChannel, vector int) (CQ, error)
	// Listen accepts connection requests on addr ("host:port", port 0 for any).
	Listen(ctx context.Context, addr string) (Listener, error)
	// NextEvent waits for an asynchronous event. One caller at a time. Events
	// are acknowledged before they are returned. After Close it returns
	// ErrClosed.
	NextEvent(ctx context.Context) (Event, error)
	Close() error
}

// PD is a protection domain.
type PD interface {
	// RegMR registers mem, which stays mapped and, if it is of the Go heap,
	// pinned by the caller until Deregister returned.
	RegMR(mem []byte, acc Access) (MR, error)
	// RegScoped makes a key for the bytes [off, off+n) of mr, with the remote
	// rights acc, that only the peer of qp can use. Its address space is that
	// of mr. It is deregistered before mr and qp are. With Caps.ScopedKeys.
	RegScoped(mr MR, off, n uint64, acc Access, qp QP) (MR, error)
	// AllocMW makes a type 2 memory window. With Caps.MW2.
	AllocMW() (MW, error)
	// CreateSRQ makes a shared receive queue. With Caps.SRQ.
	CreateSRQ(maxWR, maxSGE int) (SRQ, error)
	// CreateQP makes a reliable connected QP that takes receives at once
	// (state INIT) and is connected by Connect or ConnRequest.Accept.
	CreateQP(a QPAttr) (QP, error)
	Dealloc() error
}

// QPAttr is what a QP is made of. The provider may round the depths up.
type QPAttr struct {
	SendCQ, RecvCQ         CQ
	SRQ                    SRQ // nil: the QP has a receive queue of its own
	MaxSendWR, MaxRecvWR   int
	MaxSendSGE, MaxRecvSGE int
	MaxInline              int // bytes
}

// MR is a memory region.
type MR interface {
	Addr() uint64 // what an SGE or a peer uses for the first byte
	Length() uint64
	LKey() uint32
	RKey() uint32 // 0 without remote rights
	// Deregister gives the region up. On error the region is still live
	// unless the error is ErrDeviceLost.
	Deregister() error
}

// MW is a type 2 memory window. It is bound by OpBindMW and unbound by
// OpLocalInvalidate or the peer's SEND_WITH_INV.
type MW interface {
	RKey() uint32 // the key of the last bind, or the initial one
	Dealloc() error
}

// CQ is a completion queue.
type CQ interface {
	// Poll moves up to len(wcs) completions into wcs and returns how many.
	// It does not block.
	Poll(wcs []WC) (int, error)
	// ReqNotify asks for one event on the channel when the next completion
	// (or solicited or failed one) is added. Completions added before it are
	// not announced: poll once more after it.
	ReqNotify(solicitedOnly bool) error
	Destroy() error
}

// ArmPoller is what a CQ may be too, whose calls are dear: what a consumer does
// before it waits is one call.
type ArmPoller interface {
	// PollArm is Poll and, when that has found none, ReqNotify(false) and Poll
	// again. It reports whether the CQ was armed; completions that came with an
	// error hold.
	PollArm(wcs []WC) (n int, armed bool, err error)
}

// CompChannel announces completions of the CQs created on it.
type CompChannel interface {
	// Wait blocks until a CQ that was armed has an event and returns that CQ;
	// or until Wake, and returns nil, nil. One caller at a time. Close ends it
	// with ErrClosed.
	Wait(ctx context.Context) (CQ, error)
	// Wake ends the current Wait, or the next one when none is waiting.
	Wake()
	Close() error
}

// Upcaller is what a CompChannel may be too, whose device completes work in
// goroutines of its own: it lets the consumer handle completions right there,
// without a hand-off to the goroutine that waits.
type Upcaller interface {
	// SetUpcall has f called, instead of ending Wait, when a CQ that was armed
	// has an event; where f returns false, or the device has no goroutine to
	// lend just then, the event goes to Wait. It is called before CQs are made
	// on the channel. f runs without any lock of the driver, for several CQs
	// and queue pairs at the same time. While it runs its queue pair receives
	// nothing, so it must neither block nor destroy queue pairs. false: the
	// channel can not do it, and f is never called.
	SetUpcall(f func(CQ) bool) bool
}

// Features are what one connection can do, after the two ends agreed.
type Features struct {
	Atomics, Imm, SendInv bool
}

// QP is a reliable connected queue pair.
type QP interface {
	QPN() uint32
	PostSend(wrs []SendWR) (int, error)
	PostRecv(wrs []RecvWR) (int, error)
	// Connect asks the listener at addr for a connection and returns the
	// peer's answer. On error the QP is in ERR. Private data of a refusal is in
	// the *RejectError.
	Connect(ctx context.Context, addr string, p ConnParam) (ConnParam, error)
	// LocalAddr and RemoteAddr are "host:port" once connected.
	LocalAddr() string
	RemoteAddr() string
	// Features hold once connected.
	Features() Features
	// SetState moves the QP to QPStateErr (from any state); others return
	// ErrNotSupported.
	SetState(s QPState) error
	State() (QPState, error)
	// Disconnect ends the connection gracefully: what was posted before is
	// sent (on ibverbs, where nobody waits for the send queue: what has
	// completed), then the peer is told. It does not block. EventDisconnected
	// follows when the connection is gone on both sides; receives that the
	// peer still sends into complete until then.
	Disconnect() error
	// Destroy ends all access of the device on behalf of the QP, at once,
	// gracefully or not. Its completions not yet polled are purged or, on some
	// devices, remain in the CQ. Those of entries of an SRQ had better remain:
	// only they say which entries it had taken. It may block for long.
	Destroy() error
}

// Explainer is what a QP may be too, whose device knows why the QP is in ERR by
// the time that anybody can see that it is.
type Explainer interface {
	// Cause is the event that the QP raised when it went to ERR:
	// EventQPFatal, EventQPReqErr or EventQPAccessErr. It is known before any
	// completion is flushed and before a post is refused for the state, however
	// late the event itself is read. false: the QP is not in ERR, or nothing but
	// its owner or the end of the connection has put it there. It does not block,
	// and may be called at any time, after Destroy too.
	Cause() (EventType, bool)
	// LocalCause reports whether that is this end's own doing: a request or a
	// receive that is wrong, or memory of what is sent, of a receive or of a READ
	// that went away under a message. Otherwise, if there is a cause, the peer
	// has broken a rule, or has ended the connection because it says that we have
	// (a Terminate of iWARP), which EventQPFatal alone does not tell apart. A
	// WRITE of the peer into memory that has just been withdrawn counts as the
	// peer's. It is called as Cause is.
	LocalCause() bool
}

// SRQ is a shared receive queue.
type SRQ interface {
	PostRecv(wrs []RecvWR) (int, error)
	// SetLimit arms one EventSRQLimitReached for when fewer than n entries are
	// left. With Caps.SRQLimit.
	SetLimit(n int) error
	Destroy() error
}

// Listener hands out connection requests.
type Listener interface {
	// Accept waits for the next request. Close ends it with ErrClosed.
	Accept(ctx context.Context) (ConnRequest, error)
	Addr() string // "host:port", with the port that was bound
	// Close stops listening and refuses the requests not yet accepted.
	Close() error
}

// ConnRequest is a peer that asks for a connection. It is ended by exactly one
// call of Accept or Reject.
type ConnRequest interface {
	// Param is what the peer sent: private data, and its IRD and ORD as ours
	// have to be at least and at most.
	Param() ConnParam
	RemoteAddr() string
	LocalAddr() string
	// Accept connects qp, which was made for it. On error qp is in ERR.
	Accept(ctx context.Context, qp QP, p ConnParam) error
	Reject(private []byte) error
}
