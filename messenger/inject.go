package messenger

import (
	"encoding/hex"
	"errors"
	"log/slog"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
)

// Inject makes things go wrong, for tests of what uses a messenger, and of the
// messenger itself (Ceph: ms_inject_* and its kind). The zero value of a field
// injects nothing. The functions are called on the goroutines that read and
// send, the pollers of RDMA too: there they must not block, but for what Step
// says.
type Inject struct {
	// Seed of what is random, so that a run can be repeated; 0 is a seed too.
	Seed uint64
	// SocketFailures ends a transport with one in so many frames, sent or
	// received, of the handshake too (Ceph: ms_inject_socket_failures).
	SocketFailures int
	// ByteFailures ends a transport, between two messages, after so many bytes of
	// messages that we have sent on it, on average: drawn exponentially, so that
	// each byte is as likely as any other to be the last.
	ByteFailures int64
	// InternalDelays pauses for up to InternalDelayMax, with this probability,
	// where goroutines race: before each frame of a handshake is handled, so before
	// a session is taken over or opened, and before a queued frame is sent, which on
	// RDMA all are then (Ceph: ms_inject_internal_delays).
	InternalDelays   float64
	InternalDelayMax time.Duration
	// DeliveryDelays holds received messages of peers of DelayType (0: all) back
	// for up to DeliveryDelayMax, with this probability, and what comes behind them,
	// so that the order stays: also those that FastDispatch or a Call gets. They have
	// been acknowledged, and occupy no worker (Ceph: ms_inject_delay_type,
	// _probability, _max).
	DeliveryDelays   float64
	DeliveryDelayMax time.Duration
	DelayType        EntityType
	// Congestion has one in so many frames find the transport full at first
	// (Ceph: ms_inject_network_congestion).
	Congestion int
	// Blackhole drops every message that peers of the types send us, after it has
	// been received: the peer takes it for delivered (Ceph: ms_blackhole_osd and so
	// on).
	Blackhole func(EntityType) bool
	// Unexpected is told of what should not happen between peers that work
	// (Ceph: ms_die_on_*): "old message", "skipped message", "bad frame",
	// "unhandled message".
	Unexpected func(what string, c *Connection)
	// Step is called at each step of each handshake, and with each message. An
	// error ends the transport. A step may be held up by not returning: each one on
	// streams; on RDMA those of frames of the handshake that have been received,
	// whose Step has a goroutine of its own.
	Step func(Step) error
	// DumpOnSend logs the head of every frame that is sent on an open session, as
	// hexadecimal digits and before it is sealed, at Info: at most its first 96
	// bytes. The payload is not shown; front and middle may be. Frames of the
	// handshake, some of which are secret, are left out (Ceph: ms_dump_on_send).
	DumpOnSend bool
}

// Step is a point in the life of a transport: a frame of the handshake by its
// name in the protocol ("BANNER", "HELLO", "SESSION_RECONNECT" ...), about to be
// handled or sent; "READY", the handshake has ended and the session is to be
// opened; "MESSAGE", received and about to be numbered.
type Step struct {
	Frame    string
	Sending  bool
	Incoming bool       // the transport was opened by the peer
	Peer     EntityType // 0 while it is not known
	Remote   string     // the peer's address as dialed or accepted
}

// errInjected is the fault of a transport that was injected.
var errInjected = errors.New("messenger: injected failure")

// injector is Inject at work; nil injects nothing.
type injector struct {
	Inject
	sends atomic.Uint64

	mu  sync.Mutex
	rnd *rand.Rand
}

func newInjector(i *Inject) *injector {
	if i == nil {
		return nil
	}
	return &injector{Inject: *i, rnd: rand.New(rand.NewPCG(i.Seed, 1))}
}

// chance is true with probability p.
func (i *injector) chance(p float64) bool {
	if p <= 0 {
		return false
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.rnd.Float64() < p
}

func (i *injector) upTo(d time.Duration) time.Duration {
	i.mu.Lock()
	defer i.mu.Unlock()
	return time.Duration(i.rnd.Int64N(int64(d) + 1))
}

// failure is an error for one in Inject.SocketFailures frames.
func (i *injector) failure() error {
	if i == nil || i.SocketFailures <= 0 || !i.chance(1/float64(i.SocketFailures)) {
		return nil
	}
	return errInjected
}

// failureOf is failure for n bytes that are to be sent.
func (i *injector) failureOf(n int64) error {
	if i != nil && i.ByteFailures > 0 && i.chance(-math.Expm1(-float64(n)/float64(i.ByteFailures))) {
		return errInjected
	}
	return i.failure()
}

// beforeSend is what happens to the goroutine that sends a queue, and is at a
// frame of n bytes.
func (i *injector) beforeSend(n int64) error {
	if i == nil {
		return nil
	}
	if i.congested() {
		time.Sleep(time.Millisecond)
	}
	i.pause()
	return i.failureOf(n)
}

// pause is one of Inject.InternalDelays.
func (i *injector) pause() {
	if d := i.pausing(); d > 0 {
		time.Sleep(d)
	}
}

// pausing is how long one of Inject.InternalDelays is.
func (i *injector) pausing() time.Duration {
	if i == nil || !i.chance(i.InternalDelays) {
		return 0
	}
	return i.upTo(i.InternalDelayMax)
}

// queues reports whether a frame shall not be sent by who has made it, but by the
// goroutine that sends the queue, which holds no lock.
func (i *injector) queues() bool { return i.congested() || i.InternalDelays > 0 || i.DumpOnSend }

// congested reports whether a frame shall find the transport full.
func (i *injector) congested() bool {
	return i != nil && i.Congestion > 0 && i.sends.Add(1)%uint64(i.Congestion) == 0
}

// delay is how long a message is held back.
func (i *injector) delay() time.Duration {
	if !i.chance(i.DeliveryDelays) {
		return 0
	}
	return i.upTo(i.DeliveryDelayMax)
}

func (i *injector) blackholed(t EntityType) bool {
	return i != nil && i.Blackhole != nil && i.Blackhole(t)
}

func (i *injector) unexpected(what string, c *Connection) {
	if i != nil && i.Unexpected != nil {
		i.Unexpected(what, c)
	}
}

// stepper is Inject.Step for the handshake of l, nil for none.
func (l *link) stepper() func(frame string, sending bool) error {
	if i := l.m.inject; i == nil || (i.Step == nil && i.SocketFailures <= 0) {
		return nil
	}
	return l.step
}

func (l *link) step(frame string, sending bool) error {
	if err := l.m.inject.failure(); err != nil {
		return err
	}
	if !sending && l.rdma.paced != nil && l.rdma.paced.frame == frame {
		return l.rdma.paced.err // it has been called
	}
	return l.callStep(frame, sending)
}

func (l *link) callStep(frame string, sending bool) error {
	i := l.m.inject
	if i == nil || i.Step == nil {
		return nil
	}
	return i.Step(l.stepOf(frame, sending))
}

func (l *link) stepOf(frame string, sending bool) Step {
	s := Step{Frame: frame, Sending: sending, Incoming: l.incoming, Remote: l.remote}
	if c := l.owner.Load(); c != nil {
		s.Peer = c.peerType
	} else if l.hs != nil {
		s.Peer = l.hs.peerType
	}
	return s
}

// dumped is how many bytes Inject.DumpOnSend shows.
const dumped = 96

// dump is Inject.DumpOnSend for a frame.
func (i *injector) dump(l *link, head []byte) {
	if i != nil && i.DumpOnSend {
		l.note(slog.LevelInfo, "frame sent", "bytes", len(head), "head", hex.EncodeToString(head[:min(len(head), dumped)]))
	}
}

// stepBanner is the name of the banner, which is no frame.
const stepBanner = "BANNER"

// stepped calls the handshake's step for what is about to be sent.
func (h *handshake) stepped(name string) {
	if h.p.step != nil && h.stepErr == nil {
		h.stepErr = h.p.step(name, true)
	}
}

// arrived calls it for what is about to be handled.
func (h *handshake) arrived(tag msgr2.Tag) error {
	if h.p.step == nil {
		return nil
	}
	return h.p.step(tag.String(), false)
}
