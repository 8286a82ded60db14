package messenger

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"syscall"
	"time"

	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
)

// rdmaTransport carries frames on a queue pair: one frame is one message of
// package conn, whose payload is the data segment and whose head is the rest.
type rdmaTransport struct {
	l    *link
	c    *conn.Conn
	ctx  context.Context // ends with the link
	bulk streamBulk      // in secure mode, and where the device has no keys of its own
}

func (t *rdmaTransport) progress() (uint64, bool) { return t.c.Progress() }

func (t *rdmaTransport) try(f outFrame) (bool, error) {
	if sh := t.l.shield; sh != nil {
		return t.trySealed(sh, f)
	}
	ok, err := t.c.TrySendDeferred(conn.Message{Head: f.head, Payload: f.data, Sent: f.sent})
	return ok, connError(err)
}

func (t *rdmaTransport) ring() { t.c.Doorbell() }

func (t *rdmaTransport) send(f outFrame) error {
	if sh := t.l.shield; sh != nil {
		return t.sendSealed(sh, f)
	}
	return t.post(conn.Message{Head: f.head, Payload: f.data, Sent: f.sent})
}

// post notes for how long the peer lets us wait, see link.stalled.
func (t *rdmaTransport) post(m conn.Message) error {
	t.l.sending.Store(t.l.m.clock())
	defer t.l.sending.Store(0)
	return connError(t.c.Send(t.ctx, m))
}

func (t *rdmaTransport) flush() error { return nil }

func (t *rdmaTransport) fits(head int, data int64) error {
	if t.l.shield != nil {
		head += (1 + msgr2.DataRecords(data)) * msgr2.TagLen
	}
	if head > t.c.MaxHead() || data > t.c.MaxMessage() {
		return fmt.Errorf("%w: %d bytes of head (front and middle, at most %d), %d of data (at most %d)",
			ErrTooLarge, head, t.c.MaxHead(), data, t.c.MaxMessage())
	}
	return nil
}

func (t *rdmaTransport) close() {
	_ = t.c.Close() // what it says is of no use any more
	t.bulk.end()
}

func (t *rdmaTransport) goodbye(ctx context.Context) { _ = t.c.Shutdown(ctx) } // what it leaves the endpoint's Shutdown names

// rdmaState is what the poller keeps for a link.
type rdmaState struct {
	parked bool   // the admission waits for a throttle
	resume func() // Conn.Resume, made once
	// admitted counts messages that have passed the throttles and not come
	// yet, and their bytes.
	admitted      int64
	admittedBytes int64
	gone          bool
	broken        bool // a frame could not be read: no more are
	paced         *pacing
}

// connConfig is the part of an endpoint's configuration that is ours.
func (m *Messenger) connConfig(scheme string) conn.Config {
	return conn.Config{
		HandshakeTimeout: m.cfg.ConnectTimeout,
		StagedCredits:    2, // the others come with a session, see link.established
		Logger:           m.log,
		OnAccept:         func(c *conn.Conn) bool { return m.acceptRDMA(scheme, c) },
		OnMessage:        m.onRDMAMessage,
		OnFault:          m.onRDMAFault,
		Admit:            m.admitRDMA,
	}
}

// acceptRDMA is asked about a peer that connects. It makes the link; the
// handshake runs on the poller.
func (m *Messenger) acceptRDMA(scheme string, c *conn.Conn) bool {
	l := m.newLink(scheme, c.RemoteAddr().String(), true)
	if !m.admitLink(l) {
		return false
	}
	l.hs = newHandshake(l.params(nil, endOf(c.LocalAddr()), seenAddr(c.RemoteAddr()), msgr2.Addr{}))
	ctx, cancel := context.WithCancel(context.Background())
	c.SetUser(l)
	return l.attach(newRDMATransport(ctx, l, c), cancel)
}

// dialRDMA connects over an endpoint and waits for the end of the handshake.
func (m *Messenger) dialRDMA(ctx context.Context, c *Connection, l *link, ep *conn.Endpoint, a EntityAddr) error {
	dial, cancelDial := context.WithTimeout(ctx, m.cfg.ConnectTimeout)
	defer cancelDial()
	if err := m.reach(c, l, a); err != nil {
		return err
	}
	target := a.toWire()
	l.hs = newHandshake(l.params(c, netip.Addr{}, target, target))
	cn, err := ep.DialUser(dial, a.HostPort(), l)
	if err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
			err = fmt.Errorf("the connection ended before it was one of RDMA (as a tcp:// port, dialed as %s://, ends it): %w", a.Scheme(), err)
		}
		// A *conn.RefusedError is the answer of one who does listen: busy, for
		// instance. Later attempts may fare better.
		if errors.Is(err, conn.ErrRefused) && !errors.As(err, new(*conn.RefusedError)) {
			return errRefused{err}
		}
		return err
	}
	life, cancel := context.WithCancel(context.Background())
	t := newRDMATransport(life, l, cn)
	// The poller does not touch the handshake before the peer's first frame,
	// which answers this one.
	l.hs.p.here = endOf(cn.LocalAddr())
	first := l.hs.start()
	if !l.attach(t, cancel) {
		return l.failure()
	}
	for _, raw := range first {
		if err := cn.Send(dial, conn.Message{Head: raw}); err != nil {
			return err
		}
	}
	select {
	case <-l.ready:
	case <-time.After(m.cfg.ConnectTimeout):
		return fmt.Errorf("%w in the handshake", ErrTimeout)
	}
	return l.failure()
}

// admitRDMA takes the throttles for a message, on the poller.
func (m *Messenger) admitRDMA(c *conn.Conn, head []byte, payload int64) bool {
	l, _ := c.User().(*link)
	if l == nil || l.hs != nil || l.owner.Load() == nil {
		return l.admitHandshake(payload) && l.pace(c, head)
	}
	st := &l.rdma
	if st.gone {
		return true
	}
	if !st.parked {
		if l.shield != nil {
			head = l.shield.lookAhead(head)
		}
		size, ok := l.toAdmit(head, payload)
		if !ok {
			return true
		}
		l.adm.begin(l.limit, size)
	}
	if st.resume == nil {
		st.resume = c.Resume
	}
	if !l.adm.advance(st.resume) {
		if !st.parked {
			st.parked = true
			l.holding.Store(true)
			m.n.throttleWaits.Add(1)
		}
		return false
	}
	if st.parked {
		st.parked = false
		l.holding.Store(false)
	}
	st.admitted++
	st.admittedBytes += l.adm.bytes
	return true
}

// rdmaLimits are those of frames on RDMA: package conn has bounded the frame as a
// whole. What is admitted and what is received decode by the same ones, or a
// message would give back what nobody took for it.
var rdmaLimits = msgr2.Limits{Data: 1<<32 - 1}

// toAdmit returns what the throttles have to give for a frame. false: nothing.
// What is malformed passes, to be refused where it is decoded.
func (l *link) toAdmit(head []byte, payload int64) (int64, bool) {
	var p msgr2.Preamble
	var h msgr2.Header
	if p.Decode(head, rdmaLimits) != nil || p.Tag != msgr2.TagMessage ||
		len(head) < msgr2.PreambleLen+p.SegZeroLen() || h.Decode(head[msgr2.PreambleLen:]) != nil || l.exempt(&h) {
		return 0, false
	}
	return int64(p.Segs[msgr2.SegFront].Len) + int64(p.Segs[msgr2.SegMiddle].Len) + payload, true
}

// onRDMAMessage takes a frame, on the poller.
func (m *Messenger) onRDMAMessage(c *conn.Conn, msg conn.Message) {
	l, _ := c.User().(*link)
	if l == nil {
		if msg.Payload != nil {
			msg.Payload.Release()
		}
		_ = c.Close() // not ours
		return
	}
	if l.hs != nil && !l.rdma.broken {
		if err := l.handshakeRDMA(c, msg); err != nil {
			l.rdma.broken = true
			l.failHandshake(frameError(err))
		}
		return
	}
	if l.rdma.broken {
		if msg.Payload != nil {
			msg.Payload.Release()
		}
		return
	}
	if err := l.rdmaFrame(msg); err != nil {
		// Whoever else ends the link may not have told the session yet: nothing
		// behind a frame that is lost may be received.
		l.rdma.broken = true
		l.fail("read", frameError(err))
	}
}

// failHandshake ends a handshake by a fault, on the poller: at once, or when the
// client has got what it was told about it, or grace is over.
func (l *link) failHandshake(err error) {
	m := l.m
	m.mu.Lock()
	if !l.hs.toldWhy || m.closing.Load() {
		m.mu.Unlock()
		l.fail("handshake", err)
		return
	}
	m.wg.Add(1) // Shutdown waits for it from when m.closing is set on
	m.mu.Unlock()
	_ = l.leaving("handshake", err) // nobody else has: it is not open
	go func() {                     // ends within grace, and with the link
		defer m.wg.Done()
		ctx, cancel := context.WithTimeout(context.Background(), grace)
		defer cancel()
		l.leave(ctx)
	}()
}

func (l *link) handshakeRDMA(c *conn.Conn, msg conn.Message) error {
	if msg.Payload != nil {
		msg.Payload.Release()
		return fmt.Errorf("%w: payload in the handshake", ErrProtocol)
	}
	if !l.incoming && l.transport() == nil { // attach comes behind hs.start
		return fmt.Errorf("%w: the server speaks before the client", ErrProtocol)
	}
	l.touch(true)
	out, err := l.hs.input(msg.Head)
	l.rdma.paced = nil
	for _, raw := range out {
		ok, serr := c.TrySend(conn.Message{Head: raw})
		if serr == nil && !ok {
			serr = fmt.Errorf("%w: no credits in the handshake", ErrProtocol)
		}
		if serr != nil && err == nil {
			err = serr
		}
	}
	if err != nil {
		return err
	}
	if l.hs.done() {
		return l.established()
	}
	return nil
}

// rdmaFrame decodes a frame of an open link. It takes msg.Payload.
func (l *link) rdmaFrame(msg conn.Message) (err error) {
	data := msg.Payload
	defer func() {
		if data != nil {
			data.Release()
		}
	}()
	if err := l.m.inject.failure(); err != nil {
		return err
	}
	begun := l.m.lat.now()
	head := msg.Head
	if l.shield != nil {
		if head, err = l.shield.openFrame(head, data); err != nil {
			return err
		}
	}
	var p msgr2.Preamble
	if err := p.Decode(head, rdmaLimits); err != nil {
		return err
	}
	head = head[msgr2.PreambleLen:]
	zero, err := p.CheckSegZero(head)
	if err != nil {
		return err
	}
	head = head[p.SegZeroLen():]
	if p.Tag != msgr2.TagMessage {
		if data != nil || len(head) != 0 {
			return fmt.Errorf("%w: %v with more than its payload", ErrProtocol, p.Tag)
		}
		return l.control(p.Tag, zero)
	}
	front, middle := int(p.Segs[msgr2.SegFront].Len), int(p.Segs[msgr2.SegMiddle].Len)
	var n int64
	if data != nil {
		n = data.Len()
	}
	if len(head) != front+middle+p.EpilogueLen() || n != int64(p.Segs[msgr2.SegData].Len) {
		return fmt.Errorf("%w: message of %d bytes of head and %d of data does not match its preamble", ErrProtocol, len(head), n)
	}
	var h msgr2.Header
	if err := h.Decode(zero); err != nil {
		return err
	}
	m := NewMessage(h.Type)
	m.begun = begun
	m.budget = l.takeAdmitted(&h, int64(front)+int64(middle)+n)
	m.growParts(front, middle)
	copy(m.Front, head)
	copy(m.Middle, head[front:])
	m.Data, data = data, nil
	l.place(&h, m)
	if err := l.rdmaEpilogue(&p, head[front+middle:], m); err != nil {
		m.Release()
		if errors.Is(err, msgr2.ErrAborted) {
			return nil
		}
		return err
	}
	if err := l.fill(m, &h); err != nil {
		m.Release()
		return err
	}
	if err := l.receive(&h, m); err != nil {
		m.Release()
		return err
	}
	return nil
}

func (l *link) rdmaEpilogue(p *msgr2.Preamble, raw []byte, m *Message) error {
	if p.EpilogueLen() == 0 {
		return nil
	}
	var e msgr2.Epilogue
	if err := e.Decode(raw); err != nil {
		return err
	}
	if e.Aborted {
		return msgr2.ErrAborted
	}
	return l.checkSegments(p, &e, m)
}

// takeAdmitted is what admitRDMA has taken for this message.
func (l *link) takeAdmitted(h *msgr2.Header, size int64) budget {
	st := &l.rdma
	if st.admitted == 0 || l.exempt(h) {
		return budget{}
	}
	st.admitted--
	st.admittedBytes -= size
	return budget{t: l.limit, bytes: size, held: true}
}

// onRDMAFault is the last callback of a connection, on the poller.
func (m *Messenger) onRDMAFault(c *conn.Conn, err error) {
	l, _ := c.User().(*link)
	if l == nil {
		return
	}
	if errors.Is(err, io.EOF) || errors.Is(err, conn.ErrPeerClosed) {
		err = fmt.Errorf("%w: %w", ErrPeerClosed, err)
	}
	if l.hs != nil {
		err = l.hs.left(err)
	}
	if errors.Is(err, conn.ErrViolation) {
		m.n.badGrants.Add(1)
		err = fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	l.fail("transport", err)
	st := &l.rdma
	st.gone = true
	if st.parked {
		l.adm.abandon()
		st.parked = false
	}
	for ; st.admitted > 0; st.admitted-- {
		b := budget{t: l.limit, bytes: st.admittedBytes, held: true}
		st.admittedBytes = 0
		b.release()
	}
}
