package messenger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
)

// outFrame is a frame on its way out. head is everything but the data; the data
// belongs between head[:split] and the rest.
type outFrame struct {
	head  []byte
	split int
	data  *buffer.List // nil for none
	sent  func()       // nil, or called when the transport needs data's memory no more; nil without data
}

// over is sent's call.
func (f *outFrame) over() {
	if f.sent != nil {
		f.sent()
	}
}

// transport is a carrier of frames: a stream or a queue pair.
type transport interface {
	// try sends f if that does not block. It borrows f.head and, on true, takes
	// f.data and sees to f.sent.
	try(f outFrame) (bool, error)
	// ring is called after a try that was true, without locks: the device begins
	// with it, at the latest.
	ring()
	// send sends f, or prepares it, and may block until the transport is
	// closed. It takes f.data, sees to f.sent and borrows f.head; on an error it
	// has taken nothing.
	send(f outFrame) error
	// flush sends what send has prepared.
	flush() error
	// fits says whether a frame may have so many bytes of head and of data.
	fits(head int, data int64) error
	// progress is a number that changes as data comes in, between frames too,
	// and whether it is we who do not take what has come.
	progress() (uint64, bool)
	// rest gives back what large frames have left behind with the sender. It is
	// called while nobody sends.
	rest()
	// close ends the transport at once. It does not block, and is idempotent.
	close()
	// goodbye ends it after what was sent has left, as far as the transport
	// can tell, and waits for the peer until ctx ends.
	goodbye(ctx context.Context)
	// bulk is the one-sided access of the transport.
	bulk
}

// bulk is one-sided access to granted memory.
type bulk interface {
	canGrant() bool
	grant(ctx context.Context, l *buffer.List, write bool) ([]Grant, error)
	// revoke ends those of gs that are this transport's, also when it has ended.
	revoke(ctx context.Context, gs []Grant) error
	// has reports whether g is live, and this transport's. (The epoch does not tell: it is
	// the peer that has chosen it, where that has connected.)
	has(g Grant) bool
	read(ctx context.Context, dst *buffer.List, src []Grant, off uint64) error
	write(ctx context.Context, dst []Grant, off uint64, src *buffer.List) error
	// grants is how many grants have not ended: after close none is new.
	grants() int
	// frames is the access as frames, nil where the device does it.
	frames() *streamBulk
}

// link is one transport and what is true while it lives: the handshake, what was
// negotiated, when something last came. A session may outlive it.
type link struct {
	m        *Messenger
	scheme   string
	remote   string
	incoming bool
	since    time.Time
	// globalSeq numbers it among all that we have connected; that of the
	// handshake's goroutine.
	globalSeq uint64
	reached   peerKey       // see Messenger.reach; Messenger.mu guards it
	ready     chan struct{} // closed when the handshake has ended, well or not
	gone      chan struct{} // closed when the link has ended

	// owner is the session that the link serves; of an incoming one it is set
	// when the session has been found.
	owner atomic.Pointer[Connection]
	// lastReceived, and lastUsed by anything but keepalives, by Messenger.clock.
	lastReceived, lastUsed atomic.Int64
	// last: the link is about to end, see leaving.
	last atomic.Bool
	// holding: we do not read, because throttles or memory are out.
	holding atomic.Bool

	// sending is since when a frame waits for the peer to take it, by
	// Messenger.clock; 0: none does.
	sending atomic.Int64

	// The ticker's: when it sent the last keepalive, by Messenger.clock, 0 for
	// never; how far data had come, and the number of the last message sent.
	asked int64
	moved uint64
	sent  uint64

	// The reader's: the goroutine of a stream, the poller of a queue pair.
	hs    *handshake
	adm   admission
	limit throttles
	gap   uint64 // numbers that are not sent, before the message that is read
	rdma  rdmaState

	// numbered is the number of the last message that was sent, or that the peer has
	// said to have: Connection.mu guards it.
	numbered uint64

	// own is the features of our own in use, shield is secure mode, nil in crc
	// mode; set before the link is open.
	own    uint64
	shield *shield

	mu      sync.Mutex
	t       transport // nil until dialed
	err     error     // why it has ended
	because error     // why it is about to end
	ended   bool
	isOpen  bool // the handshake has ended well
	cancel  context.CancelFunc
}

func (m *Messenger) newLink(scheme, remote string, incoming bool) *link {
	l := &link{m: m, scheme: scheme, remote: remote, incoming: incoming,
		since: time.Now(), ready: make(chan struct{}), gone: make(chan struct{}), globalSeq: m.nextGlobalSeq(0)}
	l.touch(true)
	return l
}

// touch notes that something came, and whether it was more than a keepalive.
func (l *link) touch(use bool) {
	now := l.m.clock()
	l.lastReceived.Store(now)
	if use {
		l.lastUsed.Store(now)
	}
}

// dialing has cancel called when the link ends before it has a transport. false: it
// has ended.
func (l *link) dialing(cancel context.CancelFunc) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cancel = cancel
	return !l.ended
}

// attach gives the link its transport. false: it has ended meanwhile, and t was
// closed.
func (l *link) attach(t transport, cancel context.CancelFunc) bool {
	l.mu.Lock()
	l.t, l.cancel = t, cancel
	ended := l.ended
	l.mu.Unlock()
	if ended {
		t.close()
		if cancel != nil {
			cancel()
		}
	}
	return !ended
}

func (l *link) transport() transport {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.t
}

// fail ends the link, once, by a fault in doing op: the transport is closed and
// the session told. It does not block and may be called from anywhere but under
// Connection.mu.
func (l *link) fail(op string, err error) {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return
	}
	l.ended = true
	if op != "" {
		err = &FaultError{Peer: l.remote, Op: op, Err: err}
	}
	if l.because != nil {
		err = l.because
	}
	l.err = err
	t, cancel, wasOpen := l.t, l.cancel, l.isOpen
	l.mu.Unlock()
	l.m.countFailure(err, !wasOpen)
	if errors.As(err, new(*msgr2.DecodeError)) || errors.Is(err, msgr2.ErrChecksum) {
		l.m.inject.unexpected("bad frame", l.owner.Load())
	}
	if t != nil {
		t.close()
	}
	if cancel != nil {
		cancel()
	}
	l.m.forget(l, wasOpen && t.grants() > 0)
	if !wasOpen {
		l.m.n.handshakesFailed.Add(1)
		if l.incoming {
			l.note(slog.LevelInfo, "handshake failed", "err", err)
		}
		close(l.ready)
	}
	close(l.gone)
	if c := l.owner.Load(); c != nil {
		c.lost(l, err)
	}
}

// drop ends the link by our own will.
func (l *link) drop() { l.fail("", ErrClosed) }

func (l *link) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// params is our side of the handshake over this link, whose end here is here.
func (l *link) params(c *Connection, here netip.Addr, seen, target msgr2.Addr) hsParams {
	m := l.m
	p := hsParams{
		client: c != nil, name: m.cfg.Name, nonce: m.nonce.Load(), addrs: m.wireAddrs(), ours: m.oursAt, here: here,
		seen: seen, target: target, offered: m.offered, auth: m.cfg.Auth, modes: m.cfg.Modes, remote: l.remote,
		ended: l.ready, heads: l.scheme != SchemeTCP, session: l, step: l.stepper(),
	}
	if !p.heads { // the endpoints of RDMA tell each other
		p.limits = m.limits
	}
	if c != nil {
		p.expect = c.peerType
		if ours := c.toldOurs(); len(ours) > 0 {
			p.addrs, p.ours = ours, nil
		}
		p.policy = func(EntityType) Policy {
			pol := c.policyNow()
			m.mu.Lock()
			defer m.mu.Unlock()
			pol.Secure = m.policyFor(c.peerType, false).Secure // that of the moment, see SetPolicy
			return pol
		}
	} else {
		p.globalID = m.globalID.Add(1)
		p.policy = l.policyTowards
		p.acceptable = m.isUs
	}
	return p
}

// policyTowards is our policy towards a peer of type t that connects: that of the
// session that it has, once its addresses are known, else the present one.
func (l *link) policyTowards(t EntityType) Policy {
	m := l.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if l.hs != nil {
		if c := m.lookup(t, l.hs.result.addrs); c != nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			if p, ok := c.keptPolicy(); ok {
				return p
			}
		}
	}
	return m.policyFor(t, true)
}

// established makes the link that of a session, after the last frame of the
// handshake has been sent.
func (l *link) established() error {
	r := &l.hs.result
	if t, stream := l.transport().(*streamTransport); stream {
		if r.limits.Data > 0 {
			t.peer = r.limits
		}
		t.limit(min(int64(t.limits.Data), int64(t.peer.Data)), int(t.peer.Front))
	} else if r.own == 0 {
		return fmt.Errorf("%w: peer does not know how frames travel on RDMA", ErrFeatures)
	}
	l.own, l.shield = r.own, l.hs.shield
	if l.shield != nil {
		l.m.n.secure.Add(1)
	}
	if t, rdma := l.transport().(*rdmaTransport); rdma {
		data, head := min(t.c.Endpoint().MaxMessage(), t.c.MaxMessage()), t.c.MaxHead()
		if l.shield != nil {
			head -= (1 + msgr2.DataRecords(min(data, rdmaChunk))) * msgr2.TagLen
		}
		t.bulk.limit(data, head)
		t.c.Promote()
	}
	if !r.resumed && r.lossy && !r.policy.Lossy {
		l.m.n.policyMismatches.Add(1)
		l.note(slog.LevelWarn, "the peer takes the session for lossy, our policy does not: it is lossy", "peer", r.peer, "policy", r.policy)
	}
	c := l.owner.Load()
	l.limit = l.m.throttlesFor(r.peer.Type, r.policy)
	if err := l.step("READY", false); err != nil {
		return err
	}
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return l.failure()
	}
	l.isOpen = true
	l.mu.Unlock()
	l.m.opened(l)
	c.open(l, r)
	close(l.ready)
	l.hs = nil
	if err := l.failure(); err != nil {
		c.lost(l, err) // it ended before c knew of it
	}
	return nil
}

// sumsData reports whether the data of messages has a checksum of the
// messenger's.
func (l *link) sumsData() bool { return l.own&featureNoDataCRC == 0 && l.shield == nil }

// frameError says whose fault an error of decoding is.
func frameError(err error) error {
	var d *msgr2.DecodeError
	if errors.As(err, &d) {
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return err
}

// control handles a control frame on an open link.
func (l *link) control(tag msgr2.Tag, payload []byte) error {
	c := l.owner.Load()
	switch tag {
	case msgr2.TagKeepalive2:
		var f msgr2.Keepalive2
		if err := f.Decode(payload); err != nil {
			return err
		}
		l.touch(false)
		c.keepaliveCame()
		c.sendControl(entry{kind: entryKeepaliveAck, since: f.Sent.Time()})
	case msgr2.TagKeepalive2Ack:
		var f msgr2.Keepalive2Ack
		if err := f.Decode(payload); err != nil {
			return err
		}
		l.touch(false)
		c.keepaliveAcked(f.Sent.Time())
	case msgr2.TagAck:
		var f msgr2.Ack
		if err := f.Decode(payload); err != nil {
			return err
		}
		l.touch(true)
		c.acknowledged(l, f.Seq)
	default:
		return fmt.Errorf("%w: %v on an open session", ErrProtocol, tag)
	}
	return nil
}

// exempt reports whether a message passes the throttles: the reply to a call is
// bounded by the calls that we make, and must not wait for requests that wait
// for us; frames of our own are bounded by their own rules.
func (l *link) exempt(h *msgr2.Header) bool {
	if l.own != 0 && (h.Type >= ReservedTypes || h.Flags&flagReply != 0) {
		return true
	}
	return l.own == 0 && h.TID != 0 && l.owner.Load().isCall(h.TID)
}

// fill copies the header's fields into m, and takes our extension off its front.
func (l *link) fill(m *Message, h *msgr2.Header) error {
	m.Type, m.Priority, m.Version, m.CompatVersion = h.Type, h.Priority, h.Version, h.CompatVersion
	m.TID, m.Seq = h.TID, h.Seq
	l.gap = 0
	if l.own == 0 {
		return nil
	}
	m.flags = h.Flags & (flagCall | flagReply)
	if n := int(h.Reserved); n > 0 {
		if n > len(m.Front) {
			return fmt.Errorf("%w: extension of %d bytes in a front of %d", ErrProtocol, n, len(m.Front))
		}
		at := len(m.Front) - n
		var err error
		if l.gap, err = m.decodeExtension(m.Front[at:]); err != nil {
			return err
		}
		m.Front = m.Front[:at]
	}
	return nil
}
